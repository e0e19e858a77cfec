"""What lowering gives: functions, how many tiles each runs, and the memory they need besides."""

from __future__ import annotations

from smalti.codegen.cpu.assembler import Assembler, Code
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.cpu.weights import CodePanels, IntegerPanels, WeightPanels
from smalti.codegen.target import WORKSPACE
from smalti.dataclass import dataclass
from smalti.kernel.form import Kernel


@dataclass(frozen=True)
class KernelStep:
    """A function called once for each of `tiles` tiles, in any order, by any thread."""

    code: Code
    tiles: int


@dataclass(frozen=True)
class NativeKernel:
    """The steps of a kernel, in order.

    Each is called with the pointers of the kernel's buffers that are not local, in order, then one
    to `workspace_bytes` shared by all threads; with a tile number; with `scratch_bytes` of its
    thread, aligned to 4096.
    """

    steps: tuple[KernelStep, ...]
    buffers: tuple[str, ...]
    scratch_bytes: int = 0
    workspace_bytes: int = 0
    packed: WeightPanels | CodePanels | IntegerPanels | None = None
    winograd: tuple[int, bool] | None = None
    """The F(m) that it computes, and whether an enlargement is folded in."""

    def operands(self, step: KernelStep) -> tuple[str, ...]:
        """Names of the buffers whose pointers a step is given, in order."""
        return (*self.buffers, WORKSPACE) if self.workspace_bytes else self.buffers


def pointers(kernel: Kernel) -> tuple[str, ...]:
    """Names of the buffers whose pointers a step gets, in order."""
    return tuple(b.name for b in kernel.buffers if b.role != "local")


def load_pointers(asm: Assembler, table: Register, names: tuple[str, ...]) -> dict[str, Register]:
    """A register for each name, loaded from the table of pointers."""
    loaded = {}
    for i, name in enumerate(names):
        loaded[name] = asm.general()
        asm.op("mov", loaded[name], Address(table, 8 * i))
    return loaded


def smaller(asm: Assembler, register: Register, most: int) -> Register:
    """A new register: min(register, most), signed."""
    result, done = asm.copy(register), asm.label()
    asm.op("compare_immediate", result, most)
    asm.jump("less", done)
    asm.set(result, most)
    asm.place(done)
    return result


def count_left(asm: Assembler, origin: Register, tile: int, extent: int) -> int | Register:
    """How much of a tile at `origin` lies inside `extent`; a number where it always all does."""
    if extent % tile == 0:
        return tile
    left = asm.immediate(extent)
    asm.op("isub", left, origin)
    return smaller(asm, left, tile)
