"""Devices that tests of WGSL run on, and what running a program of a work-group on them gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from smalti.runtime.gpu import Dispatch, Gpu
from smalti.runtime.webgpu import WebGpu, adapters
from smalti.runtime.webgpu.adapter import F16, IMMEDIATES
from smalti.target.gpu.form import GroupProgram
from smalti.target.gpu.interpreter import run
from smalti.target.gpu.memory import STORED_DTYPES


@pytest.fixture(scope="session")
def webgpu() -> Iterator[WebGpu]:
    """The first device that `wgpu` finds."""
    with WebGpu(adapters()[0]) as gpu:
        yield gpu


@pytest.fixture(scope="session")
def plain_webgpu() -> Iterator[WebGpu]:
    """The same, as if it had neither f16 nor immediates."""
    adapter = adapters()[0]
    limits = replace(adapter.limits, push_bytes=0, f16=False, storage16=False)
    features = adapter.features - {F16, IMMEDIATES}
    with WebGpu(replace(adapter, limits=limits, features=features)) as gpu:
        yield gpu


def launched(gpu: Gpu, program: GroupProgram, arrays: Mapping[str, np.ndarray],
             ) -> dict[str, np.ndarray]:
    """What the bindings of a program hold after a launch: all of them are ranges of one buffer,
    that begin where the widest access may."""
    places, end = [], 16
    for binding in program.bindings:
        places.append(end)
        end += -(-binding.elements * STORED_DTYPES[binding.dtype].itemsize // 16) * 16 + 16
    arena = gpu.buffer(end)
    for binding, place in zip(program.bindings, places):
        if binding.name in arrays:
            gpu.write(arena, place, arrays[binding.name].view(np.uint8))
    pipeline = gpu.pipeline(program)
    recording = gpu.record([Dispatch(pipeline, tuple((arena, place) for place in places))])
    gpu.run(recording)
    found = {}
    for binding, place in zip(program.bindings, places):
        dtype = STORED_DTYPES[binding.dtype]
        found[binding.name] = gpu.read(arena, place, binding.elements * dtype.itemsize).view(dtype)
    recording.close()
    arena.close()
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
