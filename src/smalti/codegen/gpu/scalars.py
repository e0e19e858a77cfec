"""Vector accesses of some bindings, one scalar at a time: for those that begin in between."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from smalti.codegen.gpu.form import (
    Branch,
    Expr,
    GroupProgram,
    Let,
    Load,
    Loop,
    MatrixStore,
    Op,
    Set,
    Statement,
    Store,
    Variable,
    vector,
)
from smalti.codegen.gpu.types import Type, vector_type


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
    return replace(program, bindings=bindings, body=_block(program.body, frozenset(names)))


def _block(body: tuple[Statement, ...], names: frozenset[str]) -> tuple[Statement, ...]:
    return tuple(part for statement in body for part in _statement(statement, names))


def _statement(statement: Statement, names: frozenset[str]) -> tuple[Statement, ...]:
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


def _stores(store: Store, names: frozenset[str]) -> tuple[Statement, ...]:
    index, value = _expr(store.index, names), _expr(store.value, names)
    where = store.where and _expr(store.where, names)
    lanes = vector_type(value.type).lanes
    if store.buffer not in names or lanes == 1:
        return (Store(store.buffer, index, value, where),)
    return tuple(Store(store.buffer, index + lane, value.lane(lane), where)
                 for lane in range(lanes))


def _expr(expr: Expr, names: frozenset[str]) -> Expr:
    match expr:
        case Op():
            return replace(expr, arguments=tuple(_expr(a, names) for a in expr.arguments))
        case Load():
            index = _expr(expr.index, names)
            where = expr.where and _expr(expr.where, names)
            if expr.buffer not in names or expr.type.lanes == 1:
                return Load(expr.buffer, index, expr.type, where)
            scalar = Type(expr.type.scalar)
            return vector(*(Load(expr.buffer, index + lane, scalar, where)
                            for lane in range(expr.type.lanes)))
    return expr
