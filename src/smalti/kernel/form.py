"""The classes that kernels are made of: stages over axes, affine indices, scalar expressions.

A kernel is a short sequence of stages. Each stage fills one buffer: for every point of its axes it
evaluates a scalar expression, summed (or maximised) over its reduced axes. Buffers that only live
inside the kernel are "local"; a schedule decides how much of them exists at a time. Nothing here
names a device.

A convolution with a normalisation in front and a residual behind is three stages:

    patch[b, y, x, c] = silu(in[b, c, y - 1, x - 1] * a[b, c] + s[b, c])  where it lies inside
    sum[b, y, x, o]   = sum over r, s, c of patch[b, y + r, x + s, c] * weight[o, c, r, s]
    out[b, o, y, x]   = sum[b, y, x, o] + bias[o] + residual[b, o, y, x]
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property

from smalti.dataclass import dataclass
from smalti.graph.operations.contraction import STEPS
from smalti.graph.quantised import FORMATS

STORED_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "i64": 8, "bool": 1, "u8": 1, "i8": 1,
                "i16": 2}
"""Bytes of an element of each dtype that is not quantised."""
ELEMENT_BYTES = {**STORED_BYTES, **{name: form.element_bytes for name, form in FORMATS.items()}}
"""Bytes of an element of each dtype that a buffer may have; of quantised weights on average."""


@dataclass(frozen=True, slots=True)
class Index:
    """An index into a dimension of a buffer: (sum of coefficient * axis + offset) // divisor.

    `terms` are (axis, coefficient) pairs.
    """

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0
    divisor: int = 1

    def coefficient(self, axis: str) -> int:
        """The factor of `axis`, 0 when it does not occur."""
        return dict(self.terms).get(axis, 0)

    def plus(self, amount: int) -> Index:
        """The index moved by `amount`: a // d + n is (a + n * d) // d."""
        return Index(self.terms, self.offset + amount * self.divisor, self.divisor)


def axis(name: str) -> Index:
    """The index that is the axis `name` itself."""
    return Index(((name, 1),))


@dataclass(frozen=True, slots=True)
class Load:
    """A read of the element of `buffer` at `index`, one for each dimension.

    The index of a dimension may itself be a `Load` of a buffer of integers: a look-up in a table.
    """

    buffer: str
    index: tuple[Index | Load, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """A constant number in an expression. Those are equal that give the same results: 0 and -0 do
    not, NaN does.

    >>> nan = [Const(float("nan")) for _ in range(2)]
    >>> Const(0.0) == Const(-0.0), nan[0] == nan[1], Const(1) == Const(1.0)
    (False, True, True)
    """

    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    @property
    def _bytes(self) -> bytes:
        return struct.pack("<d", self.value)


@dataclass(frozen=True, slots=True)
class Call:
    """A pointwise operation, by its name in `graph/operations/`, applied to scalar expressions."""

    function: str
    arguments: tuple[Expr, ...]


Expr = Load | Const | Call


@dataclass(frozen=True, slots=True)
class Stage:
    """One loop nest: `result[axes] = value`, or its sum or max over the axes `reduced`.

    `axes` and `reduced` are (name, extent) pairs; the dimensions of the buffer `result` are `axes`
    in their order. `reducer` is "sum", "max" or, when nothing is reduced, "". A guard
    (index, extent) holds where 0 <= index < extent; where one does not hold, nothing is read, and
    the result is `outside`: so borders are padded.
    """

    result: str
    axes: tuple[tuple[str, int], ...]
    value: Expr
    reduced: tuple[tuple[str, int], ...] = ()
    reducer: str = ""
    guards: tuple[tuple[Index, int], ...] = ()
    outside: float = 0.0


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor that a kernel reads or writes.

    `role` is "input", "parameter", "output" or "local". Strides are in elements; a local buffer
    has none, because its layout is up to the schedule. What is stored as bf16 or f16 is computed in
    f32 and rounded once, to the nearest, ties to even.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    dtype: str = "f32"


@dataclass(frozen=True)
class Kernel:
    """Stages that run one after the other, and the buffers they read and write.

    `form` names the sequence of stages (see `kernel/build.py`); `options` are (name, number) pairs
    that belong to the form, such as the scale of attention.
    """

    form: str
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    options: tuple[tuple[str, float], ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """The hash of all fields, kept because it is asked for often."""
        return hash((self.form, self.buffers, self.stages, self.options))

    def buffer(self, name: str) -> Buffer:
        """The buffer called `name`."""
        return next(b for b in self.buffers if b.name == name)

    def option(self, name: str) -> float:
        """The number of the option `name`, such as the epsilon of a normalisation."""
        return dict(self.options)[name]

    def __str__(self) -> str:
        from smalti.kernel.text import show
        return show(self)


def extent(buffer: Buffer) -> int:
    """Elements from the first to the last of a strided buffer.

    >>> extent(Buffer("x", "input", (2, 3), (10, 1)))
    13
    """
    return 1 + sum((n - 1) * stride for n, stride in zip(buffer.shape, buffer.strides))


def rounded_weights(kernel: Kernel) -> bool:
    """True for a contraction of integers whose weights are numbers that are rounded to 8 bits, each
    output channel with a scale of its own."""
    return ("rounded", 1) in kernel.options


def paired_weights(kernel: Kernel) -> bool:
    """True for rounded weights whose scales are such that two products of neighbouring channels
    with bytes add up to 16 bits."""
    return ("paired", 1) in kernel.options


def weight_steps(kernel: Kernel) -> int:
    """The largest integer that rounded weights become: more than 8 bits hold where it is an option
    of the kernel."""
    return int(dict(kernel.options).get("steps", STEPS))


def loads(expr: Expr) -> Iterator[Load]:
    """Every load in an expression in order, those inside of indices included."""
    if isinstance(expr, Load):
        yield expr
        for index in expr.index:
            if isinstance(index, Load):
                yield from loads(index)
    elif isinstance(expr, Call):
        for argument in expr.arguments:
            yield from loads(argument)


def affine(load: Load) -> tuple[Index, ...]:
    """The indices of a load, none of which is looked up in a table. Raises TypeError if one is."""
    indices = tuple(index for index in load.index if isinstance(index, Index))
    if len(indices) < len(load.index):
        raise TypeError(f"an index of {load} is looked up")
    return indices


def functions(expr: Expr) -> Iterator[str]:
    """Every pointwise function in an expression."""
    if isinstance(expr, Call):
        yield expr.function
        for argument in expr.arguments:
            yield from functions(argument)
