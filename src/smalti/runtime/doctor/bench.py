"""A GPU as a probe sees it, and programs that run on it between guards.

    guard | x | guard | out, poisoned | guard | workspace | guard      one buffer of the device

Every run begins from the same bytes; what a run leaves is compared with what it may change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from smalti import settings
from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.runtime.gpu.interface import ComputePipeline, Dispatch, Gpu
from smalti.runtime.gpu.removals import TIMES, Removal, reduced, removal_of

GUARD_BYTES = 256
"""Between what programs are bound to: a vector of each invocation of a small subgroup."""
GUARD, POISON = 0xA5, 0xFF
"""What guards hold, and what results hold before: as f32, f16 and bf16 that is NaN."""

Arrays = Mapping[str, np.ndarray]


class Bench:
    """An open GPU, of which `removals` are not used. `clock` gives seconds of the
    host; `timed` says whether those of the device are used."""

    def __init__(self, gpu: Gpu, removals: Iterable[Removal] = (),
                 clock: Callable[[], float] = time.perf_counter) -> None:
        self.gpu, self.clock, removals = gpu, clock, tuple(removals)
        self.limits = reduced(gpu.limits, removals)
        self.timed = removal_of(TIMES, removals) is None

    def pipelines(self, programs: Sequence[GroupProgram]) -> list[ComputePipeline]:
        """Programs as the driver compiles them, several at a time."""
        def build(program: GroupProgram) -> ComputePipeline:
            made = self.gpu.target.encode([program], self.limits)
            return self.gpu.build(made.shaders[0], made.code)

        with ThreadPoolExecutor(settings.threads()) as pool:
            return list(pool.map(build, programs))

    def seconds(self, work: Callable[[], object]) -> float:
        """How long `work` takes until the device has done it."""
        self.gpu.wait()
        begun = self.clock()
        work()
        self.gpu.wait()
        return self.clock() - begun


class Guarded:
    """Programs, run one after the other, and memory for what they are bound to, by name."""

    def __init__(self, bench: Bench, programs: Sequence[GroupProgram],
                 pipelines: Sequence[ComputePipeline] | None = None) -> None:
        self.gpu, self.places, end = bench.gpu, {}, GUARD_BYTES
        sizes: dict[str, int] = {}
        for binding in (each for program in programs for each in program.bindings):
            size = binding.elements * STORED_DTYPES[binding.dtype].itemsize
            sizes[binding.name] = max(size, sizes.get(binding.name, 0))
        for name, size in sizes.items():
            self.places[name] = slice(end, end + size)
            end += -(-size // GUARD_BYTES) * GUARD_BYTES + GUARD_BYTES
        self.bytes, self.buffer = end, bench.gpu.buffer(end)
        pipelines = bench.pipelines(programs) if pipelines is None else pipelines
        self.recording = bench.gpu.record([
            Dispatch(pipeline, tuple((self.buffer, self.places[binding.name].start)
                                     for binding in program.bindings))
            for pipeline, program in zip(pipelines, programs, strict=True)])

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, *_: object) -> None:
        self.recording.close()
        self.buffer.close()

    def before(self, arrays: Arrays) -> np.ndarray:
        """The bytes that a run begins from: `arrays`, poison where there is none, and guards."""
        memory = np.full(self.bytes, GUARD, np.uint8)
        for name, place in self.places.items():
            memory[place] = POISON
            if name in arrays:
                flat = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
                memory[place.start:place.start + flat.size] = flat
        return memory

    def run(self, before: np.ndarray) -> np.ndarray:
        """The bytes that a run leaves which begins from these."""
        self.gpu.write(self.buffer, 0, before)
        self.gpu.run(self.recording)
        return self.gpu.read(self.buffer, 0, self.bytes)

    def array(self, memory: np.ndarray, name: str, dtype: np.dtype) -> np.ndarray:
        """What the bytes hold for a name, flat."""
        return memory[self.places[name]].view(dtype)

    def outside(self, names: Iterable[str]) -> np.ndarray:
        """Where memory must stay as it is when only what has these names is written."""
        kept = np.ones(self.bytes, bool)
        for name in names:
            if name in self.places:
                kept[self.places[name]] = False
        return kept
