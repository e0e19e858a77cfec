"""Statistics of normalisations: scale and shift, so that normalising is one multiply-add.

Sums of squares are taken of differences to the first pixel of each part, and parts are combined
through their means (Chan, Golub & LeVeque 1983), so that a large mean costs no precision.
"""

from __future__ import annotations

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import Assembler, FeatureLevel
from smalti.codegen.cpu.functions import reciprocal
from smalti.codegen.cpu.lowered import KernelStep, NativeKernel, count_left, load_pointers, pointers
from smalti.codegen.cpu.operands import Address, Register
from smalti.errors import IllegalSchedule
from smalti.kernel.form import STORED_BYTES, Buffer, Kernel
from smalti.schedule.schedule import MomentsSchedule

BLOCK = 6
"""Vectors of channels that are summed together."""


def lower_group(kernel: Kernel, schedule: MomentsSchedule, level: FeatureLevel) -> NativeKernel:
    """Machine code of a group_scale_shift: sums of parts of the pixels, then their combination."""
    batch, channels, pixels = kernel.buffer("x").shape
    if pixels % schedule.parts:
        raise IllegalSchedule(f"{pixels} pixels in {schedule.parts} parts")
    if kernel.buffer("x").strides[1] != 1 and channels > 1:
        raise IllegalSchedule("channels must lie side by side")
    names = pointers(kernel)
    padded = 4 * (-(-channels // level.lanes) * level.lanes)
    workspace = batch * schedule.parts * 2 * padded + 2 * batch * padded
    steps = (KernelStep(_sum_parts(kernel, schedule, level, names, padded), batch * schedule.parts),
             KernelStep(_combine(kernel, schedule, level, names, padded), batch))
    return NativeKernel(steps, names, workspace_bytes=workspace)


def _sum_parts(kernel: Kernel, schedule: MomentsSchedule, level: FeatureLevel,
               names: tuple[str, ...], padded: int):
    """workspace[n][part] = mean [c], then sum of squared differences to it [c]."""
    x = kernel.buffer("x")
    _, channels, pixels = x.shape
    count = pixels // schedule.parts
    asm = level.assembler("group_sums")
    table, index = asm.argument(), asm.argument()
    held = load_pointers(asm, table, (*names, "workspace"))
    index = asm.copy(index)
    n, part = asm.divide(index, schedule.parts)
    size = STORED_BYTES[x.dtype]
    step = size * level.lanes
    source = asm.offset(held["x"], n, size * x.strides[0])
    source = asm.offset(source, part, size * x.strides[2] * count)
    target = asm.offset(held["workspace"], index, 2 * padded)
    full, tail = divmod(channels, level.lanes)
    blocks, left = divmod(full, BLOCK)

    def block(vectors: int, lanes: int | None) -> None:
        first = [elements.load(asm, x.dtype, Address(source, v * step), lanes)
                 for v in range(vectors)]
        sums, squares = (_zeros(asm, vectors) for _ in range(2))
        at = asm.copy(source)
        with asm.loop(count):
            for v in range(vectors):
                x_v = elements.load(asm, x.dtype, Address(at, v * step), lanes)
                rest = asm.result("sub", x_v, first[v])
                asm.op("add", sums[v], sums[v], rest)
                asm.op("fma", squares[v], rest, rest)
            asm.advance(at, size * x.strides[2])
        for v in range(vectors):
            mean = asm.result("mul", sums[v], asm.constant(1 / count))
            asm.op("fma_negative", squares[v], mean, sums[v])
            asm.store(Address(target, v * level.bytes), asm.result("add", mean, first[v]))
            asm.store(Address(target, padded + v * level.bytes), squares[v])
        asm.advance(source, vectors * step)
        asm.advance(target, vectors * level.bytes)

    if blocks:
        with asm.loop(blocks):
            block(BLOCK, None)
    if left:
        block(left, None)
    if tail:
        block(1, tail)
    return asm.finish()


def _zeros(asm: Assembler, count: int) -> list[Register]:
    registers = asm.vectors(count)
    for register in registers:
        asm.clear(register)
    return registers


def _combine(kernel: Kernel, schedule: MomentsSchedule, level: FeatureLevel, names: tuple[str, ...],
             padded: int):
    """The parts to channels, the channels to groups, the groups to scale and shift."""
    batch, channels, pixels = kernel.buffer("x").shape
    parts, count = schedule.parts, pixels // schedule.parts
    asm = level.assembler("group_combine")
    table, n = asm.argument(), asm.argument()
    held = load_pointers(asm, table, (*names, "workspace"))
    source = asm.offset(held["workspace"], n, parts * 2 * padded)
    whole = asm.copy(held["workspace"])
    asm.advance(whole, batch * parts * 2 * padded)
    whole = asm.offset(whole, n, 2 * padded)
    at = asm.copy(whole)
    with asm.loop(padded // level.bytes):
        mean, squares, spread = (_zeros(asm, 1)[0] for _ in range(3))
        part = asm.copy(source)
        with asm.loop(parts):
            asm.op("add", mean, mean, Address(part))
            asm.op("add", squares, squares, Address(part, padded))
            asm.advance(part, 2 * padded)
        mean = asm.result("mul", mean, asm.constant(1 / parts))
        part = asm.copy(source)
        with asm.loop(parts):
            rest = asm.result("sub", mean, Address(part))
            asm.op("fma", spread, rest, rest)
            asm.advance(part, 2 * padded)
        asm.op("fma", squares, spread, asm.load_constant(count))
        asm.store(Address(at), mean)
        asm.store(Address(at, padded), squares)
        asm.advance(at, level.bytes)
        asm.advance(source, level.bytes)
    _groups(asm, kernel, held, whole, n, padded)
    return asm.finish()


def _groups(asm: Assembler, kernel: Kernel, held: dict[str, Register], whole: Register,
            n: Register, padded: int) -> None:
    """scale and shift of every group from the means and squares of its channels."""
    _, channels, pixels = kernel.buffer("x").shape
    groups = int(kernel.option("groups"))
    each, level = channels // groups, asm.level
    scale = asm.offset(held["scale"], n, 4 * channels)
    shift = asm.offset(held["shift"], n, 4 * channels)
    gamma, beta, at = (asm.copy(r) for r in (held["gamma"], held["beta"], whole))
    with asm.loop(groups):
        mean, total = (_zeros(asm, 1)[0] for _ in range(2))
        channel = asm.copy(at)
        with asm.loop(each):
            asm.op("add", mean, mean, asm.result("broadcast", Address(channel)))
            asm.advance(channel, 4)
        mean = asm.result("mul", mean, asm.constant(1 / each))
        channel = asm.copy(at)
        with asm.loop(each):
            rest = asm.result("sub", asm.result("broadcast", Address(channel)), mean)
            square = asm.result("mul", rest, rest)
            asm.op("fma", total, square, asm.load_constant(pixels))
            asm.op("add", total, total, asm.result("broadcast", Address(channel, padded)))
            asm.advance(channel, 4)
        inverse = _inverse(asm, total, each * pixels, kernel.option("epsilon"))
        for v in range(-(-each // level.lanes)):
            lanes = min(level.lanes, each - v * level.lanes)
            factor = asm.result("mul", inverse, asm.load(Address(gamma, v * level.bytes), lanes))
            rest = asm.load(Address(beta, v * level.bytes), lanes)
            asm.op("fma_negative", rest, mean, factor)
            asm.store(Address(scale, v * level.bytes), factor, lanes)
            asm.store(Address(shift, v * level.bytes), rest, lanes)
        for register in (scale, shift, gamma, beta, at):
            asm.advance(register, 4 * each)


def _inverse(asm: Assembler, squares: Register, count: int, epsilon: float) -> Register:
    """1 / sqrt(squares / count + epsilon)."""
    variance = asm.multiply_add(squares, asm.load_constant(1 / count), asm.constant(epsilon))
    return reciprocal(asm, asm.result("sqrt", variance))


def lower_layer(kernel: Kernel, schedule: MomentsSchedule, level: FeatureLevel) -> NativeKernel:
    """Machine code of a layer_scale_shift: two passes over each row, which stays in cache."""
    x = kernel.buffer("x")
    rows, channels = x.shape
    if x.strides[1] != 1 and channels > 1:
        raise IllegalSchedule("the channels of a row must lie side by side")
    asm = level.assembler("layer")
    names = pointers(kernel)
    table, index = asm.argument(), asm.argument()
    held = load_pointers(asm, table, names)
    origin = asm.offset(asm.immediate(0), index, schedule.grain)
    pitch = STORED_BYTES[x.dtype] * x.strides[0]
    source = asm.offset(held["x"], origin, pitch)
    scale, shift = (asm.offset(held[name], origin, 4) for name in ("scale", "shift"))
    with asm.loop(count_left(asm, origin, schedule.grain, rows)):
        total = _row_sum(asm, source, x, lambda x_v, sums, lanes:
                         asm.op("add", sums, sums, x_v))
        mean = asm.result("mul", total, asm.constant(1 / channels))

        def square(x_v: Register, sums: Register, lanes: int | None) -> None:
            rest = asm.result("sub", x_v, mean)
            if lanes is not None:
                bits = [-1] * lanes + [0] * (level.lanes - lanes)
                rest = asm.result("and", rest, asm.integers(bits))
            asm.op("fma", sums, rest, rest)

        inverse = _inverse(asm, _row_sum(asm, source, x, square), channels,
                           kernel.option("epsilon"))
        minus = asm.result("mul", asm.result("xor", mean, asm.constant(-0.0)), inverse)
        asm.op("store_low", Address(scale), inverse)
        asm.op("store_low", Address(shift), minus)
        asm.advance(source, pitch)
        asm.advance(scale, 4)
        asm.advance(shift, 4)
    return NativeKernel((KernelStep(asm.finish(), -(-rows // schedule.grain)),), names)


def lower_rms(kernel: Kernel, schedule: MomentsSchedule, level: FeatureLevel) -> NativeKernel:
    """Machine code of an rms_scale: one pass over each row."""
    x = kernel.buffer("x")
    batch, rows, heads, channels = x.shape
    batch_step, row_step, head_step = (STORED_BYTES[x.dtype] * s for s in x.strides[:3])
    if x.strides[3] != 1 and channels > 1:
        raise IllegalSchedule("the channels of a head must lie side by side")
    asm = level.assembler("rms")
    names = pointers(kernel)
    table, index = asm.argument(), asm.argument()
    held = load_pointers(asm, table, names)
    blocks = -(-rows // schedule.grain)
    b, block = asm.divide(asm.copy(index), blocks)
    origin = asm.offset(asm.immediate(0), block, schedule.grain)
    row = asm.offset(asm.offset(held["x"], b, batch_step), origin, row_step)
    scale = asm.offset(asm.offset(held["scale"], b, 4 * rows * heads), origin, 4 * heads)
    with asm.loop(count_left(asm, origin, schedule.grain, rows)):
        source = asm.copy(row)
        with asm.loop(heads):
            total = _row_sum(asm, source, x, lambda x_v, sums, lanes:
                             asm.op("fma", sums, x_v, x_v))
            asm.op("store_low", Address(scale),
                   _inverse(asm, total, channels, kernel.option("epsilon")))
            asm.advance(source, head_step)
            asm.advance(scale, 4)
        asm.advance(row, row_step)
    return NativeKernel((KernelStep(asm.finish(), batch * blocks),), names)


def _row_sum(asm: Assembler, source: Register, x: Buffer, add) -> Register:
    """The sum over a row of `x` of what `add` adds for each vector, in all lanes."""
    level, ways = asm.level, 4
    step = STORED_BYTES[x.dtype] * level.lanes
    sums, at = _zeros(asm, ways), asm.copy(source)
    full, tail = divmod(x.shape[-1], level.lanes)
    blocks, left = divmod(full, ways)

    def load(v: int, lanes: int | None = None) -> Register:
        return elements.load(asm, x.dtype, Address(at, v * step), lanes)

    if blocks:
        with asm.loop(blocks):
            for v in range(ways):
                add(load(v), sums[v], None)
            asm.advance(at, ways * step)
    for v in range(left):
        add(load(v), sums[v], None)
    if tail:
        add(load(left, tail), sums[left % ways], tail)
    pairs = [asm.result("add", sums[0], sums[1]), asm.result("add", sums[2], sums[3])]
    return asm.sum_of_lanes(asm.result("add", *pairs))
