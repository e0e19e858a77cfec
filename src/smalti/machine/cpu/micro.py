"""Counts the clocks of micro-kernels, which keep `rows` times `vectors` vectors of sums in
registers.

For each k a micro-kernel loads `vectors` vectors of one factor, broadcasts `rows` numbers of the
other, and does `rows * vectors` multiply-adds, on ports of their own. NEON's multiply-adds take one
lane of a vector for all lanes of the other, so there a load brings the numbers of four rows.
Products of blocks (`bfmmla`, `usmmla`) are of two rows and four or eight k, which an instruction
brings together.
"""

from __future__ import annotations

from smalti.machine.cpu.core import Core

ISSUED = 8.0
"""Instructions that a core with two vector ports can start in a clock."""
HALF_CLOCKS = {"f16": 1.0, "widened": 1.0}
"""Instructions to widen a vector of weights to f32, by the kind of factors; else none."""
CHANNELS = {"pairs": 2, "blocks": 2, "words": 2, "quads": 4, "quads of pairs": 4,
            "blocks of quads": 4}
"""Channels that a product takes, by the kind of factors; else one."""
PRODUCT_CLOCKS = {"words": 1.5, "quads of pairs": 2.0}
"""Clocks of a product and of adding it to a sum, as a multiple of those of a multiply-add of f32:
`vpmaddwd` and `vpmaddubsw` run on the same two ports, `vpaddd` on three of Intel's cores and on
four of AMD's. Words take one of the former and one of the latter, bytes whose pairs are added in 16
bits two and one. `vpdpbusd` takes as long as a multiply-add of f32 (uops.info: Ice Lake, Alder
Lake, Zen 4), as `sdot`, `sudot` and `usmmla` do (Arm's guides of the Cortex-A76, Neoverse V1)."""


def runs(extent: int, most: int) -> tuple[tuple[int, int], ...]:
    """`extent` rows divided as evenly as possible into parts of at most `most`: (size, how many)
    pairs.

    >>> runs(64, 14), runs(8, 14)
    (((13, 4), (12, 1)), ((8, 1),))
    """
    count = -(-extent // most)
    size, larger = divmod(extent, count)
    return tuple((n, k) for n, k in ((size + 1, larger), (size, count - larger)) if k)


def step_clocks(core: Core, rows: int, vectors: int, factors: str = "f32") -> float:
    """Clocks of a micro-kernel for one k; for as many as `CHANNELS` says."""
    products = rows * vectors * PRODUCT_CLOCKS.get(factors, 1.0)
    widened = HALF_CLOCKS.get(factors, 0.0) * vectors
    if factors in ("blocks", "blocks of quads"):
        products = (rows + rows % 2) * (vectors + 0.5) / 2
    rate = core.pairs if factors in ("pairs", "blocks") else core.ports
    loads = vectors + (rows / core.lanes if core.by_lane else rows)
    return max((products + widened) / rate, loads / core.ports,
               (products + widened + loads) / (ISSUED * core.ports / 2))


def clocks(core: Core, extent: int, most: int, vectors: int, depth: float, factors: str = "f32",
           sums: str = "zero") -> dict[str, float]:
    """The clocks, by kind, of micro-kernels for `extent` rows of at most `most`, with sums of
    `depth`.

    `sums` start at "zero" or are "loaded", and are then stored; or they are "kept" in registers.
    """
    found = {"products": 0.0, "starts": 0.0, "vectors": 0.0}
    steps = depth / CHANNELS.get(factors, 1)
    for size, many in runs(extent, most):
        held = size * vectors
        moved = {"zero": held / core.stores, "loaded": held / core.stores + held / core.ports,
                 "kept": 0.0}[sums]
        found["products"] += many * steps * step_clocks(core, size, vectors, factors)
        found["starts"] += many
        found["vectors"] += many * moved
    return found
