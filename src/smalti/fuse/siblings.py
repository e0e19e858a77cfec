"""Results of one operand, side by side: together they can take the place that it leaves.

Of an operand that two convolutions read, neither result may be written over it before the other
one has read it. Computed in turns, a strip of rows of each, they may, where every pixel of both
lies where its pixel of the operand was:

    x  [y, x, 256]   ████████████            h [y, x, 128]   ████      s [y, x, 128]   ████
    both             ██████│█████│           (h, s) [y, x, 128 + 128], strides (256 w, 256, 1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from smalti.fuse.region import HostRegion, Partition, Region
from smalti.fuse.view import Storage, View


def siblings(found: Partition) -> list[tuple[int, ...]]:
    """Groups of two or more contractions, by their numbers in `found`, that are the last to read an
    operand, and that could run one right behind the other with results side by side."""
    readers: dict[Storage, list[int]] = {}
    written: dict[Storage, int] = {}
    views: dict[Storage, list[View]] = {}
    for number, region in enumerate(found.regions):
        results = {"out"} if isinstance(region, HostRegion) else {
            buffer.name for buffer in region.kernel.buffers if buffer.role == "output"}
        for name, view in region.views.items():
            views.setdefault(view.storage, []).append(view)
            if name in results:
                written[view.storage] = number
            elif view.storage.kind == "arena" and number not in readers.get(view.storage, ()):
                readers.setdefault(view.storage, []).append(number)
    given = {view.storage for view in found.outputs.values()}

    def movable(number: int, first: int) -> bool:
        region = found.regions[number]
        if isinstance(region, HostRegion) or region.kernel.form != "contraction" \
                or region.when != found.regions[first].when:
            return False
        out, pixels = region.views["out"], _pixels(found.regions[first].views["out"])
        return out.storage not in given and pixels is not None and _pixels(out) == pixels and all(
            _widened(view, out.shape[3], out.shape[3], 0) for view in views[out.storage]) and all(
            written.get(view.storage, -1) < first
            for name, view in region.views.items() if name != "out")

    groups = []
    for numbers in readers.values():
        for at in range(len(numbers) - 1):
            if all(movable(number, numbers[at]) for number in numbers[at:]):
                groups.append(tuple(numbers[at:]))
                break
    return groups


def side_by_side(found: Partition, numbers: Sequence[int]) -> tuple[Partition, list[int]]:
    """`found` with the regions `numbers`, which are siblings, one behind the other and their
    results side by side; and the number in `found` of each of its regions."""
    outs = [found.regions[number].views["out"] for number in numbers]
    channels = [out.shape[3] for out in outs]
    total = sum(channels)
    storage = Storage("arena", sum(out.storage.size for out in outs), outs[0].storage.dtype)
    moves = {out.storage: (count, at) for out, count, at in zip(
        outs, channels, accumulate(channels, initial=0), strict=False)}

    def moved(region: Region | HostRegion) -> Region | HostRegion:
        views = dict(region.views)
        for name, view in region.views.items():
            if view.storage in moves:
                count, at = moves[view.storage]
                views[name] = replace(_widened(view, count, total, at), storage=storage)
        if isinstance(region, HostRegion):
            return replace(region, views=views)
        buffers = tuple(replace(b, strides=views[b.name].strides) if b.name in views else b
                        for b in region.kernel.buffers)
        return replace(region, views=views, kernel=replace(region.kernel, buffers=buffers))

    order = [n for n in range(len(found.regions)) if n not in numbers[1:]]
    behind = order.index(numbers[0]) + 1
    order[behind:behind] = numbers[1:]
    return replace(found, regions=[moved(found.regions[n]) for n in order]), order


def _pixels(out: View) -> tuple | None:
    """Extents of a result [b, y, x, o] that fills its storage pixel by pixel, and its dtype; None
    for any other."""
    b, y, x, o = out.shape
    dense = (y * x * o, x * o, o, 1)
    whole = out.storage.size == math.prod(out.shape) and out.offset == 0
    if not whole or any(n > 1 and s != d for n, s, d in zip(out.shape, out.strides, dense,
                                                            strict=True)):
        return None
    return b, y, x, out.storage.dtype


def _widened(view: View, count: int, total: int, at: int) -> View | None:
    """A view of pixels of `count` channels when these are `at` to `at + count` of `total`; None
    where an axis runs through pixels and channels.

    >>> image = View(Storage("arena", 96), 0, (1, 4, 3, 8), (96, 1, 32, 4))
    >>> wide = _widened(image, 4, 10, 2)
    >>> wide.offset, wide.strides
    (2, (240, 1, 80, 10))
    """
    inside = view.offset % count + sum(
        (n - 1) * s for n, s in zip(view.shape, view.strides, strict=True) if s % count)
    if inside >= count:
        return None
    strides = tuple(s if s % count else s // count * total for s in view.strides)
    return replace(view, offset=view.offset // count * total + view.offset % count + at,
                   strides=strides)
