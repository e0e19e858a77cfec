"""Clocks of micro-kernels: blocks of sums in registers, `rows` by `vectors`.

For one k a micro-kernel loads `vectors` vectors of one factor, spreads `rows` numbers of the other
and has `rows * vectors` multiply-adds, on ports of their own.
"""

from __future__ import annotations

from smalti.machine.cpu.core import Core

ISSUED = 8.0
"""Instructions that a core of many ports takes in a clock."""
HALF_CLOCKS = {"f32": 0.0, "f16": 1.0, "pairs": 0.0, "widened": 1.0}
"""Instructions that make f32 of a vector of weights, for each k."""


def runs(extent: int, most: int) -> tuple[tuple[int, int], ...]:
    """`extent` rows as (size, how many) of at most `most`, as even as can be.

    >>> runs(64, 14), runs(8, 14)
    (((13, 4), (12, 1)), ((8, 1),))
    """
    count = -(-extent // most)
    size, larger = divmod(extent, count)
    return tuple((n, k) for n, k in ((size + 1, larger), (size, count - larger)) if k)


def step_clocks(core: Core, rows: int, vectors: int, factors: str = "f32") -> float:
    """Clocks of one k (of a pair of them, where `factors` are "pairs")."""
    products, widened = rows * vectors, HALF_CLOCKS[factors] * vectors
    rate = core.pairs if factors == "pairs" else core.ports
    return max((products + widened) / rate, (rows + vectors) / core.ports,
               (products + widened + rows + vectors) / (ISSUED * core.ports / 2))


def clocks(core: Core, extent: int, most: int, vectors: int, depth: float, factors: str = "f32",
           sums: str = "zero") -> dict[str, float]:
    """Clocks by kind of micro-kernels over `extent` rows and a sum of `depth`.

    `sums` are made "zero" or "loaded" and then stored, or "kept" for an epilogue.
    """
    found = {"products": 0.0, "starts": 0.0, "vectors": 0.0}
    steps = depth / 2 if factors == "pairs" else depth
    for size, many in runs(extent, most):
        held = size * vectors
        moved = {"zero": held / core.stores, "loaded": held / core.stores + held / core.ports,
                 "kept": 0.0}[sums]
        found["products"] += many * steps * step_clocks(core, size, vectors, factors)
        found["starts"] += many
        found["vectors"] += many * moved
    return found
