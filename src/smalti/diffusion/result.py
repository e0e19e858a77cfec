"""What a pipeline gives: steps while it works, then pictures and how they came about."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from os import PathLike
from pathlib import Path

import numpy as np
from PIL import Image

from smalti.dataclass import dataclass
from smalti.diffusion.caching import Saved
from smalti.diffusion.made_picture import MadePicture, numbered, save_whole
from smalti.diffusion.request import Request
from smalti.errors import first_of


@dataclass(repr=False)
class Result:
    """Pictures and how they came about.

    `images` are PIL images, RGB or of some models RGBA, that carry their settings into files,
    `seeds` one a picture, `texts` one A1111 `parameters` text a picture. `timings` are seconds of
    "prepare" (compiling, loading), "encode", "text", "denoise", "decode". `warnings` say what was
    done otherwise than asked, `saved` which evaluations of the model were left out, `notes` which
    defaults are not those of the model alone, and why.
    """

    images: list[MadePicture]
    seeds: tuple[int, ...]
    texts: list[str]
    parameters: Request
    timings: dict[str, float]
    warnings: list[str] = field(default_factory=list)
    saved: Saved = field(default_factory=Saved)
    notes: Sequence[str] = ()

    def save(self, path: str | PathLike[str]) -> list[Path]:
        """Write all pictures, each with its settings; the files that were written.

        Where there are several, `%03d` in the name becomes the number of each, from 1, and without
        it the name ends in `-001` and so on. The ending says the format: .png, .jpg, .webp, ...
        Raises OutputError for another ending, and when the operating system refuses.
        """
        paths = numbered(os.fsdecode(path), len(self.images))
        for picture, each in zip(self.images, paths, strict=True):
            save_whole(picture, each)
        return paths

    def __repr__(self) -> str:
        sizes = first_of(f"{image.width}x{image.height}, seed {seed}"
                         for image, seed in zip(self.images, self.seeds, strict=True))
        more = f", {len(self.warnings)} warnings" * bool(self.warnings)
        given, seconds = self.parameters, sum(self.timings.values())
        return (f"<Result of {given.prompt!r:.60}: {sizes}; {given.steps} steps of {given.sampler} "
                f"({given.noise}) by {given.model} in {seconds:.1f} s{more}>")


@dataclass(repr=False)
class Step:
    """One denoising step is done: number `index` (from 0) of `total`, in `seconds`.

    `sigma` is the noise that is left; `latents` are f32[batch, 4, height / 8, width / 8], and
    `denoised` is what the model takes them for, without noise: see `Preview`. The last step has the
    `result`.
    """

    index: int
    total: int
    sigma: float
    seconds: float
    latents: np.ndarray
    denoised: np.ndarray
    result: Result | None = None

    def __repr__(self) -> str:
        last = ", with the result" * (self.result is not None)
        return (f"<Step {self.index + 1} of {self.total}: noise {self.sigma:.4g} is left, "
                f"{self.seconds:.2f} s, latents {list(self.latents.shape)}{last}>")


def to_image(pixels: np.ndarray) -> Image.Image:
    """A picture of f32[3, height, width] in [-1, 1], RGB, or of four channels, the last of which is
    opacity, RGBA; what is beyond is clipped.

    >>> to_image(np.zeros((3, 1, 2), np.float32)).getpixel((0, 0))
    (128, 128, 128)
    """
    scaled = np.clip(pixels * np.float32(0.5) + np.float32(0.5), 0, 1) * np.float32(255)
    return Image.fromarray(scaled.round().astype(np.uint8).transpose(1, 2, 0))


class Stopwatch:
    """Adds up seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time what is done inside, under `name`."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
