"""A kernel by itself on a GPU that is open."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from smalti.codegen.gpu.form import Binding, GroupProgram
from smalti.codegen.gpu.lowered import GroupSteps
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.codegen.gpu.target import ran
from smalti.compiler.check import Arrays
from smalti.errors import VerificationError
from smalti.kernel.form import Kernel
from smalti.runtime.gpu.interface import Dispatch, Gpu

APART = 16
"""Bytes: where the widest access may begin."""
UNTOUCHED = 0xA5
"""What lies between the bindings of a launch, and has to lie there after it."""


def executor(gpu: Gpu) -> Callable[[GroupSteps, Kernel, Arrays], Arrays]:
    """What runs kernels on `gpu`."""
    return lambda low, kernel, memory: ran(
        low, kernel, memory, lambda program, arrays: launched(gpu, program, arrays))


def launched(gpu: Gpu, program: GroupProgram, arrays: Mapping[str, np.ndarray]
             ) -> dict[str, np.ndarray]:
    """What the bindings of a program hold after a launch. All of them are ranges of one buffer that
    begin where the widest access may; what lies between them stays as it is, or VerificationError
    is raised."""
    places, end = [], APART
    for binding in program.bindings:
        places.append(end)
        end += -(-_bytes(binding) // APART) * APART + APART
    arena = gpu.buffer(end)
    gpu.write(arena, 0, np.full(end, UNTOUCHED, np.uint8))
    for binding, place in zip(program.bindings, places):
        if binding.name in arrays:
            gpu.write(arena, place, arrays[binding.name].view(np.uint8))
    pipeline = gpu.pipeline(program)
    recording = gpu.record([Dispatch(pipeline, tuple((arena, place) for place in places))])
    gpu.run(recording)
    memory, found = gpu.read(arena, 0, end), {}
    for binding, place in zip(program.bindings, places):
        own = slice(place, place + _bytes(binding))
        found[binding.name] = memory[own].copy().view(STORED_DTYPES[binding.dtype])
        memory[own] = UNTOUCHED
    recording.close()
    arena.close()
    if (memory != UNTOUCHED).any():
        raise VerificationError(f"{program.name} writes beside its bindings")
    return found


def _bytes(binding: Binding) -> int:
    return binding.elements * STORED_DTYPES[binding.dtype].itemsize
