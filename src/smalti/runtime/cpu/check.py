"""Runs a single kernel on this CPU, in memory of its own, for checks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from smalti.codegen.cpu.block import joined
from smalti.codegen.cpu.lowered import NativeKernel
from smalti.codegen.target import Target
from smalti.compiler.check import Arrays
from smalti.kernel.form import Kernel
from smalti.runtime.cpu.executable import Executable
from smalti.runtime.cpu.memory import anonymous
from smalti.runtime.cpu.packing import ALIGNMENT
from smalti.runtime.cpu.recording import Table, TableRow

PAGE_BYTES = 4096
"""The alignment of scratch memory."""


def executor(target: Target) -> Callable[[NativeKernel, Kernel, Arrays], Arrays]:
    """A function that runs kernels of a feature level, which this CPU has to have."""

    def execute(low: NativeKernel, kernel: Kernel, memory: Arrays) -> Arrays:
        held = {name: _placed(array) for name, array in memory.items()}
        bound = dict(held)
        if low.packed is not None:
            buffer = kernel.buffer(low.packed.buffer)
            bound[buffer.name] = _placed(np.zeros(low.packed.bytes, np.uint8))
            step = target.pack(low.packed, buffer.strides, buffer.dtype)
            _run([step], [held[buffer.name], bound[buffer.name]], 0)
        operands = [bound[name] for name in low.buffers]
        workspace = [anonymous(low.workspace_bytes)] if low.workspace_bytes else []
        _run(low.steps, [*operands, *workspace], low.scratch_bytes)
        return {name: held[name][:array.nbytes].view(array.dtype)
                for name, array in memory.items()}

    return execute


def _placed(array: np.ndarray) -> np.ndarray:
    """A copy of an array's bytes, padded: kernels may read a vector beyond the end."""
    memory = anonymous(array.nbytes + ALIGNMENT)
    memory[:array.nbytes] = array.view(np.uint8)
    return memory


def _run(steps, buffers: list[np.ndarray], scratch_bytes: int) -> None:
    """Call every tile of every step, in order, in this thread."""
    block, places = joined([step.code for step in steps])
    code, scratch = Executable(block), anonymous(scratch_bytes + PAGE_BYTES)
    address = scratch.ctypes.data + -scratch.ctypes.data % PAGE_BYTES
    pointers = tuple(buffer.ctypes.data for buffer in buffers)
    rows = [[TableRow(code.address + place, pointers, step.tiles)]
            for place, step in zip(places, steps, strict=True)]
    Table(rows, 1, address, scratch_bytes, code).run(0, len(rows), brief=True)
