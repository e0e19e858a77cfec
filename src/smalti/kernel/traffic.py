"""How much of its buffers a kernel reads and writes: a lower bound of traffic for any schedule."""

from __future__ import annotations

import math

from smalti.kernel.form import Kernel, loads


def touched(kernel: Kernel) -> dict[str, int]:
    """How many different elements of each buffer, but for local ones, the kernel reads or writes.

    Elements repeated by strides of 0 count once. A stage reads at most one element for each of its
    points, so a table counts with no more than the rows that are looked up.

    >>> from smalti.kernel.form import Buffer, Load, Stage, axis
    >>> stage = Stage("out", (("i", 3), ("j", 4)), Load("x", (axis("j"),)))
    >>> buffers = Buffer("x", "input", (4,), (1,)), Buffer("out", "output", (3, 4), (4, 1))
    >>> touched(Kernel("map", buffers, (stage,)))
    {'x': 4, 'out': 12}
    """
    points: dict[str, int] = {}
    for stage in kernel.stages:
        count = math.prod(extent for _, extent in (*stage.axes, *stage.reduced))
        for name in {load.buffer for load in loads(stage.value)}:
            points[name] = points.get(name, 0) + count
    found = {}
    for buffer in kernel.buffers:
        if buffer.role != "local":
            size = math.prod(n for n, stride in zip(buffer.shape, buffer.strides) if stride)
            found[buffer.name] = min(size, points.get(buffer.name, size))
    return found
