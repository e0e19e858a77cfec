"""Stores the results of contractions that read the same operand side by side, to save memory.

A result may be written over an operand that nothing reads any more. If two convolutions read an
operand, neither may write over it before the other has read it. But if they are computed in turns,
a strip of rows of each, both can, provided that the channels of both results for a pixel lie where
the operand's channels of that pixel were:

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
    """Groups of contractions whose results can be stored side by side, as region numbers in
    `found`.

    Each group has two or more, which are the last to read some operand and can be moved to run
    directly one after the other.
    """
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
    """The partition `found` with the siblings `numbers` moved one after the other and their results
    stored side by side; and, for each region of the new partition, its number in `found`."""
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
    """(b, y, x, dtype) of a result [b, y, x, o] that fills its storage densely, channels innermost;
    None for any other."""
    b, y, x, o = out.shape
    dense = (y * x * o, x * o, o, 1)
    whole = out.storage.size == math.prod(out.shape) and out.offset == 0
    if not whole or any(n > 1 and s != d for n, s, d in zip(out.shape, out.strides, dense,
                                                            strict=True)):
        return None
    return b, y, x, out.storage.dtype


def _widened(view: View, count: int, total: int, at: int) -> View | None:
    """`view`, of an image of `count` channels, once these are channels `at` to `at + count` of an
    image of `total` channels; None if one of its axes runs across pixels and channels.

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
