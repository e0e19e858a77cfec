"""What a denoiser has understood of captions, told by its errors before pictures tell it: on scenes
that it is not trained on, with the words for each, and with those for another of the kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import torch
from marks import marked
from models import signal_shares
from pictures import Pictures
from sampling import split

HELD_KINDS = ("alone", "count", "pair", "relation")
HELD_SCENES = 12
"""Of each kind."""
HELD_MOMENTS = (400, 600, 800)
"""Of the 1000 steps of noise: from where things can be guessed to where words alone tell them."""
HELD_SEED = 4_000_037
"""Apart from the seeds of scenes to learn from."""


def held_scenes(composer, pictures: Pictures, bank: dict,
                encoder: Callable[[list[torch.Tensor]], torch.Tensor],
                marks: Mapping[str, torch.Tensor]) -> dict:
    """Scenes of each kind as a bank has its own: latents [n, c, h, w] and tokens [n, 77]."""
    rng, number = random.Random(HELD_SEED), {
        token: index + 1 for index, token in enumerate(bank["vocab"])}
    found: dict[str, list] = {kind: [] for kind in HELD_KINDS}
    while any(len(items) < HELD_SCENES for items in found.values()):
        item = composer.item(rng)
        if len(found.get(item.kind, [None] * HELD_SCENES)) < HELD_SCENES:
            found[item.kind].append(item)
    held = {}
    for kind, items in found.items():
        drawn, styles = zip(*[composer.drawn(item.scene) for item in items], strict=True)
        latent = marked(encoder([*drawn]).float(), styles, marks)
        mean, std = bank["mean"][:, None, None], bank["std"][:, None, None]
        tokens = [[number.get(token, 0) for token in pictures.tokenizer(item.captions[0])]
                  for item in items]
        held[kind] = dict(z=((latent - mean) / std).half(), tok=torch.tensor(tokens))
    return held


@torch.no_grad()
def held_errors(run, unet: torch.nn.Module, text: torch.nn.Module, held: dict
                ) -> dict[str, list[float]]:
    """By kind, the mean square error of the picture that the denoiser takes a noisy latent to show:
    with its own caption, and with that of the next scene of the kind."""
    shares, found = signal_shares().to(run.device), {}
    for kind, scenes in held.items():
        latent = scenes["z"].to(run.device).float()
        words = text(input_ids=scenes["tok"].to(run.device)).last_hidden_state
        noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(HELD_SEED))
        noise, errors = noise.to(run.device), [0.0, 0.0]
        for moment in HELD_MOMENTS:
            share, at = shares[moment], torch.full((len(latent),), moment, device=run.device)
            noisy = share.sqrt() * latent + (1 - share).sqrt() * noise
            for which, told in enumerate((words, words.roll(1, 0))):
                with run.cast():
                    output = unet(run.memory(noisy), at, encoder_hidden_states=told).sample
                picture, _ = split(noisy, output.float(), share, run.options.pred)
                errors[which] += float((picture - latent).square().mean()) / len(HELD_MOMENTS)
        found[kind] = [round(error, 4) for error in errors]
    return found
