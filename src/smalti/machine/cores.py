"""Cores of AArch64 CPUs: Arm licenses the same core to many makers, so what a core does in a clock
is known where its chip is not.

In `cores.csv` the letter after a number says where it comes from, as in `devices.csv`: no letter,
from what `source` names; m, measured, by what `source` names; g, a guess, or what is usual where
the maker of a chip chooses. Multiply-adds are of vectors of 128 bits in a clock, `latency` is the
clocks of one. The clock is that of a performance core; the second-level cache of Apple's CPUs is
that of a cluster. A source "LLVM" is the model of the core in LLVM 22, as llvm-mca tells it.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib import resources

from smalti.dataclass import dataclass

LANES = 4
"""f32 in a vector of 128 bits, NEON's."""
TOGETHER = " + "
"""Between the kinds of cores of a CPU, as Smalti names them; the fastest is the first."""


@dataclass(frozen=True)
class CoreFacts:
    """What is published of a core: its clock in Hz, the vector multiply-adds that it starts in a
    clock and the clocks until one is done, bytes of its caches, and who says so."""

    name: str
    clock: float
    multiply_adds: float
    latency: float
    l1_bytes: float
    l2_bytes: float
    source: str


def core_facts(cpu: str) -> CoreFacts | None:
    """What is published of the fastest core of a CPU of this name; None for one that the library
    does not have.

    >>> core_facts("Cortex-A76 + Cortex-A55").multiply_adds
    2.0
    """
    return _cores().get(cpu.split(TOGETHER)[0])


def all_cores() -> list[CoreFacts]:
    """Every core of the library."""
    return list(_cores().values())


@lru_cache(maxsize=1)
def _cores() -> dict[str, CoreFacts]:
    """All cores by name."""
    text = resources.files(__package__).joinpath("cores.csv").read_text(encoding="utf-8")
    return {line["name"]: CoreFacts(
        line["name"], 1e6 * _number(line["clock_mhz"]), _number(line["multiply_adds"]),
        _number(line["latency"]), 2**10 * _number(line["l1_kib"]), 2**10 * _number(line["l2_kib"]),
        line["source"]) for line in csv.DictReader(text.splitlines())}


def _number(text: str) -> float:
    return float(text.rstrip("mg"))
