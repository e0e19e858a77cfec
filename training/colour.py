"""Colours: HSV and back, the main hue of a picture, and pictures in another hue."""

from __future__ import annotations

import torch
from presets import HUES


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


def repaint(rgba: torch.Tensor, name: str) -> torch.Tensor:
    """The RGB of a picture whose commonest hue, and what is near it, became the named one.

    Windows, leaves and wheels of another hue keep theirs.
    """
    hue, saturation, value = to_hsv(rgba[..., :3])
    bright = (rgba[..., 3] > 0.5) & (saturation > 0.3) & (value > 0.2)
    counts = torch.bincount((hue[bright] / 5).long(), minlength=72).float()
    smooth = sum(counts.roll(shift) for shift in range(-3, 4))
    commonest = float(smooth.argmax()) * 5 + 2.5
    away = turn(hue, commonest)
    other = away.abs() > 50
    centre = commonest + away[bright & ~other].median()
    painted = from_hsv((hue + HUES[name] - centre) % 360, saturation, value)
    return torch.where(other[..., None], rgba[..., :3], painted)
