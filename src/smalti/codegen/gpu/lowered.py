"""What lowering a kernel for GPUs gives: programs, and the memory they need besides."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.byte_weights import PackedBytes
from smalti.codegen.gpu.form import Binding, GroupProgram
from smalti.codegen.gpu.quantised import PackedGroups
from smalti.graph.operation import DTYPES
from smalti.graph.quantised import Quantised
from smalti.kernel.form import Buffer, Kernel

STORED_AS = {"f32": "f32", "f16": "f16", "bf16": "bf16", "i32": "i32", "i64": "i32", "bool": "i32",
             "i8": "i32", "u8": "i32"}
"""How a device stores elements of each dtype between kernels. 64-bit integers are row numbers, and
are checked to fit when they come in; stores of single bytes would race for a word."""
RAW = {**STORED_AS, "i8": "i8", "u8": "u8", "bool": "u8"}
"""How it stores those of parameters, which are only read: as they are."""
BLOCK = 64
"""Channels of weights along both axes that are turned at a time, in cache."""


@dataclass(frozen=True)
class Packed:
    """How the weight of a buffer is laid out in memory of the device:

        from [part][o of the part][c][tap]      to [row][part][column] of `dtype`

    Rows are taps times c, columns are o of the part; those beyond are 0. In blocks of `block` rows
    it is [row / block][part][column][row in the block].
    """

    buffer: str
    dtype: str
    parts: int
    o: int
    c: int
    taps: int
    rows: int
    columns: int
    block: int = 1

    @property
    def elements(self) -> int:
        """Elements of it, zeros included."""
        return self.rows * self.parts * self.columns

    @property
    def bytes(self) -> int:
        """Bytes of it."""
        return self.elements * np.dtype(DTYPES[self.dtype]).itemsize

    def pack(self, given: np.ndarray | Quantised) -> np.ndarray:
        """The weight as the device wants it. Quantised ones are widened."""
        values = given.floats() if isinstance(given, Quantised) else np.asarray(given)
        values = values.reshape(self.parts, self.o, self.c, self.taps)
        packed = np.zeros((self.rows, self.parts, self.columns), DTYPES[self.dtype])
        target = packed[:self.taps * self.c].reshape(self.taps, self.c, *packed.shape[1:])
        for part, o, c in product(range(self.parts), range(0, self.o, BLOCK),
                                  range(0, self.c, BLOCK)):
            block = values[part, o:o + BLOCK, c:c + BLOCK].astype(packed.dtype)
            target[:, c:c + BLOCK, part, o:o + len(block)] = block.transpose(2, 1, 0)
        if self.block == 1:
            return packed
        blocks = packed.reshape(-1, self.block, self.parts, self.columns)
        return np.ascontiguousarray(blocks.transpose(0, 2, 3, 1))


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


def extent(buffer: Buffer) -> int:
    """Elements from the first to the last of a strided buffer.

    >>> extent(Buffer("x", "input", (2, 3), (10, 1)))
    13
    """
    return 1 + sum((n - 1) * stride for n, stride in zip(buffer.shape, buffer.strides))


def bind(builder: Builder, kernel: Kernel, name: str, lanes: int = 1) -> Binding:
    """A binding for one of the kernel's buffers that are not local.

    It may be read and written: memory between kernels is one buffer of the device, and parameters
    are others, which are only read.
    """
    buffer = kernel.buffer(name)
    access = {"parameter": "read", "input": "read", "output": "write"}[buffer.role]
    return builder.binding(name, stored_dtype(buffer), extent(buffer), access, lanes)
