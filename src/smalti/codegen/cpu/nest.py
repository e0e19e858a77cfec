"""Loop nests that evaluate a scalar expression at every point: maps, staged patches, epilogues.

A nest has axes, the last of which runs along vectors. Every load and the store is an
`AccessStream`: a pointer to the element at the origin, and bytes from one step of each axis to the
next. Pointers are advanced where a loop ends, so that the innermost loop adds one index register.

Where the last axis is short, as that of the two channels of a pair, vectors run over the last two
axes, and what a load brings is put into the lanes that want it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.functions import evaluate
from smalti.codegen.cpu.operands import Address, Register
from smalti.dataclass import dataclass
from smalti.errors import IllegalSchedule
from smalti.kernel.form import STORED_BYTES, Expr, Index, Load
from smalti.schedule.merge import Access

LINE_BYTES = 64
"""Bytes of a cache line, on every x86 CPU so far."""
COPIED_AT_ONCE = 4
"""Vectors that a turn of a loop copies as they are: a store takes a clock, and so does the loop."""


@dataclass(frozen=True)
class AccessStream:
    """A pointer and its strides in bytes; `divided` and `indirect` as in `Access`, in bytes."""

    base: Register
    strides: Mapping[str, int]
    divided: tuple[tuple[int, Index], ...] = ()
    indirect: tuple[tuple[int, AccessStream], ...] = ()
    dtype: str = "f32"

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return STORED_BYTES[self.dtype]

    def stride(self, axis: str) -> int:
        """Bytes from one step of `axis` to the next."""
        return self.strides.get(axis, 0)


@dataclass
class LoopAxis:
    """A loop: its extent, static or in a register, and the absolute position of its origin.

    `guards` are (offset, extent) pairs: the point counts only where 0 <= position + offset <
    extent.
    """

    name: str
    extent: int | Register
    origin: Register | int = 0
    guards: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Sink:
    """Where results go: the stream, and what is written behind them.

    Where n results lie along the vector axis, zeros are stored behind them up to `padded(n)`.
    """

    stream: AccessStream
    pad_to: int = 1

    def padded(self, count: int) -> int:
        """`count` rounded up to whole `pad_to`."""
        return -(-count // self.pad_to) * self.pad_to


def stream_of(asm: Assembler, access: Access, pointers: Mapping[str, Register],
              origins: Mapping[str, Register | int]) -> AccessStream:
    """The stream of an access whose axes start at the given origins."""
    size = STORED_BYTES[access.dtype]
    base = asm.copy(pointers[access.buffer])
    asm.advance(base, size * access.offset)
    strides = {}
    for axis, stride in access.strides:
        strides[axis] = size * stride
        origin = origins.get(axis, 0)
        if isinstance(origin, int):
            asm.advance(base, size * stride * origin)
        else:
            base = asm.offset(base, origin, size * stride)
    divided = tuple((size * stride, index) for stride, index in access.divided)
    indirect = tuple((size * stride, stream_of(asm, inner, pointers, origins))
                     for stride, inner in access.indirect)
    return AccessStream(base, strides, divided, indirect, access.dtype)


class Nest:
    """Emits one nest. `streams` gives the stream of every load in `value`; where a guard does not
    hold the number `outside` is stored, else 0. What is read in pieces is asked for `ahead` steps
    of the axis outside of the vectors before."""

    def __init__(self, asm: Assembler, axes: Sequence[LoopAxis], value: Expr | None,
                 streams: Mapping[Load, AccessStream], sink: Sink, unroll: int = 2,
                 outside: Expr | None = None, ahead: int = 0) -> None:
        self.asm, self.axes, self.value = asm, list(axes), value
        self.sink, self.unroll, self.loads = sink, unroll, dict(streams)
        self.outside, self.ahead = outside, ahead
        if not isinstance(self.axes[-1].extent, int):
            raise IllegalSchedule("the vector axis has an extent known when code is made")

    def emit(self) -> None:
        """Emit the whole nest."""
        self._level(0, self.loads, self.sink, {})

    # ------------------------------------------------------------------ outer loops

    def _level(self, depth: int, loads: dict[Load, AccessStream], sink: Sink,
               positions: dict[str, Register]) -> None:
        asm, axis = self.asm, self.axes[depth]
        if depth == len(self.axes) - 1:
            self._vectors(axis, None, self._resolved(loads, positions), sink)
            return
        if depth == len(self.axes) - 2 and self._short(sink):
            self._vectors(axis, self.axes[-1], self._resolved(loads, positions), sink)
            return
        counted = bool(axis.guards) or any(
            index.coefficient(axis.name) for s in loads.values() for _, index in s.divided)
        loads = {load: self._own(s, axis.name) for load, s in loads.items()}
        sink = replace(sink, stream=self._own(sink.stream, axis.name))
        if counted:
            position = self._origin(axis.origin)
            positions = {**positions, axis.name: position}
        with asm.loop(axis.extent):
            done, outside = asm.label(), asm.label()
            for offset, extent in axis.guards:
                at = asm.copy(position)
                asm.advance(at, offset)
                asm.op("compare_immediate", at, extent)
                asm.jump("above_equal", outside)
            self._level(depth + 1, loads, sink, positions)
            if axis.guards:
                asm.jump("always", done)
                asm.place(outside)
                inner = [LoopAxis(a.name, a.extent) for a in self.axes[depth + 1:]]
                Nest(asm, inner, self.outside, {}, sink, self.unroll).emit()
                asm.place(done)
            for stream in (*loads.values(), sink.stream):
                self._step(stream, axis.name)
            if counted:
                asm.advance(position, 1)

    def _short(self, sink: Sink) -> bool:
        """True if vectors run over the last two axes."""
        outer, inner = self.axes[-2:]
        divided = any(index.coefficient(outer.name) for s in self.loads.values()
                      for _, index in s.divided)
        moved = any(stream.stride(outer.name) for s in self.loads.values()
                    for _, stream in s.indirect)
        return (isinstance(inner.extent, int) and 1 < inner.extent < self.asm.level.lanes
                and self.asm.level.lanes % inner.extent == 0
                and isinstance(outer.extent, int) and not outer.guards
                and not (divided or moved)
                and sink.stream.stride(outer.name) == inner.extent * sink.stream.stride(inner.name))

    def _origin(self, origin: Register | int) -> Register:
        if isinstance(origin, int):
            return self.asm.immediate(origin)
        return self.asm.copy(origin)

    def _own(self, stream: AccessStream, axis: str) -> AccessStream:
        """The stream with a pointer of its own when this axis moves it."""
        indirect = tuple((stride, self._own(inner, axis)) for stride, inner in stream.indirect)
        base = self.asm.copy(stream.base) if stream.stride(axis) else stream.base
        return replace(stream, base=base, indirect=indirect)

    def _step(self, stream: AccessStream, axis: str) -> None:
        self.asm.advance(stream.base, stream.stride(axis))
        for _, inner in stream.indirect:
            self._step(inner, axis)

    def _resolved(self, loads: dict[Load, AccessStream],
                  positions: dict[str, Register]) -> dict[Load, AccessStream]:
        """The streams with divided and indirect indices added to their pointers."""
        asm, result = self.asm, {}
        for load, stream in loads.items():
            base = stream.base
            for stride, index in stream.divided:
                at = asm.immediate(index.offset)
                for name, coefficient in index.terms:
                    if name not in positions:
                        raise IllegalSchedule(f"the vector axis {name} is divided")
                    at = asm.offset(at, positions[name], coefficient)
                base = asm.offset(base, asm.divide(at, index.divisor)[0], stride)
            for stride, inner in stream.indirect:
                at = asm.general()
                asm.op("mov" if inner.dtype == "i64" else "mov_signed32", at, Address(inner.base))
                base = asm.offset(base, at, stride)
            result[load] = replace(stream, base=base)
        return result

    # ------------------------------------------------------------------ the vector axis

    def _vectors(self, axis: LoopAxis, short: LoopAxis | None, loads: dict[Load, AccessStream],
                 sink: Sink) -> None:
        """Emit all vectors along `axis`, or along it and the `short` one inside of it."""
        asm, lanes = self.asm, self.asm.level.lanes
        inner = short or LoopAxis("", 1)
        assert isinstance(axis.extent, int) and isinstance(inner.extent, int), (axis, inner)
        many = axis.extent
        if short is None and (done := self._copy_whole(axis.name, many, loads, sink)):
            many -= done
            loads = {load: self._behind(s, axis.name, done) for load, s in loads.items()}
            sink = replace(sink, stream=self._behind(sink.stream, axis.name, done))
            if not many:
                return
        full, tail = divmod(many * inner.extent, lanes)
        spread, turned = {}, {}
        for load, s in loads.items():
            places = tuple(lane // inner.extent * s.stride(axis.name)
                           + lane % inner.extent * s.stride(inner.name) for lane in range(lanes))
            step = lanes // inner.extent * s.stride(axis.name)
            if not any(places) and not step:
                spread[load] = elements.spread(asm, s.dtype, Address(s.base))
            elif places != tuple(range(0, s.size * lanes, s.size)) or step != s.size * lanes:
                turned[load] = _Turned(asm, replace(s, base=asm.copy(s.base)), places, step)
        out_step = sink.stream.stride(inner.name if short else axis.name)
        target = asm.copy(sink.stream.base)
        position = asm.immediate(0)
        here = _Point(self, loads, spread, turned, position, sink, out_step)

        def advance(count: int) -> None:
            asm.advance(position, lanes * count)
            asm.advance(target, out_step * lanes * count)
            for load in turned.values():
                asm.advance(load.stream.base, load.step * count)

        unroll = min(self.unroll, full) if full else 1
        blocks, left = divmod(full, unroll)
        if blocks:
            with asm.loop(blocks):
                if self.ahead and short is None:
                    here.ask(unroll, self._pieces(loads, axis.name))
                for i in range(unroll):
                    here.emit(target, i, None)
                advance(unroll)
        for i in range(left):
            here.emit(target, i, None)
        behind = sink.padded(full * lanes + tail) - full * lanes
        if tail:
            here.emit(target, left, tail, min(behind, lanes))
        for place in range(lanes if tail else 0, behind, lanes):
            here.clear(target, left + place // lanes, min(behind - place, lanes))

    def _pieces(self, loads: Mapping[Load, AccessStream], axis: str) -> dict[Load, int]:
        """The loads that read side by side along `axis`, and then jump; how many bytes further that
        is which they are to ask for."""
        outer, inner = self.axes[-2:]
        assert isinstance(inner.extent, int), inner
        return {load: self.ahead * s.stride(outer.name) for load, s in loads.items()
                if s.stride(axis) == s.size and s.stride(outer.name) > s.size * inner.extent}

    def _copy_whole(self, axis: str, many: int, loads: Mapping[Load, AccessStream],
                    sink: Sink) -> int:
        """Where `many` elements of fewer than 32 bits are copied as they are, from side by side to
        side by side, copy those that fill whole vectors; how many these are."""
        asm, to, value = self.asm, sink.stream, self.value
        if not isinstance(value, Load) or to.size >= STORED_BYTES["f32"]:
            return 0
        source, each = loads[value], asm.level.bytes // to.size
        whole = many // each
        if source.dtype != to.dtype or each % sink.pad_to or not whole \
                or {source.stride(axis), to.stride(axis)} != {to.size}:
            return 0
        here, target = asm.copy(source.base), asm.copy(to.base)

        def block(count: int) -> None:
            for i in range(count):
                at = i * asm.level.bytes
                asm.store(Address(target, at), asm.load(Address(here, at)))
            for pointer in (here, target):
                asm.advance(pointer, count * asm.level.bytes)

        blocks, left = divmod(whole, COPIED_AT_ONCE)
        if blocks:
            with asm.loop(blocks):
                block(COPIED_AT_ONCE)
        block(left)
        return whole * each

    def _behind(self, stream: AccessStream, axis: str, steps: int) -> AccessStream:
        """The stream so many steps further along an axis."""
        base = self.asm.copy(stream.base)
        self.asm.advance(base, steps * stream.stride(axis))
        return replace(stream, base=base)


class _Turned:
    """Loads whose lanes do not lie side by side: `places` are bytes from the stream's base.

    Where one vector spans all of them, that is loaded and its lanes are put in order.
    """

    def __init__(self, asm: Assembler, stream: AccessStream, places: tuple[int, ...],
                 step: int) -> None:
        self.asm, self.stream, self.places, self.step = asm, stream, places, step
        self.first, size = min(places), stream.size
        near = all((p - self.first) % size == 0 for p in places)
        self.near = near and max(places) - self.first < size * asm.level.lanes
        self.index = (asm.order_of_lanes([(p - self.first) // size for p in places]) if self.near
                      else asm.result("load", asm.integers(places)))

    def emit(self, i: int, lanes: int | None) -> Register:
        """Vector `i`, or its first `lanes` lanes."""
        asm = self.asm
        if not self.near:
            here = asm.copy(self.stream.base)
            asm.advance(here, i * self.step)
            return elements.gather(asm, self.stream.dtype, here, self.index, lanes)
        last = max(self.places[:lanes or asm.level.lanes])
        held = elements.load(asm, self.stream.dtype,
                             Address(self.stream.base, i * self.step + self.first),
                             (last - self.first) // self.stream.size + 1)
        return asm.result("permute_lanes", self.index, held)


def scatter(asm: Assembler, dtype: str, at: Address, step: int, value: Register,
            lanes: int) -> None:
    """Store `lanes` lanes, `step` bytes apart, turning the vector until each was the lowest."""
    turned = [*range(1, asm.level.lanes), 0]
    for lane in range(lanes):
        elements.store_lowest(asm, dtype, at.plus(lane * step), value)
        if lane + 1 < lanes:
            value = asm.result("permute_lanes", asm.order_of_lanes(turned), value)


@dataclass
class _Point:
    """One vector of the innermost axis, `i` vectors behind the current position."""

    nest: Nest
    loads: Mapping[Load, AccessStream]
    spread: Mapping[Load, Register]
    turned: Mapping[Load, _Turned]
    position: Register
    sink: Sink
    out_step: int

    def ask(self, count: int, pieces: Mapping[Load, int]) -> None:
        """Ask for the lines of `count` vectors of loads, each so many bytes further."""
        for load, further in pieces.items():
            stream = self.loads[load]
            for byte in range(0, count * self.nest.asm.level.lanes * stream.size, LINE_BYTES):
                self.nest.asm.op("prefetch", Address(stream.base, further + byte, self.position,
                                                     stream.size))

    def clear(self, target: Register, i: int, lanes: int) -> None:
        """Store zeros in the first `lanes` lanes of vector `i`."""
        asm, stream = self.nest.asm, self.sink.stream
        at = Address(target, i * asm.level.lanes * self.out_step)
        elements.store(asm, stream.dtype, at, asm.zero(), lanes)

    def emit(self, target: Register, i: int, lanes: int | None,
             stored: int | None = None) -> None:
        """Evaluate and store vector `i`; only `lanes` of it when it is the last, with zeros up to
        `stored` behind them."""
        asm, nest = self.nest.asm, self.nest
        width = asm.level.lanes
        source = self._copied(nest.value)
        if source is not None:
            held = lanes or width
            elements.copy_bf16(asm, self._address(source, i), Address(target, 2 * i * width), held,
                               stored or width)
            return
        if nest.value is None:
            value = asm.zero()
        else:
            value = evaluate(asm, nest.value, lambda load: self._load(load, i, lanes), {})
        if stored is not None and lanes is not None and stored > lanes:
            bits = [-1] * lanes + [0] * (width - lanes)
            value = asm.result("and", value, asm.integers(bits))
        at = Address(target, i * width * self.out_step)
        if self.out_step == self.sink.stream.size or (stored or width) == 1:
            elements.store(asm, self.sink.stream.dtype, at, value, stored)
        else:
            scatter(asm, self.sink.stream.dtype, at, self.out_step, value, lanes or width)

    def _copied(self, value: Expr | None) -> AccessStream | None:
        """The stream that is copied as it is, of bf16 side by side to bf16 side by side; else
        None."""
        if not isinstance(value, Load) or value in self.spread or value in self.turned:
            return None
        both = {self.loads[value].dtype, self.sink.stream.dtype}
        whole = self.nest.asm.level.wide and self.out_step == self.sink.stream.size
        return self.loads[value] if both == {"bf16"} and whole else None

    def _address(self, stream: AccessStream, i: int) -> Address:
        """Where vector `i` of a stream lies."""
        return Address(stream.base, stream.size * i * self.nest.asm.level.lanes, self.position,
                       stream.size)

    def _load(self, load: Load, i: int, lanes: int | None) -> Register:
        asm = self.nest.asm
        if load in self.spread:
            return self.spread[load]
        if load in self.turned:
            return self.turned[load].emit(i, lanes)
        stream = self.loads[load]
        return elements.load(asm, stream.dtype, self._address(stream, i), lanes)
