"""The bank: every picture as a latent, with its captions as tokens, made once before training."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from colour import shift_hue
from pictures import Pictures
from presets import BACKGROUNDS, HUES, LATENT_SCALE, STYLE_WORDS
from shortlist import caption_of, pictures_of, read_list

CAPTIONS_OF_ENTRY = 64


def place(image: torch.Tensor, scale: float, right: float, down: float) -> torch.Tensor:
    """A premultiplied picture (4, px, px) made smaller and moved by fractions of the canvas."""
    frame = torch.tensor([[[1 / scale, 0, -right / scale], [0, 1 / scale, -down / scale]]],
                         device=image.device)
    functional = torch.nn.functional
    grid = functional.affine_grid(frame, (1, *image.shape), align_corners=False)
    return functional.grid_sample(image[None], grid, align_corners=False)[0]


def token_rows(pictures: Pictures, number: dict[int, int], captions: list[str]) -> list[list[int]]:
    """Captions as numbers of the compact vocabulary; 0 is a word that no caption has."""
    return [[number.get(token, 0) for token in pictures.tokenizer(text)] for text in captions]


class BankMaker:
    """Draws the pictures of the bank: plain ones first, then changed ones."""

    def __init__(self, pictures: Pictures, preset: dict, seed: int, device: torch.device):
        self.pictures, self.preset, self.device = pictures, preset, device
        self.rng = random.Random(seed + 7)
        styles = preset["styles"].split(",")
        self.pool = [index for index, style in enumerate(pictures.style) if style in styles]
        self.things = {style: [index for index in self.pool if pictures.style[index] == style
                               and pictures.concept[index]["weight"] >= 1] for style in styles}
        self.captions = 12 if preset["bank_k"] < 3 else 6

    def rgba(self, index: int, hue: str | None) -> torch.Tensor:
        """One picture, premultiplied, (4, px, px), with its main hue turned to another."""
        image = self.pictures.images[index].to(self.device).float() / 255
        colour, alpha = image[..., :3], image[..., 3:]
        if hue:
            colour = shift_hue(colour, HUES[hue] - self.pictures.hue[index][1])
        return torch.cat([colour * alpha, alpha], -1).permute(2, 0, 1)

    def pair(self, index: int) -> tuple[torch.Tensor, list[str]]:
        """Two objects side by side, and captions that name both."""
        rng, style = self.rng, self.pictures.style[index]
        other, size = rng.choice(self.things[style]), rng.uniform(0.46, 0.52)
        left = place(self.rgba(index, None), size, -0.48, rng.uniform(-0.1, 0.1))
        right = place(self.rgba(other, None), size, 0.48, rng.uniform(-0.1, 0.1))
        captions = []
        for _ in range(self.captions):
            first = self.pictures.caption(rng, index, short=True)
            second = self.pictures.caption(rng, other, short=True)
            silent = style == "fluent3d" and rng.random() < 0.7
            ending = "" if silent else ", " + rng.choice(STYLE_WORDS[style])
            captions.append(first + rng.choice([" and ", " and ", " next to "]) + second + ending)
        return left + right * (1 - left[3:]), captions

    def background(self, name: str) -> torch.Tensor:
        """A colour of the ground; coloured grounds vary a little."""
        colour = torch.tensor(BACKGROUNDS[name], device=self.device).float()[:, None, None] / 255
        if name == "white":
            return colour
        noise = torch.rand(3, 1, 1).to(self.device) - 0.5
        return (colour + noise * 0.08).clamp(0, 1)

    def item(self, index: int, plain: bool) -> tuple[torch.Tensor, list[str], float]:
        """One picture of the bank (3, px, px in 0..1), its captions and its weight."""
        rng, preset, concept = self.rng, self.preset, self.pictures.concept[index]
        weight = concept["weight"] * (preset["plain_w"] if plain else 1.0)
        hue, captions = None, None
        changed = not plain
        if changed and self.pictures.hue[index] and rng.random() < preset["p_hue"]:
            hue = rng.choice([name for name in HUES if name != self.pictures.hue[index][0]])
        if changed and rng.random() < preset["p_pair"] and concept["weight"] >= 1:
            image, captions = self.pair(index)
        else:
            image = self.rgba(index, hue)
            flips = preset["p_flip"] / (1 - preset["p_pair"] + 1e-6)
            if changed and concept["flip"] and rng.random() < flips:
                image = image.flip(2)
            if changed and preset["jitter"] > 0:
                scale = rng.uniform(1 - 2 * preset["jitter"], 1.04)
                room = max(0, 1 - scale)
                image = place(image, scale, rng.uniform(-room, room), rng.uniform(-room, room))
        ground = "white"
        if changed and rng.random() < preset["p_bg"]:
            ground = rng.choice([name for name in BACKGROUNDS if name != "white"])
        if captions is None:
            captions = [self.pictures.caption(rng, index, hue, ground)
                        for _ in range(self.captions)]
        elif ground != "white":
            captions = [f"{text} on a {ground} background" for text in captions]
        picture = image[:3] + self.background(ground) * (1 - image[3:])
        return picture.clamp(0, 1), captions, weight

    def items(self):
        """All items of the bank, one after the other."""
        for repeat in range(self.preset["bank_k"]):
            for index in self.pool:
                yield self.item(index, plain=repeat == 0)


@torch.no_grad()
def encode(vae: torch.nn.Module, images: list[torch.Tensor], run) -> torch.Tensor:
    """The latents (means) of some pictures in 0..1."""
    batch = run.memory(torch.stack(images).to(run.device) * 2 - 1)
    with run.cast():
        return vae.encode(batch).latent_dist.mean.float().half().cpu()


def assemble(pictures: Pictures, items, encoder, vocabulary: list[int],
             whiten: bool, batch_size: int = 64) -> dict:
    """Encode items and put the bank together; latents are brought to unit variance."""
    number = {token: index + 1 for index, token in enumerate(vocabulary)}
    latents, tokens, weights, waiting = [], [], [], []
    for picture, captions, weight in items:
        waiting.append(picture)
        tokens.append(token_rows(pictures, number, captions))
        weights.append(weight)
        if len(waiting) == batch_size:
            latents.append(encoder(waiting))
            waiting = []
    if waiting:
        latents.append(encoder(waiting))
    latent = torch.cat(latents).float()
    mean, std = latent.mean((0, 2, 3)), latent.std((0, 2, 3))
    if not whiten:
        mean, std = torch.zeros(4), torch.full((4,), 1 / LATENT_SCALE)
    latent = (latent - mean[:, None, None]) / std[:, None, None]
    return dict(z=latent.half(), tok=torch.tensor(np.array(tokens, np.int16)),
                w=torch.tensor(weights), mean=mean, std=std, vocab=vocabulary,
                empty=torch.tensor(token_rows(pictures, number, [""])[0]))


def make_bank(run) -> dict:
    """The bank of a run: the one saved, or a new one of the whole set or of the short list."""
    saved = run.load("bank.pt")
    if saved:
        return saved
    pictures, vae = run.pictures(), run.final_vae()

    def encoder(images: list[torch.Tensor]) -> torch.Tensor:
        return encode(vae, images, run)

    if run.options.concepts:
        entries = read_list(Path(run.options.concepts))
        rng = random.Random(run.options.seed + 3)
        captions = [[caption_of(rng, entry) for _ in range(CAPTIONS_OF_ENTRY)]
                    for entry in entries]
        items = zip(pictures_of(entries, pictures).to(run.device), captions,
                    [entry.weight for entry in entries], strict=True)
        vocabulary = pictures.vocabulary([text for texts in captions for text in texts])
    else:
        items = BankMaker(pictures, run.preset, run.options.seed, run.device).items()
        vocabulary = pictures.vocabulary()
    if run.start:
        vocabulary = sorted({*vocabulary, *run.start.tokens})
    bank = assemble(pictures, items, encoder, vocabulary, whiten=run.start is None)
    run.save("bank.pt", bank)
    run.log(event="bank", items=len(bank["z"]), vocabulary=len(vocabulary),
            mean=bank["mean"].tolist(), std=bank["std"].tolist())
    return bank


def focus(bank: dict, run) -> dict:
    """A bank of which only the concepts of a list (one emoji label a line) are drawn."""
    pictures = run.pictures()
    lines = Path(run.options.focus).read_text(encoding="utf-8").splitlines()
    labels = {line.strip().lower() for line in lines if line.strip()}
    styles = run.preset["styles"].split(",")
    wanted = torch.tensor([float(concept["label"].lower() in labels) for concept, style
                           in zip(pictures.concept, pictures.style, strict=True)
                           if style in styles]).repeat(run.preset["bank_k"])
    run.log(event="focus", labels=len(labels), items=int(wanted.sum()))
    return {**bank, "w": wanted * bank["w"].clamp(min=1)}
