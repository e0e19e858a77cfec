"""Art of three shapes that nothing has to be fetched for: as pieces of scenes, and packed as the
data of a training run. The files of `training` have to be importable by their names alone."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scene import Art

LABELS = ("square", "disc", "bar")


def inside(label: str, px: int) -> torch.Tensor:
    """1 where a shape is, [px, px]."""
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, px)] * 2, indexing="ij")
    return {"square": torch.maximum(x.abs(), y.abs()) < 0.8,
            "disc": x.square() + y.square() < 0.7,
            "bar": (y.abs() < 0.25) & (x.abs() < 0.9)}[label].float()


class Shapes(Art):
    """Red shapes, which can be painted blue or green."""

    def __init__(self) -> None:
        self.px, self.labels = 128, list(LABELS)
        self.hues = dict.fromkeys(self.labels, ("red", 0.0))
        self.paints = dict.fromkeys(self.labels, ("blue", "green"))

    def has(self, style: str, label: str) -> bool:
        return True

    def piece(self, style: str, label: str, hue: str | None) -> torch.Tensor:
        where = inside(label, 128)
        rgb = torch.tensor({None: (1.0, 0.1, 0.1), "blue": (0.1, 0.3, 1.0)}.get(
            hue, (0.2, 0.8, 0.2)))
        return torch.cat([rgb[:, None, None] * where, where[None]])


def packed(folder: Path, px: int = 64) -> Path:
    """The shapes in three sets, as `pack_data.py` packs pictures, with their concepts."""
    sets = {"fluent3d": (255, 40, 40), "fluentflat": (40, 40, 255), "noto": (40, 200, 60)}
    blobs, offsets = [], [0]
    for colour in sets.values():
        for label in LABELS:
            alpha = (inside(label, px) * 255).byte().numpy()
            rgba = np.dstack([np.broadcast_to(np.uint8(colour), (px, px, 3)), alpha])
            file = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(rgba)).save(file, "WEBP", lossless=True)
            blobs.append(file.getvalue())
            offsets.append(offsets[-1] + len(blobs[-1]))
    path, count = folder / "shapes.npz", len(LABELS)
    np.savez(path, blob=np.frombuffer(b"".join(blobs), np.uint8), off=np.array(offsets),
             style=np.repeat(np.arange(3, dtype=np.int16), count),
             concept=np.tile(np.arange(count, dtype=np.int32), 3), px=px, styles=[*sets])
    concepts = [{"label": label, "tags": [label], "shortcodes": [label], "group": "objects",
                 "subgroup": "shape", "gender_variant": False} for label in LABELS]
    path.with_name("concepts.json").write_text(json.dumps(concepts), encoding="utf-8")
    return path


def listed(folder: Path) -> Path:
    """A short list of the shapes."""
    path = folder / "list.txt"
    path.write_text("square | 2 | square, box | blue\ndisc | 1 | disc, round thing\n"
                    "bar | 1 | bar\n", encoding="utf-8")
    return path
