"""What is known of a device: rates, memories, costs, and where each number comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from smalti.errors import InputError
from smalti.machine.fitted import Fitted

MEASURED, SPECIFIED, GUESSED = "measured", "specified", "guessed"

BYTES = MappingProxyType({"f32": 4, "f16": 2, "bf16": 2})
"""Bytes of an element of each dtype that the timing model knows."""


@dataclass(frozen=True)
class CacheLevel:
    """A level between the compute units and memory: bytes, and bytes a second of the whole chip."""

    name: str
    bytes: float
    bandwidth: float


@dataclass(frozen=True)
class DeviceModel:
    """A GPU or a CPU, in SI units.

    `units` are multiprocessors, compute units or cores, running at `clock` Hz. `vector` and
    `matrix` are FLOP/s of the whole chip by dtype, a multiply-add counting two; `matrix` is that of
    matrix units with f32 sums. `registers`, `shared` and `l1` are bytes a unit. `caches` are those
    that all units share, nearest first. `launch` is the time from one small kernel to the next,
    `link` the bandwidth to the host. Of a CPU, `wave` are the f32 of a vector. A figure that nobody
    publishes is 0 or empty.

    `origin` says of each field whether it was measured, specified by the vendor or guessed;
    `fitted` holds what calibration has found, by family of kernels (see calibration.py).
    """

    id: str
    name: str
    vendor: str
    architecture: str
    kind: str
    units: int
    clock: float
    vector: Mapping[str, float]
    matrix: Mapping[str, float]
    registers: float
    shared: float
    shared_block: float
    l1: float
    caches: tuple[CacheLevel, ...]
    memory: float
    bandwidth: float
    launch: float
    link: float
    watts: float
    threads: int
    blocks: int
    wave: int
    integrated: bool
    origin: Mapping[str, str] = field(default_factory=dict, repr=False)
    fitted: Mapping[str, Fitted] = field(default_factory=dict, repr=False)

    def rate(self, dtype: str) -> float:
        """FLOP/s of products of this dtype, on the fastest unit that has it.

        Raises InputError for a dtype that the model does not know.

        >>> from smalti import machine
        >>> machine.device("rtx_4060").rate("bf16") / 1e12
        30.2
        """
        if dtype not in BYTES:
            raise InputError(f"dtype {dtype!r}; the timing model knows {', '.join(BYTES)}")
        return max(self.matrix.get(dtype, 0.0), self.vector.get(dtype, 0.0), self.vector["f32"])

    @property
    def last_cache(self) -> CacheLevel | None:
        """The shared cache nearest to the memory."""
        return self.caches[-1] if self.caches else None

    def with_fitted(self, found: Mapping[str, Fitted]) -> DeviceModel:
        """This device with more that calibration has found."""
        return replace(self, fitted={**self.fitted, **found})
