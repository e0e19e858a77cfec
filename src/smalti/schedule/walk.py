"""How the tiles of a kernel walk through memory, when they run in the order of their numbers.

Behind the tiles lies what is not read any more, and a result may be written over it:

    tiles of rows     0 1 2 │ 3 ...           of a strip: all tiles between two bars
    result            ██████│                  written before `written[2]`
    operand             ░░░░│▓▓▓▓▓▓▓▓▓▓▓       read from `read[3]` on, a halo of rows before its own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from smalti.kernel.form import Kernel, loads
from smalti.schedule.merge import Access, access, contraction_extents, store
from smalti.schedule.schedule import ContractionSchedule
from smalti.schedule.text import AnySchedule


@dataclass(frozen=True)
class TileWalk:
    """Tiles in `rows` rows of `tiles` each, and as often again as there are blocks of panels.

    Tile number n is in row n // tiles % rows. `read[buffer][row]` is the first element that tiles
    of this row and those behind it read of a buffer; `written[row]` the first element of the result
    that lies behind all that tiles of this row and those before it write. Elements count from the
    one at the index 0.
    """

    rows: int
    tiles: int
    read: Mapping[str, np.ndarray]
    written: np.ndarray


def walk(kernel: Kernel, schedule: AnySchedule) -> TileWalk | None:
    """The walk of a kernel, or None where its tiles do not go through its operands in order.

    >>> from smalti.kernel.build import Window, contraction
    >>> from smalti.kernel.form import Buffer, Load, axis
    >>> b, y, x, c, o = map(axis, "byxco")
    >>> buffers = [Buffer("x0", "input", (1, 8, 4, 16), (512, 64, 16, 1)),
    ...            Buffer("weight", "parameter", (16, 16, 3, 1), (48, 3, 1, 1)),
    ...            Buffer("out", "output", (1, 8, 4, 16), (512, 64, 16, 1))]
    >>> kernel = contraction(Window(1, 8, 4, 16, 8, 4, 16, rows=3, pad=(1, 0)),
    ...                      Load("x0", (b, y.plus(-1), x, c)), Load("sum", (b, y, x, o)), buffers)
    >>> found = walk(kernel, ContractionSchedule(1, 2, 4, 1, 16, 4, 1))
    >>> found.rows, found.read["x0"].tolist(), found.written.tolist()
    (4, [0, 64, 192, 320], [128, 256, 384, 512])
    """
    if not isinstance(schedule, ContractionSchedule) or (
            schedule.winograd and schedule.winograd.shared):
        return None
    e, s = contraction_extents(kernel), schedule
    patch, _, result = kernel.stages
    counts = [e.b // s.tile_b, -(-e.y // s.tile_y), -(-e.x // s.tile_x)]
    tiles = counts.pop() if e.y > 1 else 1
    number = np.arange(np.prod(counts))
    places = np.unravel_index(number, counts)
    first = {name: place * tile
             for name, place, tile in zip("byx", places, (s.tile_b, s.tile_y, s.tile_x))}
    first.setdefault("x", 0 * number)
    last: dict[str, np.ndarray | int] = {
        name: np.minimum(first[name] + tile, extent) - 1 for name, tile, extent in (
            ("b", s.tile_b, e.b), ("y", s.tile_y, e.y), ("x", e.x if tiles > 1 else s.tile_x, e.x))}
    last["o"] = e.o - 1
    begin = {**first, "y": first["y"] * e.stride_y, "x": first["x"] * e.stride_x}
    read: dict[str, np.ndarray] = {}
    for stage, origin in ((patch, begin), (result, first)):
        for load in loads(stage.value):
            if load.buffer == "sum":
                continue
            found = access(kernel, load)
            if found.indirect or any(stride < 0 for _, stride in found.strides):
                return None
            low = np.maximum(_element(found, origin), 0) + 0 * number
            low = np.minimum.accumulate(low[::-1])[::-1]
            read[load.buffer] = np.minimum(read.get(load.buffer, low), low)
    out = store(kernel, result.axes, "out")
    if any(stride < 0 for _, stride in out.strides):
        return None
    written = np.maximum.accumulate(_element(out, last) + 1 + 0 * number)
    return TileWalk(len(number), tiles, read, written)


def _element(found: Access, at: Mapping[str, np.ndarray | int]) -> np.ndarray | int:
    """The element that is read or written at a place, 0 along axes that are not named."""
    total: np.ndarray | int = found.offset
    for name, stride in found.strides:
        total = total + stride * at.get(name, 0)
    for stride, index in found.divided:
        inside = index.offset + sum(c * at.get(name, 0) for name, c in index.terms)
        total = total + stride * (inside // index.divisor)
    return total
