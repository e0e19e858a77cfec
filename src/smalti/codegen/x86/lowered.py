"""What lowering gives: functions, how many tiles each runs, and the memory they need besides."""

from __future__ import annotations

from dataclasses import dataclass

from smalti.codegen.x86.assembler import Assembler, Code, Memory, Register
from smalti.codegen.x86.winograd_transforms import TRANSFORMS, WinogradTransform
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import ELEMENT_BYTES, Kernel


@dataclass(frozen=True)
class PackedWeight:
    """How a weight [o, c, r, s] is laid out for a contraction.

    [panel][chunk][r][s][c in chunk][o in panel], o in panel innermost, zeros where o or c end; in
    bf16 two neighbouring c stand side by side under each o. With `winograd` the window is replaced
    by the points of F(2) or F(4), outside of the channels: [panel][point][c][o in panel]; `folded`
    is that of the schedule. The weight has `parts` times `out_channels` rows; the panels of a part
    lie together. Quantised ones are words, of each group those of `graph.quantised`, and
    groups run along all taps of a channel, then those of the next:
    [panel][chunk][group in chunk][word of the group][o in panel].
    """

    buffer: str
    out_channels: int
    channels: int
    rows: int
    columns: int
    width: int
    chunk: int
    dtype: str
    winograd: int = 0
    folded: bool = False
    parts: int = 1

    @property
    def line_bytes(self) -> int:
        """Bytes of a channel (a pair of them in bf16, a word of quantised ones) of a panel."""
        return self.width * (2 if self.dtype == "f16" else 4)

    @property
    def taps(self) -> int:
        """Places of the window."""
        return self.rows * self.columns

    @property
    def channel_lines(self) -> int:
        """Lines from a channel (or pair) to the next one at the same tap, as a micro-kernel reads
        them: of quantised weights all taps of a channel lie side by side, as they are unpacked."""
        return self.taps if self.dtype in FORMATS else 1

    @property
    def channel_bytes(self) -> int:
        """The same in bytes."""
        return self.channel_lines * self.line_bytes

    @property
    def part_panels(self) -> int:
        """Panels of `width` output channels of one part."""
        return -(-self.out_channels // self.width)

    @property
    def panels(self) -> int:
        """Panels of all parts."""
        return self.parts * self.part_panels

    @property
    def chunks(self) -> int:
        """Chunks of `chunk` input channels."""
        return -(-self.channels // self.chunk)

    @property
    def transform(self) -> WinogradTransform:
        """The matrices of a packing with `winograd`."""
        return TRANSFORMS[self.winograd, self.folded]

    @property
    def bytes(self) -> int:
        """Bytes of the packed weight."""
        if self.dtype in FORMATS:
            return 4 * self.panels * self.width * FORMATS[self.dtype].words_of(
                self.chunks * self.chunk * self.taps)
        size = ELEMENT_BYTES[self.dtype]
        points = self.transform.points if self.winograd else self.taps
        return self.panels * self.chunks * points * self.chunk * self.width * size

    @property
    def panel_bytes(self) -> int:
        """Bytes from one panel to the next."""
        return self.bytes // self.panels


@dataclass(frozen=True)
class Step:
    """A function called once for each of `tiles` tiles, in any order, by any thread."""

    code: Code
    tiles: int


@dataclass(frozen=True)
class Lowered:
    """The steps of a kernel, in order.

    Each is called with the pointers of the kernel's buffers that are not local, in order, then one
    to `workspace_bytes` shared by all threads; with a tile number; with `scratch_bytes` of its
    thread, aligned to 4096.
    """

    steps: tuple[Step, ...]
    buffers: tuple[str, ...]
    scratch_bytes: int = 0
    workspace_bytes: int = 0
    packed: PackedWeight | None = None
    winograd: tuple[int, bool] | None = None
    """The F(m) that it computes, and whether an enlargement is folded in."""


def pointers(kernel: Kernel) -> tuple[str, ...]:
    """Names of the buffers whose pointers a step gets, in order."""
    return tuple(b.name for b in kernel.buffers if b.role != "local")


def load_pointers(asm: Assembler, table: Register, names: tuple[str, ...]) -> dict[str, Register]:
    """A register for each name, loaded from the table of pointers."""
    loaded = {}
    for i, name in enumerate(names):
        loaded[name] = asm.general()
        asm.op("mov", loaded[name], Memory(table, 8 * i))
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
