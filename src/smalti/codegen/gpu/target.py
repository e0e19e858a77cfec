"""What targets of GPUs have in common: kernels become group programs, which each target spells in
its own language."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from smalti import settings
from smalti.codegen.gpu.byte_weights import PackedBytes
from smalti.codegen.gpu.fitting import first_that_fits
from smalti.codegen.gpu.form import Binding, GroupProgram
from smalti.codegen.gpu.functions import FUNCTIONS
from smalti.codegen.gpu.interpreter import run
from smalti.codegen.gpu.lower import lower
from smalti.codegen.gpu.lowered import RAW, STORED_AS, GroupSteps
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.codegen.gpu.quantised import PackedGroups
from smalti.codegen.gpu.scalars import scalarised
from smalti.codegen.gpu.weight_layout import Packed
from smalti.codegen.shader import BufferUse, Shader
from smalti.codegen.target import ARENA, WORKSPACE, EncodedFunctions, Reference, Refusal, Target
from smalti.errors import IllegalSchedule
from smalti.fuse.support import WORDS_OF_FOUR
from smalti.graph.operation import DTYPES, HALVES
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import Buffer, Kernel
from smalti.schedule.candidates_group import (
    arithmetic,
    candidates,
    expected_clocks,
)
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupLimits

INTEGER_PRODUCTS = ("mat_mul_integer", "conv_integer", WORDS_OF_FOUR)
"""The products of integers that there are kernels for: of bytes, which are staged in words."""
USUAL = GroupLimits(shared_bytes=32 << 10, invocations=256, subgroup_min=8, subgroup_max=32,
                    storage16=True, f16=True, bindings=16)
"""What nearly every GPU of the last ten years has, without its matrix unit."""
LEAST = GroupLimits(push_bytes=112)
"""What every device of Vulkan 1.2 and of WebGPU has. Of the 128 bytes of push constants that all of
them have, WGSL keeps four words for itself."""
NO_INTEGERS = ("has no kernels for products of integers of 8 bits, which CPUs have (x86, and ARM64 "
               "with DotProd); use auto, f16 or f32")
"""What is said of precision "int8"."""
Emit = Callable[[GroupProgram, GroupLimits], bytes]
"""A program as code for a device of these limits."""


def group_target(name: str, driver: str, emit: Emit, text: Callable[[bytes], str],
                 precisions: tuple[str, ...] = ("f32", "f16", "bf16"),
                 lacks: Mapping[str, str] | None = None) -> Target:
    """The target of a language that `driver` takes: `emit` writes it, `text` makes it readable,
    behind the name of a program and a colon."""

    def encode(programs: Sequence[GroupProgram], limits: GroupLimits) -> EncodedFunctions:
        """Programs one after the other."""
        code, entries = bytearray(), []
        for program in programs:
            written = emit(program, limits)
            if settings.show("asm"):
                print(f"{program.name}:{text(written)}")
            entries.append(len(code))
            code += written
        return EncodedFunctions(bytes(code), entries, list(map(shader_of, programs)))

    return Target(
        name, frozenset((*FUNCTIONS, *INTEGER_PRODUCTS)), precisions, {*HALVES, *FORMATS},
        first=first_that_fits, likely=choose_group,
        space=candidates, arithmetic=arithmetic, lower=lower, encode=encode, cost=expected_clocks,
        listing=str,
        refusal=Refusal((IllegalSchedule, OverflowError), "the device has no room for:",
                        "{error}; choose smaller sizes or device='cpu'"),
        automatic="f16", halves=lambda limits: limits.storage16,
        lacks={"int8": NO_INTEGERS, **(lacks or {})},
        stored=STORED_AS, stored_parameters=RAW,
        whole_parameters=True, placed=placed, interpret=interpreted, usual=USUAL, least=LEAST,
        driver=driver, alias=driver)


def interpreted(low: GroupSteps, kernel: Kernel, memory: dict[str, np.ndarray]
                ) -> dict[str, np.ndarray]:
    """What the buffers of a kernel hold when numpy has run its steps, one after the other."""
    return ran(low, kernel, memory,
               lambda step, bound: run(step, bound, subgroup=USUAL.subgroup_max))


def ran(low: GroupSteps, kernel: Kernel, memory: dict[str, np.ndarray],
        launched: Callable[[GroupProgram, dict[str, np.ndarray]], Mapping[str, np.ndarray]]
        ) -> dict[str, np.ndarray]:
    """The same where `launched` runs a program on what its bindings hold, and gives that back."""
    memory = dict(memory)
    if low.packed:
        weight = kernel.buffer(low.packed.buffer)
        memory[weight.name] = bound_weight(low.packed, weight, memory[weight.name])
    workspace = np.full(low.workspace_bytes, 0xFF, np.uint8)
    for step in low.steps:
        bound = {}
        for binding in step.bindings:
            kind = STORED_DTYPES[binding.dtype]
            bound[binding.name] = memory[binding.name] if binding.name != WORKSPACE else (
                workspace[:binding.elements * kind.itemsize].view(kind))
        for name, values in launched(step, bound).items():
            if name == WORKSPACE:
                workspace[:values.nbytes] = values.view(np.uint8)
            else:
                memory[name] = values
    return memory


def bound_weight(packed: Packed | PackedGroups | PackedBytes, weight: Buffer,
                 given: np.ndarray) -> np.ndarray:
    """The weight of a buffer, whose elements, or words, are given flat, as a program reads it."""
    if isinstance(packed, PackedGroups):
        words = given.reshape(packed.parts * packed.o, -1, packed.form.words)
        return packed.pack(words)
    logical = np.lib.stride_tricks.as_strided(
        given, weight.shape, [given.itemsize * stride for stride in weight.strides])
    return packed.pack(np.ascontiguousarray(logical)).reshape(-1)


def shader_of(program: GroupProgram) -> Shader:
    """What a driver is told of a program."""
    sizes = [STORED_DTYPES[each.dtype].itemsize for each in program.bindings]
    uses = tuple(BufferUse(each.elements * size, size, each.access != "write",
                           each.access != "read")
                 for each, size in zip(program.bindings, sizes))
    return Shader(program.name, program.groups, program.size, program.subgroup, uses)


def placed(step: GroupProgram, references: Mapping[str, Reference]) -> GroupProgram:
    """The program with single accesses to what does not begin at a multiple of its vectors; what a
    result lies over, element by element, is said to be written, so that a driver expects it."""
    def item(dtype: str) -> int:
        return np.dtype(DTYPES[dtype]).itemsize

    def span(binding: Binding) -> range:
        start = references[binding.name][-1]
        return range(start, start + binding.elements * item(binding.dtype))

    off = {b.name for b in step.bindings
           if references[b.name][-1] % (b.lanes * item(b.dtype))}
    step = scalarised(step, off) if off else step
    in_arena = [b for b in step.bindings if references[b.name][0] == ARENA]
    written = [span(b) for b in in_arena if b.access != "read"]
    over = {b.name for b in in_arena if b.access == "read" and any(
        max(span(b).start, w.start) < min(span(b).stop, w.stop) for w in written)}
    if not over:
        return step
    return replace(step, bindings=tuple(
        replace(b, access="read_write") if b.name in over else b for b in step.bindings))
