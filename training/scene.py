"""Scenes put together from the art: things of given colours at given places, on a ground, in a
style, with the truth known. The judge learns from them, and a model that composes would."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from colour import main_hue, paints, repaint
from landscape import drawn_view
from pictures import Pictures
from presets import BACKGROUNDS
from shortlist import Entry

STYLES = ("3d", "flat", "outline", "pixel")
"""The art as it is, the flat set of the same things, lines alone, and squares of a few pixels."""
MANY = "many"
"""The colour of a thing that no hue rules."""
THINGS_MAX = 4
PIXEL_SIDE = 32
"""Of the picture that "pixel" enlarges."""
ALONE, TOGETHER = (0.55, 1.0), (0.30, 0.48)
"""Sizes of a thing that is alone, and of one beside others, as shares of the side."""
FILLING = 0.9375
"""The size of a thing that nearly fills the picture, one of `PLACES` beside the middle, to either
side and up or down: pictures of things have a margin of 0.047 of their side or more, so nothing is
cut off."""
PLACES = 16
"""Parts of a side that things are moved by: the latents of a side, of the model that ships.
What was learnt about a thing holds where it stands whole latents further, and best two of them: a
denoiser's second level, of half as many a side, sees the same there. Between latents it is new."""
OUTLINE_SIDE = 128
"""Pixels a side of a picture whose lines reach one pixel to each side of an edge."""
DARK = 0.3
"""The mean of a ground below which lines on it are white."""
TRIES = 200
"""Places that are drawn until things do not cover each other."""
APART = 0.85
"""Between two centres, as a share of the mean size: corners of squares may touch."""


@dataclass(frozen=True)
class Thing:
    """A thing by its label: its centre and size are shares of the side, from the upper left.

    `hue` is what it is painted in, None for its own colours.
    """

    label: str
    hue: str | None = None
    x: float = 0.5
    y: float = 0.5
    size: float = 1.0


@dataclass(frozen=True)
class Scene:
    """Things before a ground, a name of `BACKGROUNDS`, in one of `STYLES`; or before a view of
    `VIEWS`, drawn with a seed."""

    things: tuple[Thing, ...]
    ground: str = "white"
    style: str = "3d"
    view: tuple[str, int] | None = None


class Art:
    """The pictures of the things that a list has, as pieces of scenes of `px` pixels a side."""

    def __init__(self, pictures: Pictures, entries: list[Entry], px: int) -> None:
        self.px, self.pictures = px, pictures
        numbers = {(style, concept["label"]): index for index, (style, concept) in enumerate(
            zip(pictures.style, pictures.concept, strict=True))}
        wanted = dict.fromkeys(entry.label for entry in entries)
        missing = [label for label in wanted if ("fluent3d", label) not in numbers]
        if missing:
            raise SystemExit(f"no picture of these labels in the data: {missing}")
        self.labels = list(wanted)
        self._numbers = {"3d": {label: numbers["fluent3d", label] for label in self.labels},
                         "flat": {label: numbers["fluentflat", label] for label in self.labels
                                  if ("fluentflat", label) in numbers}}
        self.hues = {label: main_hue(self._rgba("3d", label)) for label in self.labels}
        self.paints = {label: paints(self._rgba("3d", label)) for label in self.labels}

    def _rgba(self, style: str, label: str) -> torch.Tensor:
        return self.pictures.images[self._numbers[style][label]].float() / 255

    def has(self, style: str, label: str) -> bool:
        """Whether a thing can be drawn in a style."""
        return style != "flat" or label in self._numbers["flat"]

    def colour(self, thing: Thing) -> str:
        """The hue that one sees of a thing, or `MANY`."""
        own = self.hues[thing.label]
        return thing.hue or (own[0] if own else MANY)

    @lru_cache(maxsize=2048)  # noqa: B019  (an Art lives as long as the process)
    def piece(self, style: str, label: str, hue: str | None) -> torch.Tensor:
        """A thing, premultiplied, [4, px, px] in 0..1."""
        rgba = self._rgba("flat" if style == "flat" else "3d", label)
        rgb = repaint(rgba, hue) if hue else rgba[..., :3]
        alpha = rgba[..., 3:]
        found = torch.cat([rgb * alpha, alpha], -1).permute(2, 0, 1)
        if found.shape[-1] != self.px:
            found = torch.nn.functional.interpolate(found[None], (self.px, self.px),
                                                    mode="area")[0]
        return found

    def drawn(self, scene: Scene, styled: bool = True) -> torch.Tensor:
        """A scene, [3, px, px] in 0..1; if it is not `styled`, then squares and lines are left out:
        as it is before it is put into squares, and in its colours instead of lines."""
        ground = torch.tensor(BACKGROUNDS[scene.ground]).float()[:, None, None] / 255
        if scene.view:
            ground = drawn_view(*scene.view, self.px)
        canvas = ground.expand(3, self.px, self.px)
        for thing in scene.things:
            piece = place(self.piece(scene.style, thing.label, thing.hue), thing.size,
                          2 * thing.x - 1, 2 * thing.y - 1)
            if scene.style == "outline" and styled:
                canvas = lined(canvas, piece, ground)
            else:
                canvas = piece[:3] + canvas * (1 - piece[3:])
        if scene.style == "pixel" and styled:
            canvas = in_squares(canvas)
        return canvas.clamp(0, 1)

    def placed(self, entries: Iterable[Entry], count: int, rng: random.Random,
               moved: float = 1.0) -> Iterator[torch.Tensor]:
        """Each entry of a list on white, filling the picture or nearly so, so many times."""
        for entry in entries:
            for _ in range(count):
                yield self.drawn(Scene((Thing(entry.label, entry.hue, *filling(rng, moved)),)))


def place(image: torch.Tensor, scale: float, right: float, down: float) -> torch.Tensor:
    """A premultiplied picture (4, px, px) made smaller and moved by fractions of the canvas."""
    frame = torch.tensor([[[1 / scale, 0, -right / scale], [0, 1 / scale, -down / scale]]],
                         device=image.device)
    functional = torch.nn.functional
    grid = functional.affine_grid(frame, (1, *image.shape), align_corners=False)
    return functional.grid_sample(image[None], grid, align_corners=False)[0]


def outline(piece: torch.Tensor) -> torch.Tensor:
    """Where a premultiplied piece [4, h, w] has edges: [1, h, w], 1 for a line. Lines are as broad
    a part of the side in any size of pictures."""
    reach = max(1, piece.shape[1] // OUTLINE_SIDE)
    padded = torch.nn.functional.pad(piece[None], [reach] * 4, mode="replicate")[0]
    inner = slice(reach, -reach)
    across = padded[:, inner, 2 * reach:] - padded[:, inner, :-2 * reach]
    down = padded[:, 2 * reach:, inner] - padded[:, :-2 * reach, inner]
    strength = (across.square() + down.square()).sum(0, keepdim=True).sqrt()
    return (2 * strength - 0.2).clamp(0, 1)


def lined(canvas: torch.Tensor, piece: torch.Tensor, ground: torch.Tensor) -> torch.Tensor:
    """A canvas [3, h, w] with the edges of a premultiplied piece [4, h, w] as lines: white ones
    where the ground of the picture, [3, h, w] or [3, 1, 1], is dark, black ones elsewhere."""
    line, edges = float(ground.mean() < DARK), outline(piece)
    return canvas * (1 - edges) + line * edges


def in_squares(picture: torch.Tensor) -> torch.Tensor:
    """A picture [3, h, w] as `PIXEL_SIDE` squares a side."""
    functional = torch.nn.functional
    small = functional.interpolate(picture[None], (PIXEL_SIDE, PIXEL_SIDE), mode="area")
    return functional.interpolate(small, picture.shape[1:], mode="nearest")[0]


def spread(rng: random.Random, count: int) -> list[tuple[float, float, float]]:
    """Centres and sizes of things that do not cover each other."""
    if count == 1:
        size = rng.uniform(*ALONE)
        room = (1 - size) / 2
        return [(0.5 + rng.uniform(-room, room), 0.5 + rng.uniform(-room, room), size)]
    largest = TOGETHER[1]
    while True:
        for _ in range(TRIES):
            found = []
            for _ in range(count):
                size = rng.uniform(TOGETHER[0] * largest / TOGETHER[1], largest)
                found.append((rng.uniform(size / 2, 1 - size / 2),
                              rng.uniform(size / 2, 1 - size / 2), size))
            if all(max(abs(a[0] - b[0]), abs(a[1] - b[1])) > APART * (a[2] + b[2]) / 2
                   for number, a in enumerate(found) for b in found[:number]):
                return found
        largest *= 0.9  # so many do not fit at this size


def filling(rng: random.Random, moved: float = 1.0) -> tuple[float, float, float]:
    """The centre and the size of a thing that fills the picture, in a share `moved` nearly so, at
    one of four places."""
    if rng.random() >= moved:
        return 0.5, 0.5, 1.0
    return 0.5 + rng.choice((-1, 1)) / PLACES, 0.5 + rng.choice((-1, 1)) / PLACES, FILLING


def any_scene(rng: random.Random, art: Art) -> Scene:
    """A scene by chance: one thing in half of them, colours and grounds in a third each."""
    style = rng.choices(STYLES, (6, 2, 1, 1))[0]
    count = rng.choices(range(1, THINGS_MAX + 1), (8, 4, 2, 2))[0]
    labels = [label for label in art.labels if art.has(style, label)]
    chosen = rng.choices(labels, k=count)
    if count > 1 and rng.random() < 0.4:
        chosen = [chosen[0]] * count
    things = []
    for label, (x, y, size) in zip(chosen, spread(rng, count), strict=True):
        painted = style != "outline" and art.paints[label] and rng.random() < 0.35
        things.append(Thing(label, rng.choice(art.paints[label]) if painted else None, x, y, size))
    ground = rng.choice(list(BACKGROUNDS)) if rng.random() < 0.35 else "white"
    return Scene(tuple(things), ground, style)
