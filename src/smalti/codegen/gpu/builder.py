"""Group programs, statement by statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smalti.codegen.gpu.form import (
    BOOL,
    F32,
    U32,
    Arithmetic,
    Barrier,
    Binding,
    Branch,
    Builtin,
    Expr,
    GroupLoad,
    GroupProgram,
    Let,
    Loop,
    MatrixLoad,
    MatrixStore,
    Name,
    Number,
    Set,
    Shared,
    Statement,
    Store,
    Variable,
    number,
)
from smalti.codegen.gpu.types import Matrix, VectorType


class Builder:
    """Makes one program for work-groups of `size` invocations.

    >>> b = Builder("double", 64)
    >>> x, y = b.binding("x", "f32", 250, "read"), b.binding("y", "f32", 250, "write")
    >>> i = b.let(b.group[0] * 64 + b.invocation)
    >>> b.store(y, i, 2.0 * b.load(x, i, where=i < 250), where=i < 250)
    >>> b.finish((4, 1, 1)).size
    64
    """

    def __init__(self, name: str, size: int, subgroup: int = 0) -> None:
        self.name, self.size, self.subgroup_size = name, size, subgroup
        self.bindings: list[Binding] = []
        self.arrays: list[Shared] = []
        self.group = tuple(Builtin(f"group_{axis}") for axis in "xyz")
        self.invocation, self.subgroup, self.lane = map(Builtin, ("invocation", "subgroup", "lane"))
        self._blocks: list[list[Statement]] = [[]]
        self._names = 0
        self._known: dict[Expr, Expr] | None = None

    def binding(self, name: str, dtype: str, elements: int, access: str, lanes: int = 1) -> Binding:
        """Memory of the device, bound in the order of these calls."""
        self.bindings.append(Binding(name, dtype, elements, access, lanes))
        return self.bindings[-1]

    def shared(self, name: str, dtype: str, elements: int, lanes: int = 1) -> Shared:
        """Memory of the work-group."""
        self.arrays.append(Shared(name, dtype, elements, lanes))
        return self.arrays[-1]

    def let(self, value: Expr, name: str = "t") -> Expr:
        """A name for a value that is used more than once; constants and names stay themselves."""
        if isinstance(value, Number | Name | Builtin):
            return value
        if self._known is not None and value in self._known:
            return self._known[value]
        made = self._name(name, value.type)
        self.add(Let(made.name, value))
        if self._known is not None:
            self._known[value] = made
        return made

    @contextmanager
    def once(self, known: dict[Expr, Expr]) -> Iterator[None]:
        """Within it, a value that is `known` to have a name is not named again: neither computed
        nor loaded. That is for straight code which sets no variable and writes nothing that it
        reads, and for names of the block that it is in or of one around that.

        >>> b = Builder("twice", 64)
        >>> with b.once({}):
        ...     print(b.let(b.invocation + 1) == b.let(b.invocation + 1))
        True
        """
        outer, self._known = self._known, known
        try:
            yield
        finally:
            self._known = outer

    def variable(self, value: Expr | float, name: str = "v",
                 type: VectorType | Matrix = F32) -> Name:
        """A register that begins with `value`; a plain number is of `type`."""
        value = value if isinstance(value, Arithmetic) else number(value, type)
        made = self._name(name, value.type)
        self.add(Variable(made.name, value))
        return made

    def set(self, variable: Name, value: Expr) -> None:
        """Give a variable another value."""
        self.add(Set(variable.name, value))

    def load(self, buffer: Binding | Shared, index: Expr | int, lanes: int = 1, *,
             where: Expr | None = None, scalar: str | None = None) -> GroupLoad:
        """Elements of a buffer; of halves as f32, of 8 bits as i32, or as `scalar` says."""
        usual = {"f16": "f32", "bf16": "f32", "i8": "i32", "u8": "i32"}
        scalar = scalar or usual.get(buffer.dtype, buffer.dtype)
        return GroupLoad(buffer.name, _index(index), VectorType(scalar, lanes), where)

    def store(self, buffer: Binding | Shared, index: Expr | int, value: Expr, *,
              where: Expr | None = None) -> None:
        """Write elements of a buffer."""
        self.add(Store(buffer.name, _index(index), value, where))

    def matrix(self, buffer: Binding | Shared, index: Expr | int, stride: int, type: Matrix,
               by_columns: bool = False) -> MatrixLoad:
        """A matrix from a buffer."""
        return MatrixLoad(buffer.name, _index(index), stride, type, by_columns)

    def store_matrix(self, buffer: Binding | Shared, index: Expr | int, stride: int, value: Expr,
                     by_columns: bool = False) -> None:
        """A matrix to a buffer."""
        self.add(MatrixStore(buffer.name, _index(index), stride, value, by_columns))

    def barrier(self, subgroup: bool = False) -> None:
        """Wait for all invocations of the group, or of one's own subgroup."""
        self.add(Barrier(subgroup))

    @contextmanager
    def loop(self, stop: Expr | int, start: Expr | int = 0, step: int = 1,
             name: str = "k") -> Iterator[Expr]:
        """Repeat what is added inside; gives the counter. What runs once at most is no loop."""
        start, stop = _index(start), _index(stop)
        if isinstance(start, Number) and isinstance(stop, Number) and (
                start.value < stop.value <= start.value + step):
            yield start
            return
        counter = self._name(name, U32)
        self._blocks.append([])
        yield counter
        body = tuple(self._blocks.pop())
        self.add(Loop(counter.name, start, stop, step, body))

    @contextmanager
    def branch(self, condition: Expr) -> Iterator[None]:
        """Do what is added inside where the condition holds."""
        assert condition.type == BOOL, condition
        self._blocks.append([])
        yield
        self.add(Branch(condition, tuple(self._blocks.pop())))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Do what is added inside where the condition of the branch just before does not hold."""
        before = self._blocks[-1].pop()
        assert isinstance(before, Branch) and not before.otherwise, before
        self._blocks.append([])
        yield
        self.add(Branch(before.condition, before.then, tuple(self._blocks.pop())))

    def add(self, statement: Statement) -> None:
        """Add a statement to the block that is being written."""
        self._blocks[-1].append(statement)

    def finish(self, groups: tuple[int, int, int]) -> GroupProgram:
        """The program for a grid of work-groups."""
        (body,) = self._blocks
        return GroupProgram(self.name, groups, self.size, tuple(self.bindings),
                            tuple(self.arrays), tuple(body), self.subgroup_size)

    def _name(self, name: str, type: VectorType | Matrix) -> Name:
        self._names += 1
        return Name(f"{name}{self._names}", type)


def _index(value: Expr | int) -> Expr:
    return number(value, U32) if isinstance(value, int) else value
