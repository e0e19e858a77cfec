"""How far tiles that run in the order of their numbers have read and written memory.

What is not read any more may be overwritten with results:

    tiles of rows     0 1 2 │ 3 ...           the first strip is done: tiles 0 to 2
    result            ██████│                  written, all before element `written[2]`
    operand             ░░░░│▓▓▓▓▓▓▓▓▓▓▓       still read: from `read[3]` on, with a halo (░)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smalti.dataclass import dataclass
from smalti.kernel.form import Kernel, loads
from smalti.schedule.merge import Access, access, contraction_extents, store
from smalti.schedule.schedule import ContractionSchedule
from smalti.schedule.text import AnySchedule


@dataclass(frozen=True)
class TileWalk:
    """The reads and writes of tiles, which lie in `rows` rows of `tiles` each.

    All rows are gone through again for each block of panels: tile number n is in row
    n // tiles % rows. `read[buffer][row]` is the first element of a buffer that tiles of this or
    later rows read; `written[row]` is the element of the result just after the last one that tiles
    of this or earlier rows write. Elements are counted from the one at index 0.
    """

    rows: int
    tiles: int
    read: Mapping[str, np.ndarray]
    written: np.ndarray


def walk(kernel: Kernel, schedule: AnySchedule) -> TileWalk | None:
    """The walk of a kernel, or None if its tiles do not go through its operands in order.

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
    """The element that an access reads or writes where axes have the values `at`; 0 for others."""
    total: np.ndarray | int = found.offset
    for name, stride in found.strides:
        total = total + stride * at.get(name, 0)
    for stride, index in found.divided:
        inside = index.offset + sum(c * at.get(name, 0) for name, c in index.terms)
        total = total + stride * (inside // index.divisor)
    return total
