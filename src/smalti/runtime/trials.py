"""How schedules are tried on the device of a program: what there is to try, what the timing model
expects of it, and code that can take a kernel's place. The tuner and the supervisor know no more of
a device than this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from smalti.compiler.module import Beside, Module
from smalti.kernel.form import Kernel
from smalti.runtime.sources import Read
from smalti.tune.store import MeasurementScope

NONE: Mapping[int, Any] = MappingProxyType({})
"""No kernels in place of others."""


class TrialProgram(Protocol):
    """A program of one module, whose kernels others may take the place of for a run (`instead`, by
    the numbers of their regions), or be computed beside on the same data."""

    name: str
    module: Module

    def run(self, inputs: Mapping[str, np.ndarray],
            instead: Mapping[int, Any]) -> dict[str, np.ndarray]:
        """The outputs of a run."""

    def run_beside(self, inputs: Mapping[str, np.ndarray], others: Mapping[int, Any],
                   instead: Mapping[int, Any] = NONE
                   ) -> tuple[dict[str, np.ndarray], dict[int, Beside]]:
        """The same, and for each of `others` how it compares with the kernel in use."""

    def kernel_seconds(self) -> np.ndarray:
        """Seconds of each region in the last run."""


class Trials(ABC):
    """What a tuner asks of the device of `program`; `scope` is where in the store its measurements
    belong."""

    program: TrialProgram
    scope: MeasurementScope

    @property
    def module(self) -> Module:
        """The module that the program has now."""
        return self.program.module

    @abstractmethod
    def candidates(self, kernel: Kernel, first: Any) -> Sequence[Any]:
        """The schedules of a kernel that give the same bytes, beginning with `first`."""

    @abstractmethod
    def expected(self, kernel: Kernel, schedules: Sequence[Any]) -> np.ndarray:
        """What the timing model expects of each, in a unit that all of a kernel have in common."""

    @abstractmethod
    def alternative(self, region: int, kernel: Kernel, schedule: Any, read: Read | None) -> Any:
        """A kernel under another schedule as code. Raises IllegalSchedule."""
