"""Colours: HSV and back, the main hue of a picture, and pictures in another hue."""

from __future__ import annotations

import torch
from presets import HUES

COLOURED_MIN = 0.25
"""The share of a picture that has to have a colour, so that painting it is seen."""
NEAR = 50
"""Degrees about a hue in which colours are taken for shades of it."""
OTHER_MIN = 20
"""Degrees between hues that have different names."""
SEEN_MIN = 0.1
"""How far painting has to move what is solid of a picture in RGB (0..1, the mean distance), so that
one would call it by the hue: a duck whose beak alone is painted moves by 0.07 and a black heart,
nearly black in any hue, by 0.07; half of the short list moves by 0.46 or more."""


def to_hsv(rgb: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RGB in 0..1 (last axis) to hue in degrees, saturation and value."""
    red, green, blue = rgb.unbind(-1)
    value, low = rgb.max(-1).values, rgb.min(-1).values
    span = (value - low).clamp_min(1e-6)
    hue = torch.where(
        value == red, ((green - blue) / span) % 6,
        torch.where(value == green, (blue - red) / span + 2, (red - green) / span + 4)) * 60
    saturation = torch.where(
        value > 1e-4, (value - low) / value.clamp_min(1e-4), torch.zeros_like(value))
    return hue, saturation, value


def from_hsv(hue: torch.Tensor, saturation: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Hue in degrees, saturation and value to RGB in 0..1 (last axis)."""
    def channel(number: int) -> torch.Tensor:
        place = (number + hue / 60) % 6
        return value - value * saturation * torch.minimum(place, 4 - place).clamp(0, 1)
    return torch.stack([channel(5), channel(3), channel(1)], -1)


def turn(hue: torch.Tensor, origin: float) -> torch.Tensor:
    """The signed angle from `origin` to `hue`, in -180..180 degrees."""
    return (hue - origin + 180) % 360 - 180


def main_hue(rgba: torch.Tensor) -> tuple[str, float] | None:
    """The one hue that rules a picture (H, W, 4 in 0..1): its name and angle, if there is one."""
    hue, saturation, value = to_hsv(rgba[..., :3])
    solid = rgba[..., 3] > 0.5
    hues = hue[solid & (saturation > 0.35) & (value > 0.25)]
    if len(hues) < max(1, 0.5 * int(solid.sum())):
        return None
    shares = {name: (turn(hues, angle).abs() < 22).float().mean().item()
              for name, angle in HUES.items()}
    name = max(shares, key=shares.get)
    if shares[name] <= 0.72:
        return None
    near = turn(hues, HUES[name])
    return name, HUES[name] + near[near.abs() < 30].median().item()


def shift_hue(rgb: torch.Tensor, degrees: float) -> torch.Tensor:
    """All hues of a picture turned by an angle."""
    hue, saturation, value = to_hsv(rgb)
    return from_hsv((hue + degrees) % 360, saturation, value)


def commonest_hue(rgba: torch.Tensor) -> float | None:
    """The commonest hue of a picture in degrees; None where too little of it has a colour."""
    hue, saturation, value = to_hsv(rgba[..., :3])
    solid = rgba[..., 3] > 0.5
    bright = solid & (saturation > 0.3) & (value > 0.2)
    if int(bright.sum()) < COLOURED_MIN * int(solid.sum()):
        return None
    counts = torch.bincount((hue[bright] / 5).long(), minlength=72).float()
    smooth = sum(counts.roll(shift) for shift in range(-3, 4))
    commonest = float(smooth.argmax()) * 5 + 2.5
    away = turn(hue, commonest)
    return commonest + float(away[bright & (away.abs() <= NEAR)].median())


def paints(rgba: torch.Tensor) -> tuple[str, ...]:
    """The hues in which a picture looks another one."""
    own = commonest_hue(rgba)
    if own is None:
        return ()
    some = rgba[::2, ::2]  # a quarter of the pixels tells it, in a quarter of the time
    solid = some[..., 3] > 0.5

    def moved(name: str) -> float:
        return float((repaint(some, name) - some[..., :3]).norm(dim=-1)[solid].mean())

    return tuple(name for name, angle in HUES.items()
                 if abs((angle - own + 180) % 360 - 180) > OTHER_MIN and moved(name) >= SEEN_MIN)


def repaint(rgba: torch.Tensor, name: str) -> torch.Tensor:
    """The RGB of a picture whose commonest hue, and what is near it, became the named one.

    Windows, leaves and wheels of another hue keep theirs.
    """
    centre = commonest_hue(rgba)
    if centre is None:
        return rgba[..., :3]
    hue, saturation, value = to_hsv(rgba[..., :3])
    painted = from_hsv((hue + HUES[name] - centre) % 360, saturation, value)
    return torch.where((turn(hue, centre).abs() > NEAR)[..., None], rgba[..., :3], painted)
