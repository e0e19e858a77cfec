"""A GPU whose programs numpy runs: it finds races and accesses out of bounds in whole models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.gpu.interpreter import run as interpret
from smalti.codegen.gpu.target import group_target
from smalti.codegen.gpu.text import parse, show
from smalti.codegen.shader import Shader
from smalti.graph.operation import DTYPES
from smalti.runtime.device import Device
from smalti.runtime.gpu import interface as gpu
from smalti.schedule.group import GroupLimits

LIMITS = GroupLimits(shared_bytes=32 << 10, invocations=256, subgroup_min=8, subgroup_max=8,
                     subgroup_operations=True, storage16=True, storage8=True, f16=True,
                     dot_i8=True, buffer_bytes=1 << 30, buffer_range=1 << 30, bindings=16)


EMITTED: dict[bytes, GroupProgram] = {}
"""Programs by their text, which need not be parsed again."""


def emit(program: GroupProgram, limits: GroupLimits) -> bytes:
    """The text of a program."""
    code = show(program).encode()
    EMITTED[code] = program
    return code


TARGET = group_target("text", "interpreted", emit, bytes.decode)


@dataclass(eq=False)
class Memory(gpu.DeviceBuffer):
    bytes: int
    kind: str = "device"

    def __post_init__(self) -> None:
        self.memory = np.full(self.bytes, 0xFF, np.uint8)  # as f32 and f16: NaN

    def close(self) -> None:
        pass


class Interpreted(gpu.ComputePipeline):
    def __init__(self, shader: Shader, program: GroupProgram) -> None:
        self.name, self.groups, self.program = shader.name, shader.groups, program
        self.bindings = shader.bindings


class Recorded(gpu.Recording):
    def __init__(self, launches: Sequence[gpu.Launch]) -> None:
        self.launches = tuple(launches)

    def seconds(self) -> tuple[float, ...]:
        return (1e-6,) * len(self.launches)

    def close(self) -> None:
        pass


class InterpretedGpu(gpu.Gpu):
    """Each launch is one run of the interpreter."""

    target = TARGET

    def __init__(self, limits: GroupLimits = LIMITS) -> None:
        self.limits = limits
        self.device = Device("interpreted", "interpreter", "cpu", 1 << 34, ())
        self.launched = 0

    def build(self, shader: Shader, code: bytes) -> Interpreted:
        return Interpreted(shader, EMITTED.get(code) or parse(code.decode()))

    def buffer(self, bytes: int, *, kind: str = "device") -> Memory:
        return Memory(bytes, kind)

    def write(self, buffer: Memory, offset: int, data: np.ndarray) -> None:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        buffer.memory[offset:offset + flat.size] = flat

    def read(self, buffer: Memory, offset: int, bytes: int) -> np.ndarray:
        return buffer.memory[offset:offset + bytes].copy()

    def record(self, launches: Sequence[gpu.Launch], *, timed: bool = False) -> Recorded:
        return Recorded(launches)

    def run(self, recording: Recorded) -> None:
        for launch in recording.launches:
            if isinstance(launch, gpu.Copy):
                data = self.read(launch.source, launch.source_offset, launch.bytes)
                assert launch.bytes == data.size and not launch.bytes % 4
                self.write(launch.target, launch.target_offset, data)
                continue
            program, views = launch.pipeline.program, {}
            for binding, (buffer, offset) in zip(program.bindings, launch.operands, strict=True):
                kind = np.dtype(DTYPES[binding.dtype])
                end = offset + kind.itemsize * binding.elements
                assert end <= buffer.bytes and not offset % (kind.itemsize * binding.lanes)
                views[binding.name] = buffer.memory[offset:end].view(kind)
            found = interpret(program, {name: view.copy() for name, view in views.items()},
                              subgroup=self.limits.subgroup_min)
            for binding in program.bindings:
                if binding.access != "read":
                    views[binding.name][:] = found[binding.name]
            self.launched += 1

    def wait(self) -> None:
        pass

    def free_bytes(self) -> int:
        return 1 << 34

    def close(self) -> None:
        pass
