"""Group programs on devices: what a launch gives, against the interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.gpu.interpreter import run
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.runtime.gpu.interface import Dispatch, Gpu

APART = 16
"""Bytes: where the widest access may begin."""
UNTOUCHED = 0xA5


def launched(gpu: Gpu, program: GroupProgram, arrays: Mapping[str, np.ndarray],
             ) -> dict[str, np.ndarray]:
    """What the bindings of a program hold after a launch. All of them are ranges of one buffer that
    begin where the widest access may; what lies between them stays as it is."""
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
    assert (memory == UNTOUCHED).all(), f"{program.name} writes beside its bindings"
    return found


def compare(gpu: Gpu, program: GroupProgram, arrays: Mapping[str, np.ndarray], *,
            rtol: float = 0.0, atol: float = 0.0, subgroup: int = 8) -> None:
    """A launch gives what the interpreter gives, in subgroups of a size that the device need not
    have where the program does not show it."""
    expected = run(program, arrays, subgroup=subgroup)
    found = launched(gpu, program, {**expected, **arrays})
    for binding in program.bindings:
        if binding.access != "read":
            wide = [a[binding.name].astype(np.float64 if a[binding.name].dtype.kind in "fV" else
                                           np.int64) for a in (found, expected)]
            np.testing.assert_allclose(*wide, rtol=rtol, atol=atol, err_msg=binding.name)


def _bytes(binding) -> int:
    return binding.elements * STORED_DTYPES[binding.dtype].itemsize
