"""Larger pictures by a network of the ESRGAN family, tile by tile.

    upscaler = Upscaler.load("RealESRGAN_x4plus.pth")
    upscaler(Image.open("small.png")).save("large.png")
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import field
from pathlib import Path

import numpy as np
from PIL import Image

from smalti.checkpoint import Companion, open_companion
from smalti.dataclass import dataclass
from smalti.diffusion.residents import Residents, Wanted, ignore
from smalti.diffusion.tiles import tiles
from smalti.errors import InputError
from smalti.fetch import located
from smalti.models import RrdbConfig, SrvggConfig, upscaler_graph
from smalti.runtime import Program, compile_graph
from smalti.runtime.choice import chosen

Floats = np.ndarray

TILE, OVERLAP = 192, 32
"""Pixels of the picture that are computed at once along a side, and that two neighbours share."""
TILE_MIN, TILE_MAX = 2 * OVERLAP, 4096
PIXELS_MAX = 1 << 28
"""Of the result, which takes 3.2 GB as f32 then; PIL warns of more than 179 million."""
FACTOR_MAX = 16.0
"""A network of 4 twice over: beyond it nothing but resizing adds pixels."""


@dataclass
class Upscaler:
    """A network that enlarges pictures, ready for any; `progress` is called with a line of text
    before anything that may take over a second, `at_tile` with the number of each tile, from 1 on,
    and of all of them. `residents` hold its program, for the picture
    `user`; `say` hears what was done because memory was short. Raises InputError for a network
    that is no upscaler."""

    net: Companion
    precision: str = "auto"
    threads: int | None = None
    progress: Callable[[str], None] = ignore
    device: str = "cpu"
    residents: Residents = field(default_factory=Residents)
    user: Hashable = field(default_factory=object)
    say: Callable[[str], None] = ignore
    at_tile: Callable[[int, int], None] = lambda tile, tiles: None

    @classmethod
    def load(cls, path: str | Path, precision: str = "auto", threads: int | None = None,
             progress: Callable[[str], None] = ignore, device: str = "auto") -> Upscaler:
        """Open an upscaler in a file of any format, or by its name: ESRGAN, Real-ESRGAN, or its
        compact network.

        Raises CheckpointError for anything else, InputError for an unknown device.
        """
        return cls(open_companion(located(path, None, progress)), precision, threads, progress,
                   chosen(device))

    def __post_init__(self) -> None:
        config = self.net.config
        if not isinstance(config, RrdbConfig | SrvggConfig):
            raise InputError(f"{self.net.path} holds a "
                             f"{type(config).__name__.removesuffix('Config')}; expected an "
                             f"upscaler of the ESRGAN family")
        self.config = config

    @property
    def name(self) -> str:
        """The name of its file."""
        return Path(self.net.path).stem

    @property
    def scale(self) -> int:
        """Pixels of the result per pixel of a picture, along one side."""
        return int(self.config.scale)

    def __call__(self, image: Image.Image, factor: float | None = None,
                 tile: int = TILE) -> Image.Image:
        """`image` enlarged by the network, then resized where another `factor` is asked for.

        What is transparent stays so. No more than `tile` pixels along a side are computed at once;
        tiles fade into each other. Raises InputError for a size, factor or tile out of range.
        """
        factor = float(self.scale) if factor is None else factor
        width, height = image.size
        size = ((round(width * factor), round(height * factor)) if 0 < factor <= FACTOR_MAX
                else (0, 0))
        if min(size) < 1:
            raise InputError(f"a picture of {width} x {height} cannot be made {factor:g} times as "
                             f"large; expected more than 0, at most {FACTOR_MAX:.0f}")
        if not TILE_MIN <= tile <= TILE_MAX:
            raise InputError(f"tiles of {tile} pixels are asked for; expected {TILE_MIN} to "
                             f"{TILE_MAX}")
        if max(width * height * self.scale**2, size[0] * size[1]) > PIXELS_MAX:
            raise InputError(f"a picture of {width} x {height} would become one of more than "
                             f"{PIXELS_MAX >> 20} million pixels")
        mode = "L" if self.config.image_channels == 1 else "RGB"
        colours = np.asarray(image.convert(mode), np.float32).reshape(height, width, -1) / 255
        large = self._enlarged(colours.transpose(2, 0, 1), tile)
        pixels = np.rint(255 * np.clip(large, 0, 1)).astype(np.uint8)
        made = Image.fromarray(pixels[0] if mode == "L" else pixels.transpose(1, 2, 0))
        made = made.resize(size, Image.Resampling.LANCZOS) if made.size != size else made
        if "A" in image.getbands() or "transparency" in image.info:
            alpha = image.convert("RGBA").getchannel("A")
            made.putalpha(alpha.resize(size, Image.Resampling.LANCZOS))
        return made

    def _enlarged(self, colours: Floats, tile: int) -> Floats:
        """colours f32[c, h, w] in [0, 1] -> f32[c, s h, s w]."""
        channels, height, width = colours.shape
        step, s = self.config.unshuffle, self.scale
        padded = np.pad(colours, ((0, 0), (0, -height % step), (0, -width % step)), mode="edge")
        rows, columns = (list(tiles(extent, tile - tile % step, OVERLAP, step, s))
                         for extent in padded.shape[1:])
        result = np.zeros((channels, *(s * extent for extent in padded.shape[1:])), np.float32)
        for number, (top, bottom, down) in enumerate(rows):
            for place, (left, right, across) in enumerate(columns):
                tile, count = number * len(columns) + place + 1, len(rows) * len(columns)
                self.progress(f"tile {tile} of {count}")
                self.at_tile(tile, count)
                part = self._tile(padded[:, top:bottom, left:right])
                part *= down[:, None] * across
                result[:, s * top:s * bottom, s * left:s * right] += part
        return result[:, :s * height, :s * width]

    def _tile(self, colours: Floats) -> Floats:
        image = np.ascontiguousarray(colours[None])
        with self.residents.turn:
            return self._program(colours.shape[1:]).run_checked({"image": image})["image"][0]

    def _program(self, shape: tuple[int, ...]) -> Program:
        """The program for tiles of a shape, with its weights."""
        net = self.net

        def build(like: Program | None) -> Program:
            graph = upscaler_graph(self.config, 1, *shape)
            return compile_graph(graph, precision=self.precision, threads=self.threads,
                                 weights=net.held(graph), like=like, device=self.device)

        return self.residents.ready(Wanted(self._key, "the upscaler", shape, net, build,
                                           user=self.user, say=self.say)).program

    @property
    def _key(self) -> Hashable:
        return self.net, "upscaler"

    def end(self) -> None:
        """It is not needed for a while."""
        self.residents.done(self._key, self.user)
