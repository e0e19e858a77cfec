"""What one invocation of a work-group does: the form that GPU code is written from.

A group program is run by `groups` work-groups of `size` invocations each. An invocation computes
typed values, reads and writes bindings (memory of the device) and shared arrays (memory of its
work-group), and meets the others of its group at barriers. Control flow is structured. Nothing here
names a vendor or a language: `codegen/spirv` and `codegen/wgsl` write it down, and `interpreter.py`
runs it with numpy.

    program double of 4 groups of 64
    read x: f32[250], write y: f32[250]
    let i = group_x * 64 + invocation
    y[i] = x[i] + x[i] where i < 250

Indices are u32 and count scalars of the buffer, whatever is read at once; u32 arithmetic wraps, so
that `i - 1 < n` is one question for both ends.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cached_property

from smalti.codegen.gpu.instructions import result_type
from smalti.codegen.gpu.types import Matrix, VectorType, vector_type
from smalti.dataclass import dataclass
from smalti.graph.operation import HALVES

BUILTINS = ("group_x", "group_y", "group_z", "invocation", "subgroup", "lane")
"""u32: the work-group's place in the grid, the invocation's number in its group, the number of its
subgroup and its place in that."""
STORED = ("f32", "f16", "bf16", "i32", "u32", "i8", "u8")
"""What buffers hold. 8-bit integers are only read."""
FOLDED = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv,
          "rem": operator.mod}
"""What is done at once on constants of u32."""
U32, I32, F32, F16, BOOL = map(VectorType, ("u32", "i32", "f32", "f16", "bool"))


class Arithmetic:
    """Operators of expressions; numbers become constants of the other operand's type.

    `==` compares expressions themselves; `equals` asks whether their values are equal.
    """

    __slots__ = ()

    def __add__(self, other):
        return op("add", self, other)

    def __radd__(self, other):
        return op("add", other, self)

    def __sub__(self, other):
        return op("sub", self, other)

    def __rsub__(self, other):
        return op("sub", other, self)

    def __mul__(self, other):
        return op("mul", self, other)

    def __rmul__(self, other):
        return op("mul", other, self)

    def __truediv__(self, other):
        return op("div", self, other)

    def __rtruediv__(self, other):
        return op("div", other, self)

    def __floordiv__(self, other):
        return op("div", self, other)

    def __mod__(self, other):
        return op("rem", self, other)

    def __neg__(self):
        return op("neg", self)

    def __and__(self, other):
        return op("and", self, other)

    def __or__(self, other):
        return op("or", self, other)

    def __xor__(self, other):
        return op("xor", self, other)

    def __lshift__(self, other):
        return op("shift_left", self, other)

    def __rshift__(self, other):
        return op("shift_right", self, other)

    def __lt__(self, other):
        return op("less", self, other)

    def __le__(self, other):
        return op("less_equal", self, other)

    def __gt__(self, other):
        return op("greater", self, other)

    def __ge__(self, other):
        return op("greater_equal", self, other)

    def equals(self, other):
        """Whether the values are equal."""
        return op("equal", self, other)

    def to(self, scalar: str):
        """The value as another scalar type: rounded to even, or, to integers, towards 0."""
        assert isinstance(self, Expr), self
        return self if self.type.scalar == scalar else Op(
            "convert", (self,), VectorType(scalar, vector_type(self.type).lanes))

    def bits(self, scalar: str):
        """The same bits read as another scalar type of 32 bits."""
        assert isinstance(self, Expr), self
        return self if self.type.scalar == scalar else Op(
            "bits", (self,), VectorType(scalar, vector_type(self.type).lanes))

    def lane(self, number: int):
        """A scalar of a vector."""
        assert isinstance(self, Expr), self
        return op("component", self, Number(number, U32))


@dataclass(frozen=True, slots=True)
class Number(Arithmetic):
    """A constant: in all lanes of a vector, in all elements of a matrix."""

    value: float | int | bool
    type: VectorType | Matrix


@dataclass(frozen=True, slots=True)
class Name(Arithmetic):
    """A value that a `Let`, `Variable` or `Loop` has named."""

    name: str
    type: VectorType | Matrix


@dataclass(frozen=True, slots=True)
class Builtin(Arithmetic):
    """One of `BUILTINS`."""

    name: str

    @property
    def type(self) -> VectorType:
        """u32."""
        return U32


@dataclass(frozen=True, slots=True)
class Op(Arithmetic):
    """An instruction of `instructions.INSTRUCTIONS` on values, lane by lane."""

    instruction: str
    arguments: tuple[Expr, ...]
    type: VectorType | Matrix


@dataclass(frozen=True, slots=True)
class GroupLoad(Arithmetic):
    """Element `index` of a buffer; as many as the type has lanes, from a multiple of that number.

    What is stored as f16 or bf16 is read as f32, or f16 as f16, or two at a time as the bits of a
    u32; 8-bit integers as i32 or u32. Where `where` is false nothing is read, and the value is 0.
    """

    buffer: str
    index: Expr
    type: VectorType
    where: Expr | None = None


@dataclass(frozen=True, slots=True)
class MatrixLoad(Arithmetic):
    """A matrix of the matrix unit: element [r, c] is element index + r * stride + c of a buffer
    (index + c * stride + r where it lies `by_columns`), all of it inside. A subgroup loads it.

    In a buffer of u32 are its bits: index and stride count words, of two halves or four bytes each.
    """

    buffer: str
    index: Expr
    stride: int
    type: Matrix
    by_columns: bool = False


Expr = Number | Name | Builtin | Op | GroupLoad | MatrixLoad


@dataclass(frozen=True, slots=True)
class Let:
    """name = value, for the rest of the block."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Variable:
    """A register that `Set` changes, for the rest of the block."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Set:
    """Give a variable another value of its type."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index ...] = value, where `where` holds; rounded to what the buffer stores. For a
    buffer of halves, a u32 holds the bits of two elements."""

    buffer: str
    index: Expr
    value: Expr
    where: Expr | None = None


@dataclass(frozen=True, slots=True)
class MatrixStore:
    """A matrix goes to a buffer, laid out as by `MatrixLoad`."""

    buffer: str
    index: Expr
    stride: int
    value: Expr
    by_columns: bool = False


@dataclass(frozen=True, slots=True)
class Barrier:
    """All invocations of the group wait for each other; what they wrote is seen by all of them.

    With `subgroup`, those of each subgroup do, and only they see what they wrote. All of the group
    reach that, too, so that a language may have one barrier for both.
    """

    subgroup: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """for counter (u32) from `start` while below `stop`, by `step`."""

    counter: str
    start: Expr
    stop: Expr
    step: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """if condition: then, else: otherwise."""

    condition: Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


Statement = Let | Variable | Set | Store | MatrixStore | Barrier | Loop | Branch


@dataclass(frozen=True, slots=True)
class Binding:
    """Memory of the device: `elements` of a stored dtype. `access` is "read", "write" or
    "read_write"; nobody else writes what is only read. It begins at a multiple of `lanes`
    elements, of which at most so many are read or written at once: 4, or 8 halves."""

    name: str
    dtype: str
    elements: int
    access: str
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory of a work-group, not initialised: `elements` of a stored dtype."""

    name: str
    dtype: str
    elements: int
    lanes: int = 1


@dataclass(frozen=True)
class GroupProgram:
    """What `groups` (x, y, z) work-groups of `size` invocations run.

    `subgroup` is the size of subgroups that it is written for, 0 where any will do.
    """

    name: str
    groups: tuple[int, int, int]
    size: int
    bindings: tuple[Binding, ...]
    shared: tuple[Shared, ...]
    body: tuple[Statement, ...]
    subgroup: int = 0

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.groups, self.size, self.bindings, self.shared, self.body,
                     self.subgroup))

    @property
    def tiles(self) -> int:
        """How often it is launched: once, as all of its work-groups are one launch."""
        return 1

    @property
    def buffers(self) -> tuple[Binding | Shared, ...]:
        """All that it reads and writes: the bindings, then the shared arrays."""
        return self.bindings + self.shared

    def buffer(self, name: str) -> Binding | Shared:
        """The binding or shared array called `name`."""
        return next(b for b in self.buffers if b.name == name)

    def __str__(self) -> str:
        from smalti.codegen.gpu.text import show
        return show(self)


def number(value: float | int | bool, like: VectorType | Matrix) -> Number:
    """A constant of the type `like`."""
    if like.scalar in ("u32", "i32", "i8"):
        value = int(value)
        if like.scalar == "u32":
            value &= 0xFFFFFFFF
    return Number(value, like)


def op(instruction: str, *arguments: Expr | float) -> Expr:
    """An instruction on values; plain numbers take the type of the first value that has one.

    Index arithmetic on constants is done at once. Raises TypeError where the types do not fit.

    >>> op("mul", Builtin("lane"), 4).type, op("add", Number(2, U32), 3)
    (VectorType(scalar='u32', lanes=1), Number(value=5, type=VectorType(scalar='u32', lanes=1)))
    """
    types = [a.type for a in arguments if isinstance(a, Arithmetic)]
    like = next((type for type in types if type.scalar != "bool"), types[-1])
    given = tuple(a if isinstance(a, Arithmetic) else number(a, like) for a in arguments)
    folded = _folded(instruction, given)
    if folded is not None:
        return folded
    return Op(instruction, given, result_type(instruction, [a.type for a in given]))


def _folded(instruction: str, arguments: tuple[Expr, ...]) -> Expr | None:
    """The value of u32 arithmetic on constants, or on neutral ones."""
    if len(arguments) != 2 or instruction not in FOLDED:
        return None
    x, y = arguments
    if type(y) is not Number:
        if type(x) is not Number or x.type != U32:
            return None
        neutral = {"add": (0, y), "mul": (1, y)}.get(instruction)
        if neutral is not None and x.value == neutral[0]:
            return neutral[1]
        return x if instruction == "mul" and x.value == 0 else None
    if y.type != U32:
        return None
    value = y.value
    if type(x) is Number:
        if value or instruction not in ("div", "rem"):
            return number(FOLDED[instruction](x.value, value), U32)
        return None
    if value == 0:
        return {"mul": y, "add": x, "sub": x}.get(instruction)
    if value == 1:
        return {"mul": x, "div": x, "rem": Number(0, U32)}.get(instruction)
    return None


def constant(expr: Expr) -> int:
    """The number that an operand is which has to be one, as the lane of "component". Raises
    TypeError where it is none."""
    if not isinstance(expr, Number):
        raise TypeError(f"expected a constant, found {expr}")
    return int(expr.value)


def covered(dtype: str, type: VectorType | Matrix) -> int:
    """Elements of a buffer of `dtype` that a value of `type` is made of.

    >>> covered("f16", VectorType("f32", 4)), covered("f16", VectorType("u32", 4))
    (4, 8)
    """
    lanes = vector_type(type).lanes
    return 2 * lanes if dtype in HALVES and type.scalar == "u32" else lanes


def vector(*scalars: Expr) -> Op:
    """A vector of 2 or 4 scalars of one type."""
    return Op("vector", scalars, VectorType(scalars[0].type.scalar, len(scalars)))


def spread(scalar: Expr, lanes: int) -> Expr:
    """A vector with the same value in all lanes."""
    return scalar if lanes == 1 else vector(*[scalar] * lanes)


def select(condition: Expr, yes, no) -> Expr:
    """yes where the condition holds, else no."""
    return op("select", condition, yes, no)


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement of a block and of the blocks inside it, in order."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)
        elif isinstance(statement, Branch):
            yield from statements(statement.then)
            yield from statements(statement.otherwise)


def operands(node: Expr | Statement) -> tuple[Expr, ...]:
    """The expressions that an expression, or a statement without its blocks, is made of."""
    found = OPERANDS.get(type(node))
    return found(node) if found else ()


def _value(node: Let | Variable | Set) -> tuple[Expr, ...]:
    return (node.value,)


OPERANDS = {
    Op: lambda node: node.arguments,
    GroupLoad: lambda node: (node.index,) if node.where is None else (node.index, node.where),
    Store: lambda node: (node.index, node.value) if node.where is None else (
        node.index, node.value, node.where),
    MatrixLoad: lambda node: (node.index,),
    MatrixStore: lambda node: (node.index, node.value),
    Let: _value,
    Variable: _value,
    Set: _value,
    Loop: lambda node: (node.start, node.stop),
    Branch: lambda node: (node.condition,),
}


def expressions(body: tuple[Statement, ...]) -> Iterator[Expr]:
    """Every expression in a block, and every part of it, parts first."""
    def parts(expr: Expr) -> Iterator[Expr]:
        for part in operands(expr):
            yield from parts(part)
        yield expr

    for statement in statements(body):
        for expr in operands(statement):
            yield from parts(expr)
