"""Landscapes and patterns drawn by program, each by its name and a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from presets import BACKGROUNDS

Colour = tuple[float, float, float]
FINE = 2
"""Pixels of a view a side are drawn for each one of the picture, and averaged: soft edges."""
SKY_HIGH, SKY_LOW = (0.36, 0.65, 0.95), (0.78, 0.9, 0.99)
DUSK, NIGHT = (0.99, 0.62, 0.3), (0.05, 0.07, 0.2)
GRASS, SAND, ROCK, WATER = (0.4, 0.72, 0.33), (0.95, 0.84, 0.6), (0.48, 0.5, 0.58), (0.16, 0.5, 0.8)


class Canvas:
    """A picture to paint on: `x` and `y` are shares of the side from the upper left."""

    def __init__(self, px: int, rng: random.Random) -> None:
        steps = (torch.arange(px * FINE) + 0.5) / (px * FINE)
        self.y, self.x = torch.meshgrid(steps, steps, indexing="ij")
        self.rng, self.picture = rng, torch.ones(3, px * FINE, px * FINE)

    def colour(self, about: Colour, spread: float = 0.06) -> torch.Tensor:
        """A colour near one, as [3, 1, 1]."""
        near = [part + self.rng.uniform(-spread, spread) for part in about]
        return torch.tensor(near).clamp(0, 1)[:, None, None]

    def fill(self, where: torch.Tensor, colour: torch.Tensor) -> None:
        """Paint where a mask says so."""
        self.picture = torch.where(where[None], colour, self.picture)

    def fade(self, top: Colour, bottom: Colour, end: float = 1.0) -> None:
        """From one colour at the top to another at `end`, and that from there on."""
        share = (self.y / end).clamp(0, 1)[None]
        self.picture = self.colour(top) * (1 - share) + self.colour(bottom) * share

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A disc, as of a sun."""
        away = (self.x - x).square() + (self.y - y).square()
        self.fill(away < radius ** 2, self.colour(colour, 0.02))

    def hills(self, height: float, swing: float, colour: Colour) -> None:
        """All below a wave that is about so high."""
        waves, line = [(self.rng.uniform(2, 9), self.rng.uniform(0, 6.3)) for _ in range(3)], height
        for speed, shift in waves:
            line = line + swing * torch.sin(speed * self.x + shift) / 3
        self.fill(self.y > line, self.colour(colour))

    def finished(self) -> torch.Tensor:
        """The picture, [3, px, px]."""
        return torch.nn.functional.avg_pool2d(self.picture, FINE).clamp(0, 1)


def sunset(canvas: Canvas) -> None:
    """A low sun over the sea."""
    canvas.fade((0.45, 0.3, 0.6), DUSK, 0.6)
    canvas.disc(canvas.rng.uniform(0.3, 0.7), 0.56, canvas.rng.uniform(0.1, 0.15),
                (1.0, 0.88, 0.45))
    canvas.fill(canvas.y > 0.62, canvas.colour((0.35, 0.25, 0.48)))


def sea(canvas: Canvas) -> None:
    """Water under a sky."""
    canvas.fade(SKY_HIGH, SKY_LOW, 0.45)
    canvas.fill(canvas.y > 0.45, canvas.colour(WATER))
    canvas.hills(0.7, 0.03, (0.24, 0.6, 0.87))


def beach(canvas: Canvas) -> None:
    """Sand before the sea."""
    sea(canvas)
    canvas.hills(0.68, 0.05, SAND)


def night(canvas: Canvas) -> None:
    """Stars in a dark sky."""
    canvas.fade(NIGHT, (0.14, 0.16, 0.38))
    for _ in range(canvas.rng.randint(14, 30)):
        canvas.disc(canvas.rng.random(), canvas.rng.random(), canvas.rng.uniform(0.006, 0.014),
                    (0.98, 0.96, 0.8))


def mountains(canvas: Canvas) -> None:
    """Peaks with snow behind a meadow."""
    canvas.fade(SKY_HIGH, SKY_LOW, 0.7)
    rock, snow = canvas.colour(ROCK), canvas.colour((0.95, 0.96, 0.99), 0.02)
    for centre in (0.2, 0.8, 0.5):
        top, steep = canvas.rng.uniform(0.18, 0.36), canvas.rng.uniform(1.1, 1.6)
        edge = top + steep * (canvas.x - centre - canvas.rng.uniform(-0.08, 0.08)).abs()
        canvas.fill(canvas.y > edge, rock * canvas.rng.uniform(0.85, 1.0))
        canvas.fill((canvas.y > edge) & (canvas.y < top + 0.13), snow)
    canvas.hills(0.74, 0.04, GRASS)


def meadow(canvas: Canvas) -> None:
    """Green hills."""
    canvas.fade(SKY_HIGH, SKY_LOW, 0.6)
    canvas.hills(0.52, 0.1, (0.5, 0.78, 0.42))
    canvas.hills(0.68, 0.08, GRASS)


def desert(canvas: Canvas) -> None:
    """Dunes under a hot sky."""
    canvas.fade((0.45, 0.72, 0.95), (0.99, 0.9, 0.7), 0.6)
    canvas.hills(0.54, 0.1, (0.93, 0.76, 0.45))
    canvas.hills(0.7, 0.1, (0.88, 0.66, 0.36))


def snow_field(canvas: Canvas) -> None:
    """Snow under a grey sky."""
    canvas.fade((0.6, 0.7, 0.82), (0.86, 0.9, 0.95), 0.6)
    canvas.hills(0.58, 0.08, (0.97, 0.98, 1.0))


def road(canvas: Canvas) -> None:
    """A road that runs to the horizon between meadows."""
    canvas.fade(SKY_HIGH, SKY_LOW, 0.5)
    canvas.fill(canvas.y > 0.45, canvas.colour(GRASS))
    depth, away = canvas.y - 0.45, (canvas.x - 0.5).abs()
    canvas.fill((depth > 0) & (away < 0.05 + 0.8 * depth), canvas.colour((0.36, 0.36, 0.4)))
    line = (depth > 0) & (away < 0.004 + 0.03 * depth) & ((depth * 12).frac() < 0.6)
    canvas.fill(line, canvas.colour((0.98, 0.94, 0.7)))


def forest(canvas: Canvas) -> None:
    """Firs side by side."""
    canvas.fade(SKY_HIGH, SKY_LOW, 0.6)
    canvas.fill(canvas.y > 0.72, canvas.colour(GRASS))
    for number in range(7):
        x, top = (number + 0.5) / 7 + canvas.rng.uniform(-0.04, 0.04), canvas.rng.uniform(0.2, 0.4)
        inside = (canvas.y > top) & ((canvas.x - x).abs() < 0.24 * (canvas.y - top))
        canvas.fill(inside & (canvas.y < 0.8), canvas.colour((0.13, 0.42, 0.24), 0.05))


def city(canvas: Canvas) -> None:
    """Houses with lit windows before the evening sky."""
    canvas.fade((0.25, 0.3, 0.55), (0.95, 0.7, 0.55))
    for number in range(8):
        top = canvas.rng.uniform(0.25, 0.6)
        inside = (canvas.x * 8 - number).abs() < 0.9
        canvas.fill(inside & (canvas.y > top), canvas.colour((0.2, 0.22, 0.32), 0.05))
        windows = ((canvas.x * 24).frac() > 0.5) & ((canvas.y * 18).frac() > 0.5)
        canvas.fill(inside & windows & (canvas.y > top + 0.05) & (canvas.y < 0.92),
                    canvas.colour((0.99, 0.87, 0.5), 0.03))


def two_colours(canvas: Canvas) -> list[torch.Tensor]:
    """Different grounds for a pattern."""
    chosen = canvas.rng.sample([*BACKGROUNDS.values()], 2)
    return [torch.tensor(colour)[:, None, None] / 255 for colour in chosen]


def stripes(canvas: Canvas) -> None:
    """Stripes of two colours."""
    first, second = two_colours(canvas)
    along = canvas.rng.choice([canvas.x, canvas.y, (canvas.x + canvas.y) / 2])
    canvas.picture = torch.where((along * canvas.rng.randint(4, 8)).frac()[None] < 0.5,
                                 first, second)


def checks(canvas: Canvas) -> None:
    """A chess board of two colours."""
    first, second = two_colours(canvas)
    count = canvas.rng.randint(4, 8)
    odd = ((canvas.x * count).long() + (canvas.y * count).long()) % 2 == 1
    canvas.picture = torch.where(odd[None], first, second)


def dots(canvas: Canvas) -> None:
    """Dots on a colour."""
    first, second = two_colours(canvas)
    count = canvas.rng.randint(4, 7)
    away = ((canvas.x * count).frac() - 0.5).square() + ((canvas.y * count).frac() - 0.5).square()
    canvas.picture = torch.where(away[None] < 0.08, first, second)


@dataclass(frozen=True)
class View:
    """How a view is drawn, what one calls it, and how one says that things are there; without that,
    things do not stand before it."""

    draw: Callable[[Canvas], None]
    names: tuple[str, ...]
    there: tuple[str, ...] = ()


VIEWS = {
    "sunset": View(sunset, ("sunset", "a sunset", "sunset over the sea"), ("{} at sunset",)),
    "sea": View(sea, ("the sea", "sea", "ocean"), ("{} on the sea", "{} in the sea")),
    "beach": View(beach, ("a beach", "beach", "sand and sea"),
                  ("{} on a beach", "{} on the beach")),
    "night": View(night, ("night sky", "a starry sky", "stars at night"), ("{} at night",)),
    "mountains": View(mountains, ("mountains", "a landscape with mountains"),
                      ("{} in the mountains", "{} before mountains")),
    "meadow": View(meadow, ("a meadow", "green hills", "a landscape"),
                   ("{} on grass", "{} in a meadow", "{} on a meadow")),
    "desert": View(desert, ("a desert", "desert", "dunes"), ("{} in the desert",)),
    "snow": View(snow_field, ("snow field", "a winter landscape"), ("{} in the snow",)),
    "road": View(road, ("a road", "road", "street"), ("{} on a road", "{} on the street")),
    "forest": View(forest, ("a forest", "forest", "woods"), ("{} in a forest", "{} in the woods")),
    "city": View(city, ("a city", "city at night", "skyline"), ("{} in a city", "{} in the city")),
    "stripes": View(stripes, ("stripes", "a striped pattern")),
    "checks": View(checks, ("a checkered pattern", "checkerboard")),
    "dots": View(dots, ("polka dots", "a dotted pattern")),
}


def drawn_view(name: str, seed: int, px: int) -> torch.Tensor:
    """A view [3, px, px] in 0..1: the same for the same seed."""
    canvas = Canvas(px, random.Random(seed))
    VIEWS[name].draw(canvas)
    return canvas.finished()
