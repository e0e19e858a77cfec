"""Calibrations of CPUs: measured rates and fitted constants of the timing model, as a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, field, replace

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.machine.cpu.core import PAIRS, REACH
from smalti.machine.cpu.work import CONSTANTS
from smalti.machine.device import MEASURED, CacheLevel, DeviceModel
from smalti.machine.fitted import Fitted

FAMILY = "cpu"
"""The name under which a calibrated device model has the constants."""
RATES = ("clock", "f32", "bf16", "l2", "l3", "memory", "reach", "launch")
MOST = 1e18
"""Rates above this are refused as senseless: a million times those of today."""


@dataclass(frozen=True)
class CpuCalibration:
    """The result of a calibration: which CPU was measured when, by which code, and what was found.

    Rates are those of all `cores` together: FLOP/s of `f32` and `bf16` (0 if the CPU has no
    products of pairs), bytes a second read from `l2`, `l3` and `memory`; `reach` is what one core
    alone reads from memory. `launch` is the seconds of a barrier; `latency` gives those of a load,
    by the bytes of memory that loads are spread over. `error` is the mean absolute logarithm of
    measured over predicted times of real kernels: with the usual constants, and with those found.
    """

    device: str
    cores: int
    driver: str
    code: str
    date: str
    clock: float
    f32: float
    bf16: float
    l2: float
    l3: float
    memory: float
    reach: float
    launch: float
    latency: Mapping[str, float] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    error: tuple[float, float] = (0.0, 0.0)

    def text(self) -> str:
        """The calibration as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def of(cls, text: str) -> CpuCalibration:
        """The calibration written as `text`. Raises InputError if it is none, or has senseless
        numbers."""
        try:
            given = json.loads(text)
            found = cls(**{**given, "error": tuple(given.get("error", (0.0, 0.0)))})
            numbers = [getattr(found, name) for name in RATES] + [*found.constants.values()]
            known = set(found.constants) <= set(CONSTANTS)
            sound = all(isinstance(n, int | float) and math.isfinite(n) and 0 <= n < MOST
                        for n in numbers) and min(numbers[:2]) > 0
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise InputError("this is no calibration, or one of another version; run `smalti "
                             "calibrate`") from None
        if not (known and sound):
            raise InputError("the calibration holds numbers that cannot be; run `smalti calibrate`")
        return found

    def applied(self, device: DeviceModel, code: str) -> DeviceModel:
        """The device model of the CPU with what was measured; the constants are used only if they
        were fitted to the same `code`."""
        share = device.units / self.cores
        near, last = device.caches
        vector = {**device.vector, "f32": self.f32 * share, "f16": self.f32 * share}
        if PAIRS in vector and self.bf16:
            vector[PAIRS] = self.bf16 * share
        found = {name: MEASURED for name in ("clock", "vector", "l2_bandwidth", "l3_bandwidth",
                                             "bandwidth", "launch")}
        constants = {**CONSTANTS, REACH: min(1.0, self.reach / self.memory)}
        if code == self.code:
            constants |= self.constants
        return replace(
            device, clock=self.clock, vector=vector, bandwidth=self.memory, launch=self.launch,
            caches=(CacheLevel(near.name, near.bytes, self.l2 * share),
                    CacheLevel(last.name, last.bytes, self.l3 * share)),
            origin={**device.origin, **found}).with_fitted({FAMILY: Fitted(constants)})
