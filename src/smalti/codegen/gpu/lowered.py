"""What lowering a kernel for GPUs gives: programs, and the memory they need besides."""

from __future__ import annotations

from typing import ClassVar

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.byte_weights import PackedBytes
from smalti.codegen.gpu.form import Binding, GroupProgram
from smalti.codegen.gpu.quantised import PackedGroups
from smalti.codegen.gpu.weight_layout import Packed
from smalti.dataclass import dataclass
from smalti.kernel.form import Buffer, Kernel, extent

STORED_AS = {"f32": "f32", "f16": "f16", "bf16": "bf16", "i32": "i32", "i64": "i32", "bool": "i32",
             "i8": "i32", "u8": "i32"}
"""How a device stores elements of each dtype between kernels. 64-bit integers are row numbers, and
are checked to fit when they come in; stores of single bytes would race for a word."""
RAW = {**STORED_AS, "i8": "i8", "u8": "u8", "bool": "u8"}
"""How it stores those of parameters, which are only read: as they are."""


@dataclass(frozen=True)
class GroupSteps:
    """The steps of a kernel, in order; each may read what those before have written.

    Bindings of a step are called as the kernel's buffers that they are, `WORKSPACE` for memory of
    `workspace_bytes` that only the steps of this kernel share. A buffer that is `packed` is bound
    to what packing makes of it.
    """

    steps: tuple[GroupProgram, ...]
    workspace_bytes: int = 0
    packed: Packed | PackedGroups | PackedBytes | None = None
    scratch_bytes: ClassVar[int] = 0
    winograd: ClassVar[None] = None

    def operands(self, step: GroupProgram) -> tuple[str, ...]:
        """Names of what a step is bound to, in the order of its bindings."""
        return tuple(binding.name for binding in step.bindings)


def stored_dtype(buffer: Buffer) -> str:
    """What the device stores the elements of a kernel's buffer as."""
    return (RAW if buffer.role == "parameter" else STORED_AS)[buffer.dtype]


def bind(builder: Builder, kernel: Kernel, name: str, lanes: int = 1) -> Binding:
    """A binding for one of the kernel's buffers that are not local.

    It may be read and written: memory between kernels is one buffer of the device, and parameters
    are others, which are only read.
    """
    buffer = kernel.buffer(name)
    access = {"parameter": "read", "input": "read", "output": "write"}[buffer.role]
    return builder.binding(name, stored_dtype(buffer), extent(buffer), access, lanes)
