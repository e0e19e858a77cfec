"""Pictures of twice the side from the same latents. An autoencoder with finished weights gets one
more level at each end: the encoder is held to what it gave of the picture in half its size, so that
a denoiser for those latents stays as it is, and the decoder learns to draw the whole picture."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from layout import from_single_file
from models import make_vae
from wider import kept

KEEP_NOISE = 0.01
"""Weight of the squared difference between log variances and what they were, beside `kept`."""


def deeper_preset(preset: dict) -> dict:
    """The sizes of an autoencoder with one more level, as wide as the first one was."""
    widths = tuple(preset["vae"]["ch"])
    return {**preset, "px": 2 * preset["px"], "vae": {**preset["vae"], "ch": (widths[0], *widths)}}


def deeper_vae(preset: dict, tensors: dict[str, torch.Tensor], before: dict) -> torch.nn.Module:
    """An autoencoder of the sizes `deeper_preset` gives, from the weights `tensors` of one of those
    of `before`: of latents it draws nearly what that one draws, each pixel as four of them. What it
    gives of a picture is like what that one gives of the picture in half its size."""
    old = from_single_file(make_vae(before), "vae", before, tensors).state_dict()
    model, last = make_vae(preset), len(before["vae"]["ch"])
    state, blocks = model.state_dict(), preset["vae"]["lpb"]
    for name, value in state.items():
        source = name
        if name.startswith("encoder.down_blocks."):
            level, rest = name.split(".", 3)[2:]
            source = f"encoder.down_blocks.{int(level) - 1}.{rest}"
        if source in old:  # the decoder's new level is its last one, and has a number of its own
            value.copy_(old[source])
    for side, count in (("encoder.down_blocks.0", blocks),
                        (f"decoder.up_blocks.{last}", blocks + 1)):
        for block in range(count):  # residual blocks that change nothing until they have learnt
            for kind in ("weight", "bias"):
                state[f"{side}.resnets.{block}.conv2.{kind}"].zero_()
    enlarging = f"decoder.up_blocks.{last - 1}.upsamplers.0.conv"
    through = torch.eye(before["vae"]["ch"][0])
    state[f"{enlarging}.weight"].zero_()[:, :, 1, 1] = through
    state[f"{enlarging}.bias"].zero_()
    shrinking = "encoder.down_blocks.0.downsamplers.0.conv"
    state[f"{shrinking}.weight"].zero_()[:, :, :2, :2] = through[:, :, None, None] / 4
    state[f"{shrinking}.bias"].zero_()
    model.load_state_dict(state)
    return model


def half(image: torch.Tensor) -> torch.Tensor:
    """Images [n, c, h, w] in half their size: the means of four pixels each."""
    return F.avg_pool2d(image, 2)


def held_latents(mean: torch.Tensor, logvar: torch.Tensor, was: torch.Tensor,
                 logvar_was: torch.Tensor) -> torch.Tensor:
    """What keeps latents [n, c, h, w], given by means and log variances, where they were."""
    return kept(mean, was) + KEEP_NOISE * (logvar - logvar_was).square().mean()
