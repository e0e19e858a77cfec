"""Shapes of any rank in ggml's four dimensions.

Every tensor is contiguous, so that axes may be taken together at will: `reshape` costs nothing.
All shapes here are outermost first, as in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

RANK_MAX = 4
"""Dimensions of a tensor of ggml (GGML_MAX_DIMS)."""

Shape = tuple[int, ...]


def dimensions(shape: Sequence[int]) -> Shape:
    """`shape` in at most four dimensions without ones in front, as ggml knows a tensor of it.

    >>> dimensions((1, 77, 768)), dimensions((2, 3, 4, 5, 6)), dimensions(())
    ((77, 768), (6, 4, 5, 6), (1,))
    """
    rest = max(len(shape) - RANK_MAX + 1, 0) if len(shape) > RANK_MAX else 0
    shape = (math.prod(shape[:rest]), *shape[rest:]) if rest else tuple(shape)
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape or (1,)


def reduced(shape: Sequence[int], perm: Sequence[int]) -> tuple[Shape, Shape]:
    """The same transposition with as few axes as can be: those of one element are left out, and
    those that stay neighbours are one.

    >>> reduced((2, 3, 4, 5), (0, 2, 3, 1))
    ((2, 3, 20), (0, 2, 1))
    >>> reduced((1, 7, 5), (1, 0, 2))
    ((35,), (0,))
    """
    groups: list[list[int]] = []
    for axis in perm:
        if shape[axis] == 1:
            continue
        before = groups[-1][-1] if groups else None
        if before is not None and all(shape[i] == 1 for i in range(before + 1, axis)) \
                and before < axis:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    order = sorted(range(len(groups)), key=lambda i: groups[i][0])
    extents = tuple(math.prod(shape[axis] for axis in groups[i]) for i in order)
    place = {group: position for position, group in enumerate(order)}
    return extents or (1,), tuple(place[i] for i in range(len(groups))) or (0,)


def steps(shape: Shape, perm: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Transpositions of at most four axes each that together are `perm`.

    Beyond four axes, one after the other moves to its place, over the block of those between.

    >>> list(steps((2, 3, 4), (2, 0, 1)))
    [((6, 4), (1, 0))]
    >>> [shape for shape, _ in steps((2, 3, 4, 5, 6), (4, 3, 2, 1, 0))]
    [(120, 6), (6, 24, 5), (30, 6, 4), (120, 2, 3)]
    """
    small, order = reduced(shape, perm)
    if len(small) <= RANK_MAX:
        if len(small) > 1:
            yield small, order
        return
    axes = list(range(len(small)))
    for target, axis in enumerate(order):
        source = axes.index(axis)
        if source == target:
            continue
        extents = [small[a] for a in axes]
        cut = (extents[:target], extents[target:source], [extents[source]], extents[source + 1:])
        yield reduced(tuple(math.prod(part) for part in cut), (0, 2, 1, 3))
        axes.insert(target, axes.pop(source))


def aligned(shapes: Sequence[Shape], result: Shape) -> list[Shape] | None:
    """Shapes that broadcast to `result` in at most four axes, those of the result last.

    Where there are more, axes that broadcast alike become one; None if more than four remain.

    >>> aligned([(2, 77, 768), (768,)], (2, 77, 768))
    [(2, 77, 768), (1, 1, 768), (2, 77, 768)]
    >>> aligned([(2, 3, 4, 5, 6), (6,)], (2, 3, 4, 5, 6))
    [(120, 6), (1, 6), (120, 6)]
    """
    full = [(1,) * (len(result) - len(shape)) + tuple(shape) for shape in (*shapes, result)]
    if len(result) <= RANK_MAX:
        return full
    columns: list[list[int]] = []
    kinds: list[tuple[bool, ...]] = []
    for column in zip(*full, strict=True):
        if column[-1] == 1:
            continue
        kind = tuple(extent == column[-1] for extent in column)
        if kinds and kinds[-1] == kind:
            columns[-1] = [a * b for a, b in zip(columns[-1], column, strict=True)]
        else:
            columns.append(list(column))
            kinds.append(kind)
    if len(columns) > RANK_MAX:
        return None
    return [tuple(shape) for shape in zip(*columns, strict=True)] or [(1,)] * len(full)


def repetitions(shape: Shape, result: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Shapes and what they are repeated to, so that `shape` becomes `result`: at most four axes
    at a time.

    >>> list(repetitions((3, 1), (2, 3, 4)))
    [((1, 3, 1), (2, 3, 4))]
    """
    both = aligned([shape], result)
    if both is not None:
        if both[0] != both[1]:
            yield both[0], both[1]
        return
    now = [1] * (len(result) - len(shape)) + list(shape)
    for axis, extent in enumerate(result):
        if now[axis] != extent:
            outer, inner = math.prod(now[:axis]), math.prod(now[axis + 1:])
            yield (outer, 1, inner), (outer, extent, inner)
            now[axis] = extent
