"""From latents to pixels and back: the autoencoder, in tiles where memory is short for the whole.

Tiles are as large as memory allows and fade into each other, since what is computed near the edge
of one knows little of what is around: the statistics of its norms are those of the tile. The larger
the tiles, the closer the picture is to one that is decoded at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smalti.diffusion.request import working_bytes
from smalti.diffusion.submodels import Shape, Submodels
from smalti.diffusion.tiles import tiles
from smalti.families.autoencoder import scaling

Floats = np.ndarray
SIDES = (192, 160, 128, 112, 96, 80, 64, 48, 32)
"""Sides of a tile, in pixels of what convolutions make the latent of; the last one is taken where
memory is short for all."""
OVERLAP_SHARE = 0.25
"""Of a tile's side, as in the tiled decoder of diffusers."""


def decoded(submodels: Submodels, latent: Floats, directions: str = "",
            side: int | None = None) -> Floats:
    """Pixels f32[1, 3, height, width] in [-1, 1] of a latent [1, c, h, w] in model space.

    `directions` are those in which the picture can be repeated; such a one is decoded whole. Tiles
    of another `side` than memory asks for are for tests and comparisons.
    """
    vae = submodels.checkpoint.config.vae
    shift, factor = scaling(vae)
    unscaled = latent / factor + shift
    height, width = latent.shape[2:]
    side = fitting_side(submodels, height, width) if side is None else side
    if directions or side >= max(height, width):
        shape = (height, width, *([directions] if directions else []))
        return _only(submodels.run("vae", shape, latent=unscaled))

    def decode(part: Floats) -> Floats:
        return _only(submodels.run("vae", part.shape[2:], latent=part))

    tile_count(submodels, height, width, side)
    return in_tiles(decode, unscaled, side, vae.downscale, submodels.progress)


def in_tiles(decode: Callable[[Floats], Floats], latent: Floats, side: int, scale: int,
             progress: Callable[[str], None] = lambda text: None) -> Floats:
    """What `decode` makes of [1, c, h, w], `scale` times as large, in tiles of `side` pixels.

    >>> latent = np.arange(60.0).reshape(1, 1, 6, 10)
    >>> np.allclose(in_tiles(lambda part: part, latent, 4, 1), latent)
    True
    """
    rows, columns = (list(tiles(extent, side, overlap(side), scale=scale))
                     for extent in latent.shape[2:])
    result, done = np.zeros(0, np.float32), 0
    for top, bottom, down in rows:
        for left, right, across in columns:
            done += 1
            progress(f"tile {done} of {len(rows) * len(columns)}")
            part = decode(np.ascontiguousarray(latent[:, :, top:bottom, left:right]))
            if not result.size:  # the first tile tells how many channels there are
                shape = (1, part.shape[1], *(scale * extent for extent in latent.shape[2:]))
                result = np.zeros(shape, np.float32)
            part = part * down[:, None] * across
            result[:, :, scale * top:scale * bottom, scale * left:scale * right] += part
    return result


def fitting_side(submodels: Submodels, height: int, width: int, part: str = "vae") -> int:
    """The side of the largest tile that memory is enough for, in latent pixels; others than `part`
    of the model are evicted before from its device."""
    config = submodels.checkpoint.config
    factor = config.vae.downscale
    whole = working_bytes(config, factor * width, factor * height)
    residents = submodels.residents_of(part)
    residents.evict_for(whole, submodels.key(part))
    free = residents.free_bytes()
    if free is None or whole <= free:
        return max(height, width)
    sides = [side // config.vae.patch for side in SIDES]
    return next((side for side in sides if working_bytes(
        config, factor * min(side, width), factor * min(side, height)) <= free), sides[-1])


def expected(submodels: Submodels, height: int, width: int, directions: str = ""
             ) -> list[tuple[str, Shape]]:
    """The part that will decode latents of this size, and what it will be compiled for; none where
    memory is short for the whole as things stand, so that tiles are not known. Nothing is evicted.
    """
    config = submodels.checkpoint.config
    free = submodels.residents_of("vae").free_bytes()
    factor = config.vae.downscale
    if free is not None and free < working_bytes(config, factor * width, factor * height):
        return []
    return [("vae", (height, width, *([directions] if directions else [])))]


def tile_count(submodels: Submodels, height: int, width: int, side: int) -> int:
    """In how many tiles of a side a latent is decoded; it is said where these are several."""
    rows, columns = (len(list(tiles(extent, side, overlap(side)))) for extent in (height, width))
    if rows * columns > 1:
        pixels = side * submodels.checkpoint.config.vae.downscale
        submodels.say(f"memory was short for the picture at once: it was decoded in "
                      f"{rows * columns} tiles of {pixels} pixels")
    return rows * columns


def overlap(side: int) -> int:
    """The pixels that tiles share with their neighbours."""
    return max(1, int(OVERLAP_SHARE * side))


def _only(outputs: dict[str, Floats]) -> Floats:
    (found,) = outputs.values()
    return found
