"""Vector accesses of some bindings, one scalar at a time: for those that begin in between."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from smalti.codegen.gpu.form import (
    Branch,
    Expr,
    GroupLoad,
    GroupProgram,
    Let,
    Loop,
    MatrixStore,
    Op,
    Set,
    Statement,
    Store,
    Variable,
    covered,
    op,
    vector,
)
from smalti.codegen.gpu.types import VectorType, vector_type


def scalarised(program: GroupProgram, names: Collection[str]) -> GroupProgram:
    """`program` with the bindings `names` read and written element by element.

    A binding with `lanes` begins at a multiple of so many elements; where a view of a value does
    not, this program does the same without asking for it.

    >>> from smalti.codegen.gpu.builder import Builder
    >>> b = Builder("copy", 32)
    >>> x, y = b.binding("x", "f32", 128, "read", 4), b.binding("y", "f32", 128, "write", 4)
    >>> b.store(y, b.invocation * 4, b.load(x, b.invocation * 4, 4))
    >>> [binding.lanes for binding in scalarised(b.finish((1, 1, 1)), {"y"}).bindings]
    [4, 1]
    """
    bindings = tuple(replace(b, lanes=1) if b.name in names else b for b in program.bindings)
    dtypes = {b.name: b.dtype for b in bindings if b.name in names}
    return replace(program, bindings=bindings, body=_block(program.body, dtypes))


def _block(body: tuple[Statement, ...], names: Mapping[str, str]) -> tuple[Statement, ...]:
    return tuple(part for statement in body for part in _statement(statement, names))


def _statement(statement: Statement, names: Mapping[str, str]) -> tuple[Statement, ...]:
    match statement:
        case Let() | Variable() | Set():
            return (replace(statement, value=_expr(statement.value, names)),)
        case Store():
            return _stores(statement, names)
        case MatrixStore():
            return (replace(statement, index=_expr(statement.index, names),
                            value=_expr(statement.value, names)),)
        case Loop():
            return (replace(statement, start=_expr(statement.start, names),
                            stop=_expr(statement.stop, names),
                            body=_block(statement.body, names)),)
        case Branch():
            return (Branch(_expr(statement.condition, names), _block(statement.then, names),
                           _block(statement.otherwise, names)),)
    return (statement,)


def _stores(store: Store, names: Mapping[str, str]) -> tuple[Statement, ...]:
    index, value = _expr(store.index, names), _expr(store.value, names)
    where = store.where and _expr(store.where, names)
    dtype, lanes = names.get(store.buffer), vector_type(value.type).lanes
    if dtype is None or covered(dtype, value.type) == 1:
        return (Store(store.buffer, index, value, where),)
    single = [value.lane(lane) if lanes > 1 else value for lane in range(lanes)]
    if covered(dtype, value.type) > lanes:
        single = [op(f"widen_{dtype}", word).lane(half) for word in single for half in (0, 1)]
    return tuple(Store(store.buffer, index + lane, part, where)
                 for lane, part in enumerate(single))


def _expr(expr: Expr, names: Mapping[str, str]) -> Expr:
    match expr:
        case Op():
            return replace(expr, arguments=tuple(_expr(a, names) for a in expr.arguments))
        case GroupLoad():
            index = _expr(expr.index, names)
            where = expr.where and _expr(expr.where, names)
            dtype = names.get(expr.buffer)
            if dtype is None:
                return GroupLoad(expr.buffer, index, expr.type, where)
            count = covered(dtype, expr.type)
            if count == 1:
                return GroupLoad(expr.buffer, index, expr.type, where)
            scalar = VectorType("f32" if count > expr.type.lanes else expr.type.scalar)
            single: list[Expr] = [GroupLoad(expr.buffer, index + lane, scalar, where)
                                  for lane in range(count)]
            if count > expr.type.lanes:
                single = [op(f"narrow_{dtype}", vector(*pair)) for pair in
                          zip(single[::2], single[1::2], strict=True)]
            return vector(*single) if len(single) > 1 else single[0]
    return expr
