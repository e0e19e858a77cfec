"""Checks that a kernel keeps the rules of its form; run between passes.

Reads are checked by interval arithmetic: each axis has the range [0, extent), narrowed by guards;
the range of each index that follows from these has to lie inside its buffer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from smalti.errors import VerificationError
from smalti.graph.operation import OPERATIONS
from smalti.kernel.form import (
    ELEMENT_BYTES,
    Buffer,
    Call,
    Const,
    Expr,
    Index,
    Kernel,
    Load,
    Stage,
)
from smalti.kernel.text import ROLES, show_index, show_stage

NAME = re.compile(r"[A-Za-z_]\w*$")
INTEGERS = ("i32", "i64")
REDUCERS = ("", "sum", "max")

Range = tuple[int, int]
Guards = tuple[tuple[Index, int], ...]


def verify(kernel: Kernel, after: str = "building") -> None:
    """Raise VerificationError if `kernel` is not valid; `after` is the pass that made it.

    The message names the pass, the stage, what was expected and what was found.

    >>> from smalti.kernel.form import axis
    >>> x, out = Buffer("x", "input", (8,), (1,)), Buffer("out", "output", (8,), (1,))
    >>> beyond = Stage("out", (("i", 8),), Load("x", (axis("i").plus(1),)))
    >>> verify(Kernel("map", (x, out), (beyond,)), "shifting")
    Traceback (most recent call last):
    smalti.errors.VerificationError: after shifting, kernel map, stage 0 (out): expected reads \
inside x [8], found index i + 1 of dimension 0 from 1 to 8
      > out[i < 8] = x[i + 1]
    """
    _Verifier(kernel, after).run()


class _Verifier:
    def __init__(self, kernel: Kernel, after: str) -> None:
        self.kernel, self.after = kernel, after
        self.buffers: dict[str, Buffer] = {}
        self.written: set[str] = set()
        self.number = -1
        self.ranges: dict[str, Range] = {}

    def run(self) -> None:
        for buffer in self.kernel.buffers:
            self._buffer(buffer)
        for number, stage in enumerate(self.kernel.stages):
            self.number = number
            self._stage(stage)
            self.written.add(stage.result)
        self.number = -1
        for buffer in self.kernel.buffers:
            self.check(buffer.role != "output" or buffer.name in self.written,
                       f"output {buffer.name} to be written", "no stage that does")

    def check(self, holds: bool, expected: str, found: object) -> None:
        """Raise VerificationError unless `holds`, showing the stages around the current one."""
        if holds:
            return
        stages, place = self.kernel.stages, f"after {self.after}, kernel {self.kernel.form}"
        if self.number >= 0:
            place += f", stage {self.number} ({stages[self.number].result})"
        lines = []
        for number in range(max(0, self.number - 2), min(len(stages), self.number + 2)):
            for line in show_stage(stages[number]).splitlines():
                lines.append(f"  {'>' if number == self.number else ' '} {line}")
        raise VerificationError("\n".join([f"{place}: expected {expected}, found {found}", *lines]))

    # ------------------------------------------------------------------ buffers and stages

    def _buffer(self, buffer: Buffer) -> None:
        name = buffer.name
        self.check(bool(NAME.match(name)), "buffers named by letters and digits", repr(name))
        self.check(name not in self.buffers, "each buffer listed once", f"a second {name}")
        self.check(buffer.role in ROLES, f"a role of {', '.join(ROLES)} for {name}", buffer.role)
        self.check(buffer.dtype in ELEMENT_BYTES,
                   f"a dtype of {', '.join(ELEMENT_BYTES)} for {name}", buffer.dtype)
        self.check(all(extent >= 1 for extent in buffer.shape), f"extents of 1 or more in {name}",
                   list(buffer.shape))
        strides = 0 if buffer.role == "local" else len(buffer.shape)
        self.check(len(buffer.strides) == strides, f"{strides} strides for {buffer.role} {name}",
                   list(buffer.strides))
        self.buffers[name] = buffer

    def _stage(self, stage: Stage) -> None:
        buffer = self.buffers.get(stage.result)
        self.check(buffer is not None, "a result that is listed", stage.result)
        self.check(buffer.role in ("output", "local"), "a result that is local or an output",
                   f"{buffer.role} {buffer.name}")
        self.check(stage.result not in self.written, "each buffer written once", "a second time")
        axes = (*stage.axes, *stage.reduced)
        names = [name for name, _ in axes]
        self.check(len(set(names)) == len(names), "axes that differ", names)
        self.check(all(extent >= 1 for _, extent in axes), "axes of 1 or more", axes)
        extents = tuple(extent for _, extent in stage.axes)
        self.check(extents == buffer.shape, f"axes that fill {buffer.name} {list(buffer.shape)}",
                   list(extents))
        self.check(stage.reducer in REDUCERS, "a reducer sum or max", repr(stage.reducer))
        self.check(bool(stage.reducer) == bool(stage.reduced),
                   "a reducer and reduced axes, or neither",
                   f"{stage.reducer!r} over {[name for name, _ in stage.reduced]}")
        self.ranges = {name: (0, extent - 1) for name, extent in axes}
        kept = {name for name, _ in stage.axes}
        for index, extent in stage.guards:
            self.check({name for name, _ in index.terms} <= kept,
                       f"a guard on {', '.join(sorted(kept))}", show_index(index))
            self.check(extent >= 1 and index.divisor >= 1, "a guard that can hold",
                       f"0 <= {show_index(index)} < {extent}")
        self.ranges = narrowed(self.ranges, stage.guards)
        self._expr(stage.value, stage)

    # ------------------------------------------------------------------ expressions

    def _expr(self, expr: Expr, stage: Stage) -> None:
        if isinstance(expr, Load):
            self._load(expr, stage)
        elif isinstance(expr, Call):
            operation = OPERATIONS.get(expr.function)
            self.check(operation is not None and operation.pointwise, "a pointwise operation",
                       expr.function)
            low, high = operation.inputs
            self.check(low <= len(expr.arguments) <= high,
                       f"{low if low == high else f'{low} to {high}'} arguments for "
                       f"{expr.function}", len(expr.arguments))
            for argument in expr.arguments:
                self._expr(argument, stage)
        else:
            self.check(isinstance(expr, Const), "a load, a number or a call", repr(expr))

    def _load(self, load: Load, stage: Stage) -> None:
        buffer = self.buffers.get(load.buffer)
        self.check(buffer is not None, "reads of listed buffers", load.buffer)
        if buffer.role in ("local", "output"):
            self.check(buffer.name in self.written, f"{buffer.name} written before it is read",
                       "no stage before that does")
        self.check(len(load.index) == len(buffer.shape),
                   f"{len(buffer.shape)} indices for {buffer.name}", len(load.index))
        for dimension, (index, extent) in enumerate(zip(load.index, buffer.shape)):
            if isinstance(index, Load):
                self._load(index, stage)
                dtype = self.buffers[index.buffer].dtype
                self.check(dtype in INTEGERS, f"an index of {' or '.join(INTEGERS)}",
                           f"{index.buffer} of {dtype}")
                continue
            unknown = [name for name, _ in index.terms if name not in self.ranges]
            self.check(not unknown, f"indices over {', '.join(self.ranges)}", unknown)
            self.check(index.divisor >= 1, "a positive divisor", index.divisor)
            low, high = span(index, self.ranges, stage.guards)
            self.check(low > high or (low >= 0 and high < extent),
                       f"reads inside {buffer.name} {list(buffer.shape)}",
                       f"index {show_index(index)} of dimension {dimension} from {low} to {high}")


# ---------------------------------------------------------------------- intervals


def _affine(index: Index, ranges: Mapping[str, Range]) -> Range:
    """The range of an index before it is divided."""
    low = high = index.offset
    for name, coefficient in index.terms:
        ends = sorted(coefficient * end for end in ranges[name])
        low, high = low + ends[0], high + ends[1]
    return low, high


def narrowed(ranges: Mapping[str, Range], guards: Guards) -> dict[str, Range]:
    """The ranges of axes at points where the guards hold; one that ends before it starts is empty.

    Only guards that contain a single axis are used.

    >>> narrowed({"y": (0, 9)}, ((Index((("y", 1),), -1), 8),))
    {'y': (1, 8)}
    """
    found = dict(ranges)
    for index, extent in guards:
        if len(index.terms) != 1 or index.terms[0][1] == 0:
            continue
        (name, coefficient), = index.terms
        # 0 <= coefficient * axis + offset <= most
        most = extent * index.divisor - 1
        ends = (-index.offset, most - index.offset)
        if coefficient < 0:
            coefficient, ends = -coefficient, (-ends[1], -ends[0])
        low, high = found[name]
        found[name] = (max(low, -(-ends[0] // coefficient)), min(high, ends[1] // coefficient))
    return found


def span(index: Index, ranges: Mapping[str, Range],
         guards: Guards = ()) -> Range:
    """The smallest and the largest value of an index; (0, -1) if nothing is read.

    A guard that has the same terms as the index bounds it, too.

    >>> span(Index((("y", 2), ("r", 1)), -1, 2), {"y": (0, 3), "r": (0, 2)})
    (-1, 3)
    """
    if any(low > high for low, high in ranges.values()):
        return 0, -1
    low, high = _affine(index, ranges)
    for guard, extent in guards:
        if sorted(guard.terms) == sorted(index.terms):
            shift = index.offset - guard.offset
            low, high = max(low, shift), min(high, extent * guard.divisor - 1 + shift)
    if low > high:
        return 0, -1
    return low // index.divisor, high // index.divisor
