"""What is found of a device: what is wrong with it, and how fast it is.

Records without what makes them, so that a process that looks for devices need not load the checks.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from smalti.dataclass import dataclass


@dataclass(frozen=True)
class Finding:
    """What was wrong with a probe, and the names of the removals by which it is right."""

    probe: str
    trouble: str
    removed: tuple[str, ...]


def kind_of(name: str) -> str:
    """What removals of a kind have in common.

    >>> kind_of("matrices 8x8x8 f16 to f32"), kind_of("subgroup sizes")
    ('matrices', 'subgroup')
    """
    return name.partition(" ")[0]


@dataclass(frozen=True)
class GpuRates:
    """What a GPU was measured to do.

    `products` are FLOP/s of a product of f32, f16 or bf16 as programs would compute it, a
    multiply-add counting two. `memory` is bytes a second that are read or written, `launch` the
    seconds from one small launch to the next that depends on it, `submission` those of a run of one
    such launch, `upload` and `download` bytes a second between host and device.
    """

    products: dict[str, float]
    memory: float
    launch: float
    submission: float
    upload: float
    download: float

    def record(self) -> dict[str, Any]:
        """Its fields, as they are kept in a file; `GpuRates(**record)` is the same again."""
        return asdict(self)
