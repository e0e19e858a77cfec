"""How schedules of a program on a GPU are tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smalti.kernel.form import Kernel
from smalti.runtime.gpu.alternative import GpuAlternative
from smalti.runtime.known import scope_of_gpu
from smalti.runtime.sources import Read
from smalti.runtime.trials import Trials
from smalti.schedule.candidates_group import clocks_of


class GpuTrials(Trials):
    """Of a program on a GPU."""

    def __init__(self, program: Any) -> None:
        self.program, self._gpu = program, program.gpu
        self.scope = scope_of_gpu(program.gpu.device, program.module.target,
                                  program.module.precision)

    def candidates(self, kernel: Kernel, first: Any) -> Sequence[Any]:
        return list(self._gpu.target.space(kernel, self._gpu.limits, first))

    def expected(self, kernel: Kernel, schedules: Sequence[Any]) -> np.ndarray:
        return np.array(list(map(clocks_of(kernel, self._gpu.limits), schedules)))

    def alternative(self, region: int, kernel: Kernel, schedule: Any,
                    read: Read | None) -> GpuAlternative:
        return GpuAlternative(self._gpu, self.module, region, kernel, schedule)
