"""Trials of schedules in runs of a program on the CPU, for the tuner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smalti.compiler.targets import target
from smalti.kernel.form import Kernel
from smalti.machine.cpu import estimate_kernel
from smalti.runtime.cpu.adapter import limits_at
from smalti.runtime.cpu.alternative import Alternative
from smalti.runtime.cpu.model import modelled
from smalti.runtime.known import scope
from smalti.runtime.sources import Read
from smalti.runtime.trials import Trials
from smalti.tune.objective import OBJECTIVES


class CpuTrials(Trials):
    """The trials of a program on the CPU."""

    def __init__(self, program: Any) -> None:
        self.program, self._threads = program, program.threads
        objective = program.recipe.options.objective if program.recipe else OBJECTIVES[0]
        self.scope = scope(program.module.target, program.threads, program.module.precision,
                           objective)

    def candidates(self, kernel: Kernel, first: Any) -> Sequence[Any]:
        chosen = target(self.module.target)
        return list(chosen.space(kernel, limits_at(chosen.name, self._threads), first))

    def expected(self, kernel: Kernel, schedules: Sequence[Any]) -> np.ndarray:
        device = modelled(self.module.target)
        return np.array([estimate_kernel(device, kernel, schedule, self._threads).seconds
                         for schedule in schedules])

    def alternative(self, region: int, kernel: Kernel, schedule: Any,
                    read: Read | None) -> Alternative:
        return Alternative(self.module, region, kernel, schedule, read)
