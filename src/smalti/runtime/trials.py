"""How schedules are tried on the device of a program: what there is to try, what the timing model
expects of it, and code that can take a kernel's place. The tuner and the supervisor know no more of
a device than this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from smalti.compiler.module import Module
from smalti.kernel.form import Kernel
from smalti.runtime.sources import Read
from smalti.tune.store import MeasurementScope


class Trials(ABC):
    """What a tuner asks of the device of `program`; `scope` is where in the store its measurements
    belong."""

    program: Any
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
