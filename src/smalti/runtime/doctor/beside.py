"""What kernels compute on the CPU, at sizes that take the interpreter too long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from smalti.compiler.check import operands, strided
from smalti.errors import IllegalSchedule
from smalti.graph.quantised import FORMATS
from smalti.kernel import interpreter
from smalti.kernel.form import Kernel, extent
from smalti.runtime.cpu.driver import runs
from smalti.runtime.doctor.bench import Arrays
from smalti.runtime.doctor.kernels import STORING
from smalti.runtime.driver import Runnable

WIDENED = ("f16", "bf16", *FORMATS)
"""What the CPU computes as f32 here."""


def expectation_of_cpu(kernel: Kernel, seed: int) -> tuple[Arrays, Arrays]:
    """Memory for the buffers of a kernel of a GPU, and its results by the CPU's own code, in f32;
    by the interpreter where there is none."""
    memory, given = operands(kernel, STORING, seed)
    native = [each for each in runs("cpu") if each.target.precisions]
    if native:
        try:
            return memory, computed(native[-1], widened(kernel), given)
        except IllegalSchedule:
            pass  # a form that this CPU has no schedule for
    return memory, interpreter.run(kernel, given)


def widened(kernel: Kernel) -> Kernel:
    """The kernel with f32 for halves and for quantised weights."""
    return replace(kernel, buffers=tuple(
        replace(buffer, dtype="f32") if buffer.dtype in WIDENED else buffer
        for buffer in kernel.buffers))


def computed(native: Runnable, kernel: Kernel, given: Arrays) -> dict[str, np.ndarray]:
    """The results of a kernel for these operands by the code of a CPU."""
    memory, _ = operands(kernel, native.target)
    for name, array in given.items():
        strided(memory[name], kernel.buffer(name))[...] = array
    first = native.target.first(kernel, native.limits, "f32")
    found = native.execute(native.target.lower(kernel, first, native.limits), kernel, memory)
    return {buffer.name: strided(found[buffer.name][:extent(buffer)], buffer)
            for buffer in kernel.buffers if buffer.role == "output"}
