"""The search space of schedules on a CPU: all schedules of a kernel that are worth trying.

Illegal and wasteful schedules are left out: tiles, panels and chunks divide extents evenly, and
what a tile stages fits within a few second-level caches. Without `algorithms` all of them give the
same bytes (see arithmetic.py); with it the space has other algorithms and orders of sums, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, product
from typing import Any

from smalti.errors import IllegalSchedule
from smalti.kernel.form import STORED_BYTES, Kernel
from smalti.schedule.arithmetic import arithmetic
from smalti.schedule.choose import choose, planar, unstaged
from smalti.schedule.merge import Extents, contraction_extents, map_axes, weights_batched
from smalti.schedule.schedule import (
    AttentionSchedule,
    ContractionSchedule,
    DepthwiseSchedule,
    Direct,
    InPlace,
    Limits,
    MapSchedule,
    MomentsSchedule,
    ReductionSchedule,
    Schedule,
)
from smalti.schedule.winograd import carried_rows, even

DECISIONS = ("micro", "tile", "panels", "chunk")
"""The decisions in which schedules of a contraction may differ."""
TILE_CACHES = 2
"""A staged patch and its sums may be as large as so many second-level caches."""
BLOCKS = (16, 24, 32, 48, 64, 96, 128)
"""Numbers of Winograd blocks in a tile that are tried."""
PIXELS = (14, 28, 42, 56, 84, 112, 128, 168, 256, 512, 1024)
"""Numbers of pixels in a tile of a direct contraction that are tried: powers of 2, and multiples of
14, the rows of a register tile of AVX-512."""
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of equal parts into which an extent is cut."""
GRAINS = (1 / 8, 1 / 4, 1 / 2, 2, 4, 8)
"""Grains that are tried, as multiples of the one that `choose` takes."""


def space(kernel: Kernel, limits: Limits, first: Schedule,
          algorithms: bool = False) -> list[Schedule]:
    """All schedules of `kernel` to try, each once: `first`, which it has now, and then the others.

    >>> from smalti.kernel.form import Buffer, Load, Stage, axis
    >>> x, out = Buffer("x", "input", (8, 8), (16, 1)), Buffer("out", "output", (8, 8), (8, 1))
    >>> copy = Stage("out", (("i", 8), ("j", 8)), Load("x", (axis("i"), axis("j"))))
    >>> found = space(Kernel("map", (x, out), (copy,)), Limits(8, 16), MapSchedule(8))
    >>> found[0], MapSchedule(4) in found, MapSchedule(8, unroll=4) in found
    (MapSchedule(grain=8, unroll=2, inner=1), True, True)
    """
    every: Iterable[Schedule]
    if isinstance(first, ContractionSchedule):
        every = _contractions(kernel, limits, first, algorithms)
    else:
        every = _SPACES[type(first)](kernel, limits, first)
    return [first, *_legal(kernel, limits, first, every, algorithms)]


def around(kernel: Kernel, limits: Limits, now: Schedule,
           decisions: Collection[str] = DECISIONS) -> list[Schedule]:
    """The neighbours of the schedule `now` of a contraction: schedules of the same arithmetic that
    differ in one of the `decisions`.

    These are the micro-kernel, the tile of pixels, the block of panels and the chunk of channels.
    For other forms all schedules of the space are given.
    """
    if not isinstance(now, ContractionSchedule):
        return _legal(kernel, limits, now, _SPACES[type(now)](kernel, limits, now), False)
    e = contraction_extents(kernel)
    every = chain.from_iterable(
        _winograd(e, limits, now, {one}) if now.winograd else _direct(kernel, e, limits, now, {one})
        for one in decisions)
    return _legal(kernel, limits, now, every, False)


def _legal(kernel: Kernel, limits: Limits, first: Schedule, every: Iterable[Schedule],
           algorithms: bool) -> list[Schedule]:
    """The schedules of `every` that the CPU can run, without `first`; only those of its arithmetic
    unless `algorithms`."""
    found: dict[Schedule, None] = {}
    wanted = arithmetic(kernel, first)
    for schedule in every:
        if schedule != first and (algorithms or arithmetic(kernel, schedule) == wanted):
            try:
                if hasattr(schedule, "check"):
                    schedule.check(limits)
            except IllegalSchedule:
                continue
            found[schedule] = None
    return list(found)


def _parts(extent: int, most: int = 1 << 31) -> list[int]:
    """Sizes of even tiles of an extent: all of it, a half, a third …, at most `most`."""
    return sorted({-(-extent // n) for n in PARTS if -(-extent // n) <= most}, reverse=True)


def _grains(now: int, most: int) -> list[int]:
    """Grains around the present one that divide `most` steps evenly."""
    return sorted({even(most, max(1, min(most, int(now * share)))) for share in GRAINS}
                  | {now})


# ---------------------------------------------------------------------- contractions


def _contractions(kernel: Kernel, limits: Limits, first: ContractionSchedule,
                  algorithms: bool) -> Iterator[ContractionSchedule]:
    e = contraction_extents(kernel)
    known = {first.winograd_size: first}
    if algorithms:
        precision = "bf16" if "bf16" in (first.weights, first.dtype) else "f32"
        for size in (0, 2, 4):
            other = choose(kernel, limits, precision, size)
            assert isinstance(other, ContractionSchedule), other
            known.setdefault(other.winograd_size, other)
    for now in known.values():
        if now.winograd:
            yield from _winograd(e, limits, now, DECISIONS)
        else:
            yield from _direct(kernel, e, limits, now, DECISIONS)


def _direct(kernel: Kernel, e: Extents, limits: Limits, now: ContractionSchedule,
            vary: Collection[str]) -> Iterator[ContractionSchedule]:
    """Direct schedules that differ from `now` in the decisions `vary`."""
    one_line, step = weights_batched(kernel), now.step
    whole = -(-e.c // step) * step
    chunks = {now.chunk} if "chunk" not in vary else {now.chunk, whole} | {
        n for n in range(limits.lanes, e.c + 1, limits.lanes) if e.c % n == 0 and n % step == 0}
    most = limits.rows(now.vectors, 1)
    micros = _micro(e, limits, now) if "micro" in vary else [(now.vectors, max(now.rows, most))]
    tiles = {(now.tile_b, now.tile_y, now.tile_x)}
    if "tile" in vary:
        tiles.update(*(_tiles(e, pixels, one_line) for pixels in PIXELS))
    for (vectors, rows), (tile_b, tile_y, tile_x) in product(micros, sorted(tiles)):
        panels = -(-e.o // (vectors * limits.lanes))
        tile = replace(now, tile_b=tile_b, tile_y=tile_y, tile_x=tile_x, vectors=vectors,
                       rows=min(rows, tile_x), algorithm=Direct())
        blocks = {min(now.panels, panels), *(_parts(panels) if "panels" in vary else ())}
        for block in sorted(blocks):
            staged = not isinstance(now.algorithm, InPlace)
            for chunk in chunks if staged or "chunk" in vary else ():
                one = replace(tile, panels=block, chunk=chunk,
                              unroll=math.gcd(4, chunk // (step // now.unroll)))
                if _staged_bytes(e, one, limits) <= TILE_CACHES * limits.l2_bytes:
                    yield one
            one = replace(tile, panels=block)
            for other in (unstaged(kernel, one, limits), planar(kernel, one, limits)):
                if other is not None:
                    yield other


def _micro(e: Extents, limits: Limits, now: ContractionSchedule) -> list[tuple[int, int]]:
    """(vectors, rows) of the micro-kernels that use most of the registers."""
    found = {(now.vectors, now.rows)}
    for vectors in (1, 2, 3, 4):
        if vectors == 1 or (vectors - 1) * limits.lanes < e.o:
            found.add((vectors, limits.rows(vectors, 1)))
    return sorted(found)


def _tiles(e: Extents, pixels: int, one_line: bool) -> set[tuple[int, int, int]]:
    """(images, rows, columns) of tiles of about `pixels` pixels: whole rows, or parts of rows."""
    if one_line or e.y == 1:
        return {(1, 1, even(e.x, pixels))}
    found = set()
    for tile_x in {even(e.x, n) for n in (e.x, 64, 32, 16)}:
        if tile_x <= pixels:
            tile_y = even(e.y, max(1, pixels // tile_x))
            found.add((1, tile_y, tile_x))
            if (tile_y, tile_x) == (e.y, e.x):
                found |= {(n, tile_y, tile_x) for n in range(2, e.b + 1)
                          if e.b % n == 0 and n * tile_y * tile_x <= pixels}
    return found


def _staged_bytes(e: Extents, s: ContractionSchedule, limits: Limits) -> int:
    """Bytes of the patch and the sums of a tile."""
    patch = s.tile_b * ((s.tile_y - 1) * e.stride_y + (e.r - 1) * e.dilation_y + 1) * (
        (s.tile_x - 1) * e.stride_x + (e.s - 1) * e.dilation_x + 1)
    sums = s.tile_b * s.tile_y * s.tile_x * s.panels * s.vectors * limits.lanes * e.parts
    return patch * s.chunk * STORED_BYTES[s.dtype] + 4 * sums


def _winograd(e: Extents, limits: Limits, now: ContractionSchedule,
              vary: Collection[str]) -> Iterator[ContractionSchedule]:
    """Winograd schedules that differ from `now` in the decisions `vary`."""
    before = now.winograd
    size = before.size
    chunks = {now.chunk} if "chunk" not in vary else {now.chunk} | {
        n for n in range(limits.lanes, e.c + 1, limits.lanes) if e.c % n == 0 and n % 4 == 0}
    blocks = {(now.tile_b, now.tile_y // size, now.tile_x // size)}
    if "tile" in vary:
        blocks.update(_block_tiles(e, size))
    for vectors in {1, 2, now.vectors} if "micro" in vary else {now.vectors}:
        if (vectors - 1) * limits.lanes >= e.o:
            continue
        panels = -(-e.o // (vectors * limits.lanes))
        heights = {now.rows} if vectors == now.vectors else set()
        if "micro" in vary:
            heights |= {limits.rows(vectors, 1), carried_rows(limits, vectors)}
        taken = set(_divisors(panels)) if {"panels", "micro"} & set(vary) else {now.panels}
        shares = {False, True} if "panels" in vary else {before.shared}
        groups = {1, 2} if "panels" in vary else {before.group}
        for (tile_b, y, x), rows, block, group, shared, chunk in product(
                sorted(blocks), sorted(heights), sorted(taken), sorted(groups), sorted(shares),
                sorted(chunks)):
            if block % group == 0:
                yield replace(now, tile_b=tile_b, tile_y=y * size, tile_x=x * size, panels=block,
                              chunk=chunk, rows=min(rows, tile_b * y * x), vectors=vectors,
                              unroll=math.gcd(4, chunk),
                              algorithm=replace(before, group=group, shared=shared))


def _block_tiles(e: Extents, size: int) -> Iterator[tuple[int, int, int]]:
    """(images, rows, columns) of tiles, in blocks, that are tried."""
    rows, columns = -(-e.y // size), -(-e.x // size)
    for blocks, across in product(BLOCKS, (4, 6, 8, 12, 16)):
        x = even(columns, min(across, blocks))
        y = even(rows, max(1, blocks // x))
        images = [n for n in range(1, e.b + 1) if e.b % n == 0 and n * x * y <= max(blocks, x)]
        yield images[-1] if images else 1, y, x


def _divisors(number: int) -> Iterable[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


# ---------------------------------------------------------------------- other forms


def _attentions(kernel: Kernel, limits: Limits,
                first: AttentionSchedule) -> Iterator[AttentionSchedule]:
    queries, keys = kernel.buffer("q").shape[1], kernel.buffer("k").shape[1]
    for vectors in (1, 2, 3, 4):
        rows = limits.rows(vectors, 1)
        groups = -(-queries // (vectors * limits.lanes))
        for many, turns, block in product((1, 2, 3, 4, 6, 8, 12, 16, 24, 32), (rows, rows // 2),
                                          {first.keys, *_parts(keys, 512)}):
            if many <= groups and turns and (block % 4 == 0 or block == keys):
                yield replace(first, vectors=vectors, rows=turns, groups=many, keys=block)


def _maps(kernel: Kernel, limits: Limits, first: MapSchedule) -> Iterator[MapSchedule]:
    extents = [1, *(extent for _, extent in map_axes(kernel)[0])]
    for inner in range(1, len(extents)):
        extent = extents[-inner - 1]
        for grain, unroll in product({first.grain, *_parts(extent)}, (1, 2, 4)):
            if grain <= extent:
                yield MapSchedule(grain, unroll, inner)


def _depthwises(kernel: Kernel, limits: Limits,
                first: DepthwiseSchedule) -> Iterator[DepthwiseSchedule]:
    (_, _), (_, y), (_, x), (_, o) = kernel.stages[1].axes
    pixels = {even(x, most) for most in (4, 8, limits.vectors // 2, limits.vectors - 10)}
    blocks = {(1, run) for run in pixels} | {(first.rows, first.pixels)}
    if limits.by_lane:
        blocks |= {(high, even(x, first.rows * first.pixels // high)) for high in (2, 3, 4)}
    for rows, many, (high, run) in product(_parts(y), _parts(max(1, o // limits.lanes)),
                                           sorted(blocks)):
        yield DepthwiseSchedule(-(-rows // high) * high, many, run, high)
        if first.sliding and high == first.rows:
            yield DepthwiseSchedule(rows, many, run, high, sliding=True)


def _reductions(kernel: Kernel, limits: Limits,
                first: ReductionSchedule) -> Iterator[ReductionSchedule]:
    for grain, ways in product(_grains(first.grain, 1 << 16), (1, 2, 4, 8)):
        yield ReductionSchedule(grain, ways)


def _moments(kernel: Kernel, limits: Limits,
             first: MomentsSchedule) -> Iterator[MomentsSchedule]:
    x = kernel.buffer("x").shape
    if kernel.form == "group_scale_shift":
        return (replace(first, parts=n) for n in range(1, 65) if x[2] % n == 0)
    rows = x[0] if kernel.form == "layer_scale_shift" else x[1]
    return (replace(first, grain=grain) for grain in _grains(first.grain, rows))


_SPACES: dict[type, Callable[[Kernel, Limits, Any], Iterable[Schedule]]] = {
    AttentionSchedule: _attentions, MapSchedule: _maps, DepthwiseSchedule: _depthwises,
    ReductionSchedule: _reductions, MomentsSchedule: _moments}
"""By the type of a schedule: what lists all schedules of that type, given one of them."""
