"""The bank: every picture as a latent, with its captions as tokens, made once before training."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from colour import shift_hue
from composed import Composer, composed_words, drawn_items, forms, names_of
from heldout import held_scenes
from marks import marked, marks_for, same_marks
from pictures import Pictures
from presets import BACKGROUNDS, CLOSINGS, HUES, STYLE_WORDS
from run import DECODER_FILE, MARKS_FILE
from scene import Art, place
from shortlist import Entry, caption_of, pictures_of, read_list

CAPTIONS_OF_ENTRY = 64
PLACES_OF_ENTRY = 8
"""Pictures of each thing of the short list alone, beside scenes: at places by chance."""
SCENES_OF_PART = 1600
"""Scenes that are saved together; 16 processes draw two of their parts each."""
Drawn = Encoded = tuple[torch.Tensor, list[str], float]
"""A picture in 0..1, or its latent, captions for it, and how often it is drawn beside others."""
Told = TypeVar("Told")
"""What goes with a picture, and then with its latent: captions, and the style whose mark it has."""


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


def encoded(items: Iterable[tuple[torch.Tensor, Told, float]], encoder, batch_size: int = 64
            ) -> Iterator[tuple[torch.Tensor, Told, float]]:
    """Items with latents in place of pictures, and what is told of them."""
    waiting: list[tuple[torch.Tensor, Told, float]] = []
    for item in chain(items, [None]):
        if item is not None:
            waiting.append(item)
        if len(waiting) == batch_size or (item is None and waiting):
            latents = encoder([picture for picture, _, _ in waiting])
            yield from ((latent, told, weight) for latent, (_, told, weight)
                        in zip(latents, waiting, strict=True))
            waiting = []


def assemble(pictures: Pictures, items: Iterable[Encoded], vocabulary: list[int],
             whitening: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> dict:
    """Put the bank together; latents are shifted and divided by what `whitening` says of them.

    The captions of item k are the rows of tokens from `first[k]` to `first[k + 1]`.
    """
    number = {token: index + 1 for index, token in enumerate(vocabulary)}
    latents, tokens, first, weights = [], [], [0], []
    for latent, captions, weight in items:
        latents.append(latent)
        tokens += token_rows(pictures, number, captions)
        first.append(len(tokens))
        weights.append(weight)
    latent = torch.stack(latents).float()
    mean, std = whitening(latent)
    latent = (latent - mean[:, None, None]) / std[:, None, None]
    return dict(z=latent.half(), tok=torch.tensor(np.array(tokens, np.int16)),
                first=torch.tensor(first), w=torch.tensor(weights), mean=mean, std=std,
                vocab=vocabulary, empty=torch.tensor(token_rows(pictures, number, [""])[0]))


def listed_items(run, entries: list[Entry]) -> Iterator[Drawn]:
    """Each thing of the short list by itself. Beside scenes, `plain` of what is drawn are these; a
    share of them is `moved`, each to several places."""
    preset, rng = run.preset, random.Random(run.options.seed + 3)
    total = sum(entry.weight for entry in entries)
    placed = PLACES_OF_ENTRY if preset["scenes"] and preset["moved"] else 1
    scale = preset["plain"] / total / placed if preset["scenes"] else 1.0
    pictures = (pictures_of(entries, run.pictures()) if placed == 1 else
                Art(run.pictures(), entries, preset["px"]).placed(entries, placed, rng,
                                                                  preset["moved"]))
    for number, picture in enumerate(pictures):
        entry = entries[number // placed]
        captions = [caption_of(rng, entry) for _ in range(CAPTIONS_OF_ENTRY // placed)]
        yield picture, captions, entry.weight * scale


def composer_of(run, entries: list[Entry], marks: Iterable[str]) -> Composer:
    """What makes the scenes of a run, in which these styles are told by marks of latents."""
    return Composer(Art(run.pictures(), entries, run.preset["px"]), entries,
                    regular=run.preset["regular"], centred=run.preset["centred"],
                    moved=run.preset["moved"], painted=run.preset["painted"],
                    marked=tuple(marks))


def composed_items(run, entries: list[Entry], encoder) -> Iterator[Encoded]:
    """The scenes of a bank, each as often as the other. They are saved in parts, so that a run that
    is killed draws no part twice."""
    preset = run.preset
    count, seed = preset["scenes"], run.options.seed + 11
    weight, composer = (1 - preset["plain"]) / count, None
    kind = "-".join(["scenes", *sorted(run.marks)])
    for part, start in enumerate(range(0, count, SCENES_OF_PART)):
        name, size = f"{kind}{part:04d}.pt", min(SCENES_OF_PART, count - start)
        saved = run.load(name)
        if saved is None:
            composer = composer or composer_of(run, entries, run.marks)
            workers = run.options.threads * run.options.processes
            drawn = drawn_items(composer, size, seed * 10_007 + part, workers)
            told = ((picture, (captions, style), weight) for picture, captions, style in drawn)
            saved = [(marked(latent[None], [style], run.marks)[0], captions)
                     for latent, (captions, style), _ in encoded(told, encoder)]
            run.save(name, saved)
            run.log(event="scenes", drawn=start + size)
        yield from ((latent, captions, weight) for latent, captions in saved)


def words_of(entries: list[Entry]) -> list[str]:
    """The words of the captions of a short list."""
    return [*CLOSINGS, *HUES, *(word for entry in entries for word in entry.words)]


def same_words(pictures: Pictures, entries: list[Entry]) -> dict[int, int]:
    """Tokens of several things, each with that of one of them, where both are one token."""
    ids = pictures.tokenizer.ids
    pairs = [(ids(several), ids(one)) for several, one in forms(names_of(entries)).items()]
    return {several[0]: one[0] for several, one in pairs if len(several) == len(one) == 1}


def take_marks(run) -> None:
    """Give a run marks of latents for the styles of `--marks` that have none, by its finished
    encoder, and save all. Raises SystemExit where a stage of the run has gone without."""
    lacking = [style for style in run.options.marks if style not in run.marks]
    if lacking:
        for name in (DECODER_FILE, "bank.pt"):
            if run.load(name):
                raise SystemExit(f"{run.out} has a {name} without marks for {', '.join(lacking)}: "
                                 f"give another --out")
        vae = run.final_vae()
        run.marks = marks_for(lambda images: encode(vae, [*images], run), run.pictures().images,
                              lacking, run.marks)
    if run.marks:
        run.save(MARKS_FILE, run.marks)


def make_bank(run) -> dict:
    """The bank of a run: the one saved, or a new one of the whole set, or of the short list and
    scenes of its things."""
    saved = run.load("bank.pt")
    if saved and not same_marks(saved.get("marks", {}), run.marks):
        raise SystemExit(f"{run.out} has a bank with other marks of latents: give another --out")
    if saved:
        return saved
    pictures, vae = run.pictures(), run.final_vae()

    def encoder(images: list[torch.Tensor]) -> torch.Tensor:
        return encode(vae, images, run)

    like: dict[int, int] = {}
    composing = False
    if run.options.concepts:
        entries = read_list(Path(run.options.concepts))
        items, texts = encoded(listed_items(run, entries), encoder), words_of(entries)
        composing = bool(run.preset["scenes"])
        if composing:
            items = chain(items, composed_items(run, entries, encoder))
            texts += composed_words(entries)
            like = same_words(pictures, entries)
        vocabulary = pictures.vocabulary(texts)
    else:
        maker = BankMaker(pictures, run.preset, run.options.seed, run.device)
        items = encoded(maker.items(), encoder)
        vocabulary = pictures.vocabulary()
    if run.start:
        vocabulary = sorted({*vocabulary, *run.start.tokens})
    bank = assemble(pictures, items, vocabulary, run.whitening)
    bank["like"], bank["marks"] = like, run.marks
    if composing:
        composer = composer_of(run, entries, run.marks)
        bank["held"] = held_scenes(composer, pictures, bank, encoder, run.marks)
    run.save("bank.pt", bank)
    for part in (run.out / "state").glob("scenes*.pt"):
        part.unlink()
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
