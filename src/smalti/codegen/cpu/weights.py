"""How contractions want their weights in memory: in panels of output channels, packed once."""

from __future__ import annotations

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.winograd_transforms import TRANSFORMS, WinogradTransform
from smalti.dataclass import dataclass
from smalti.graph.operations.contraction import STEPS
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import (
    STORED_BYTES,
    Kernel,
    paired_weights,
    rounded_weights,
    weight_steps,
)
from smalti.schedule.merge import bytes_shift, contraction_extents
from smalti.schedule.schedule import BINDING, ContractionSchedule

SUM_BITS, SUM_FLOAT = 0x4B400000, 1.5 * 2.0 ** 23
"""A number and its bits as f32, the lowest of which hold whole numbers of less than 2^22: sums of a
group of codes, which begin with it on AArch64, are made f32 by subtracting it. On a Neoverse N1
`scvtf` takes one of the two units that multiply for two clocks, a subtraction either for one."""
PAIRED_CHANNELS = 8
"""The most channels that a step of a contraction takes of bf16: four pairs."""


@dataclass(frozen=True)
class WeightPanels:
    """How a weight [o, c, r, s] is laid out for a contraction.

    [panel][chunk][r][s][c in chunk][o in panel], o in panel innermost, zeros where o or c end; in
    bf16 two neighbouring c stand side by side under each o; with `blocks`, of each two lines the
    first has four c of the first two o of each vector, the other one those of the last two, as
    `dot_blocks` takes them. With `winograd` the window is replaced
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
    blocks: bool = False

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
        """Bytes from a channel (or pair) to the next one at the same tap."""
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
        size = STORED_BYTES[self.dtype]
        points = self.transform.points if self.winograd else self.taps
        return self.panels * self.chunks * points * self.chunk * self.width * size

    @property
    def panel_bytes(self) -> int:
        """Bytes from one panel to the next."""
        return self.bytes // self.panels


@dataclass(frozen=True)
class IntegerPanels(WeightPanels):
    """How a weight of integers is laid out: four neighbouring c as bytes (`dtype` "i8"), or two as
    words ("i16"), stand side by side under each o.

    Words are less their zero point, `weight_zero`. Bytes have a sign; those that are given without
    one are less 128. With `blocks`, two lines have eight bytes of the first two o of each vector,
    and of the last two. The patch of bytes has the zero point `zero`, by which each sum is too
    large: behind all panels stand the i32 with which sums begin, -zero times the sum of the weights
    of each o, where `zero` is not 0. Numbers that are `rounded` to integers have a scale for each
    o, an f32, which stands behind these; `paired`, as two neighbouring c want it together. The
    largest of them becomes `steps`.
    """

    zero: int = 0
    weight_zero: int = 0
    rounded: bool = False
    paired: bool = False
    steps: int = STEPS

    @property
    def data_bytes(self) -> int:
        """Bytes of all panels, behind which the first values of sums stand."""
        return super().bytes

    @property
    def heads(self) -> bool:
        """Whether sums begin with other values than 0."""
        return self.dtype == "i8" and self.zero != 0

    @property
    def bytes(self) -> int:
        """Bytes of the packed weight."""
        return self.scales_at + (4 * self.width * self.panels if self.rounded else 0)

    @property
    def scales_at(self) -> int:
        """Where scales begin."""
        return self.data_bytes + (4 * self.width * self.panels if self.heads else 0)

    @property
    def panel_bytes(self) -> int:
        """Bytes from one panel to the next."""
        return self.data_bytes // self.panels


@dataclass(frozen=True)
class CodePanels(WeightPanels):
    """How a quantised weight is laid out whose codes are multiplied by bytes with the zero point
    `zero`: [panel][group][line of the group][o in panel].

    A group has its scale, its minimum where it has one, and an i32 with which its sum begins, -zero
    times the sum of its codes, or that and `SUM_BITS` where products take factors by lane; then the
    codes, which all have a sign: four channels of 8 bits in a word, or of eight channels of 4 bits
    the first four in the lower halves of the bytes and the last four in the upper ones. Codes
    of 4 bits are multiplied as 16 times as large, in the upper halves of bytes, where their signs
    are those of bytes; a 16th of the scale makes up for it.
    """

    zero: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the packed weight."""
        form = FORMATS[self.dtype]
        groups = self.chunks * self.chunk // form.group
        return 4 * self.panels * self.width * groups * (form.words + 1)


def patch_zero(kernel: Kernel, signed: bool) -> int:
    """The zero point of the patch of a contraction of bytes as they are multiplied: without a sign,
    or with one, where bytes without are less 128."""
    return (bytes_shift(kernel) or 0) - (128 if signed else 0)


def weight_panels(kernel: Kernel, schedule: ContractionSchedule,
                  level: FeatureLevel) -> WeightPanels:
    """How a contraction wants its weight.

    Plain weights that are transformed as the kernel runs lie a vector of channels at a time (in
    bf16 at least as many as a step may take), whatever the chunk, so that all such schedules share
    them.
    """
    e = contraction_extents(kernel)
    if schedule.integers:
        zero = patch_zero(kernel, level.signed) if schedule.dtype == "u8" else 0
        if schedule.by_group:
            return CodePanels("weight", e.o, e.c, e.r, e.s, schedule.vectors * level.lanes,
                              schedule.chunk, schedule.weights, parts=e.parts, zero=zero)
        return IntegerPanels("weight", e.o, e.c, e.r, e.s, schedule.vectors * level.lanes,
                             schedule.chunk, schedule.weights, parts=e.parts,
                             blocks=level.blocks and schedule.blocks, zero=zero,
                             weight_zero=int(dict(kernel.options).get("weight_zero", 0)),
                             rounded=rounded_weights(kernel), paired=paired_weights(kernel),
                             steps=weight_steps(kernel))
    winograd, chunk, transform = (0, False), schedule.chunk, schedule.winograd
    if transform and transform.transformed == BINDING:
        winograd = transform.size, transform.folded
    elif transform:
        unit = max(level.lanes, PAIRED_CHANNELS) if schedule.weights == "bf16" else level.lanes
        if schedule.weights not in FORMATS and e.c % level.lanes == chunk % unit == 0:
            chunk = unit
    width, blocks = schedule.vectors * level.lanes, level.blocks and schedule.blocks
    return WeightPanels("weight", e.o, e.c, e.r, e.s, width, chunk, schedule.weights, *winograd,
                        e.parts, blocks)
