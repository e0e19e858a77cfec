"""Device models: rates, memories and costs of a device, and where each number comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.machine.fitted import Fitted

MEASURED, SPECIFIED, GUESSED = "measured", "specified", "guessed"

BYTES = MappingProxyType({"f32": 4, "f16": 2, "bf16": 2})
"""Bytes of an element of each dtype that the timing model knows."""


@dataclass(frozen=True)
class CacheLevel:
    """A cache between the compute units and memory: its bytes, and its bandwidth in bytes a second
    of the whole chip."""

    name: str
    bytes: float
    bandwidth: float


@dataclass(frozen=True)
class DeviceModel:
    """A GPU or a CPU, in SI units.

    `units` are multiprocessors, compute units or cores, running at `clock` Hz. `vector` and
    `matrix` are FLOP/s of the whole chip by dtype, a multiply-add counting two; `matrix` is that of
    matrix units with f32 sums. `registers`, `shared` and `l1` are bytes of each unit,
    `shared_block` those that one work-group can have. `caches` are those that all units share, the
    nearest one first. `memory` is in bytes, `bandwidth` in bytes a second. `launch` is the seconds
    from one small kernel to the next, `link` the bandwidth to the host. `threads` and `blocks` are
    the most invocations and work-groups that a unit holds, `wave` the invocations of a subgroup, or
    the f32 of a CPU's vector. A figure that nobody publishes is 0 or empty.

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
        """FLOP/s of products of `dtype`, on the fastest unit that has it: matrix or vector.

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
        """The shared cache nearest to the memory; None if there is none."""
        return self.caches[-1] if self.caches else None

    def with_fitted(self, found: Mapping[str, Fitted]) -> DeviceModel:
        """This device model with the results of a calibration, by family of kernels, added."""
        return replace(self, fitted={**self.fitted, **found})
