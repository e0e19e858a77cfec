"""What share of a chip's peak a loop reaches at most, by its instructions.

The bound is the clocks that the loop's products take in the unit that computes them, over those of
the unit that is busy longest. Everything overlaps in it, and nothing waits: no latency, no miss, no
bank conflict. So 30 % means 30 % at best, and 100 % does not mean fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from .listing import Line, mix


@dataclass(frozen=True)
class Rates:
    """What one SIMD unit (AMD), scheduler (NVIDIA) or vector engine (Intel) does in a clock.

    `matrix` are the products (multiply and add) of the matrix unit on f16 with sums in f32, 0
    without one, and `bytes` those on 8 bits with sums in i32; `dots` are dot products of four
    bytes; `lanes` what an ordinary instruction computes; `shared` the bytes of shared memory,
    its equal part of what the multiprocessor has. `stalls` says that an ordinary instruction
    cannot run beside a matrix one; `issue` that one instruction of any kind starts in a clock.
    """

    matrix: int
    bytes: int
    dots: int
    lanes: int
    shared: int
    stalls: bool
    issue: bool


RATES = {
    # 7900 XTX: 123 TFLOP/s at 2.5 GHz with 192 SIMD units; 9070 XT: 195 at 2.97 with 128. Bytes:
    # 123 and 389 TOPS; dot products one a lane
    "navi": Rates(0, 0, 32, 32, 64, True, False), "navi3": Rates(128, 128, 32, 32, 64, True, False),
    "vangogh": Rates(0, 0, 32, 32, 64, True, False),
    "gfx115": Rates(128, 128, 32, 32, 64, True, False),
    "gfx120": Rates(256, 512, 32, 32, 64, True, False),
    # RTX 3090: 71 (sums in f32 run at half the rate) at 1.7 with 328 schedulers; RTX 4090: 165 at
    # 2.52 with 512; A100: 312 at 1.41 with 432. Bytes: 285, 661, 624 TOPS; dot products 16 lanes
    "tu": Rates(64, 256, 16, 16, 32, False, True),
    "ga100": Rates(256, 512, 16, 16, 32, False, True),
    "ga10": Rates(64, 256, 16, 32, 32, False, True),
    "ad": Rates(64, 256, 16, 32, 32, False, True), "gb": Rates(64, 256, 16, 32, 32, False, True),
    # Arc A770: 138 at 2.1 with 512 engines; B580: 117 at 2.67 with 160. Bytes: 275 and 233 TOPS;
    # dot products 8 of an engine of Xe-HPG. Intel publishes no rate of shared memory: 512 bytes a
    # clock of a core is a guess.
    "tgl": Rates(0, 0, 8, 8, 32, False, False), "mtl": Rates(0, 0, 8, 8, 32, False, False),
    "dg2": Rates(64, 128, 8, 8, 32, False, False),
    "bmg": Rates(128, 256, 16, 16, 64, False, False),
    "lnl": Rates(128, 256, 16, 16, 64, False, False),
    "ptl": Rates(128, 256, 16, 16, 64, False, False),
}
"""Rates of chips whose names begin so, from the vendors' peak figures."""


def rates_of(chip: str) -> Rates:
    """Those of the longest name that `chip` begins with."""
    return RATES[max((name for name in RATES if chip.startswith(name)), key=len)]


def busy(lines: list[Line], rates: Rates, lanes: int) -> dict[str, float]:
    """Clocks for which each unit is busy with a subgroup of `lanes` in `lines`; those of "work" are
    products in the matrix unit, or where there are none dot products, or multiply-adds."""
    counts = mix(lines)
    plain = -(-lanes // rates.lanes)
    dots = counts.get("dot", 0) * -(-lanes // rates.dots)
    ordinary = dots + plain * sum(
        counts.get(kind, 0) for kind in ("alu", "fma", "move", "shuffle"))
    matrix = sum(line.products / (rates.bytes if line.bytes else rates.matrix)
                 for line in lines if line.products)
    shared = sum(count * max(int(kind.split()[-1]), 4) * lanes / rates.shared
                 for kind, count in counts.items() if kind.startswith("shared"))
    return {
        "work": matrix or dots or counts.get("fma", 0) * plain,
        "instructions": (matrix if rates.stalls else 0) + ordinary,
        "issue": sum(counts.values()) if rates.issue else 0,
        "shared memory": shared,
    }


def bound(lines: list[Line], rates: Rates, lanes: int) -> tuple[float, str]:
    """The share of the peak, at most, and the unit that is busy longest."""
    clocks = busy(lines, rates, lanes)
    longest = max(clocks, key=lambda name: clocks[name])
    return (clocks["work"] / clocks[longest] if clocks[longest] else 0.0), longest
