"""Random group programs that keep every rule, for property tests."""

from __future__ import annotations

import hypothesis.strategies as st

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import (
    BOOL,
    F32,
    U32,
    Expr,
    GroupProgram,
    Number,
    Op,
    op,
    select,
    spread,
    vector,
)
from smalti.codegen.gpu.instructions import INSTRUCTIONS
from smalti.codegen.gpu.types import VectorType

SIZE = 8
LANES = (1, 2, 4)
PURE = sorted(name for name, entry in INSTRUCTIONS.items()
              if entry.meaning and not entry.asks and name != "select")
QUESTIONS = sorted(name for name, entry in INSTRUCTIONS.items() if entry.asks)
CONVERTED = {"f32": ("f16", "i32", "u32"), "f16": ("f32",), "i32": ("f32", "u32"),
             "u32": ("f32", "i32"), "bool": ("f32", "i32")}


@st.composite
def numbers(draw: st.DrawFn, type: VectorType) -> Number:
    """A constant of a type."""
    match type.scalar:
        case "bool":
            return Number(draw(st.booleans()), type)
        case "u32":
            return Number(draw(st.integers(0, 2**32 - 1)), type)
        case "i32":
            return Number(draw(st.integers(-2**31, 2**31 - 1)), type)
    width = 32 if type.scalar == "f32" else 16
    return Number(draw(st.floats(width=width, allow_nan=False)), type)


@st.composite
def values(draw: st.DrawFn, type: VectorType, known: tuple[Expr, ...], depth: int = 3) -> Expr:
    """An expression of a type, of names, loads and constants."""
    leaves = [expr for expr in known if expr.type == type]
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(leaves) if leaves else numbers(type))
    below = lambda kind: draw(values(kind, known, depth - 1))  # noqa: E731
    kinds = ["number", "select"]
    kinds += ["pure"] if any(type.scalar in INSTRUCTIONS[name].takes for name in PURE) else []
    kinds += ["question"] if type.scalar == "bool" else ["convert"]
    kinds += ["vector"] if type.lanes > 1 and type.scalar != "bool" else ["component"]
    kind = draw(st.sampled_from(kinds))
    if kind == "select":
        condition = VectorType("bool", draw(st.sampled_from((1, type.lanes))))
        return select(below(condition), below(type), below(type))
    if kind == "pure":
        name = draw(st.sampled_from([n for n in PURE if type.scalar in INSTRUCTIONS[n].takes]))
        return op(name, *(below(type) for _ in range(INSTRUCTIONS[name].arity))).to(type.scalar)
    if kind == "question":
        of = VectorType(draw(st.sampled_from(("f32", "f16", "i32", "u32"))), type.lanes)
        return op(draw(st.sampled_from(QUESTIONS)), below(of), below(of))
    if kind == "convert":
        scalar = draw(st.sampled_from([s for s, to in CONVERTED.items() if type.scalar in to]))
        return Op("convert", (below(VectorType(scalar, type.lanes)),), type)
    if kind == "vector":
        return vector(*(below(VectorType(type.scalar)) for _ in range(type.lanes)))
    if kind == "component" and type.scalar != "bool":
        lanes = draw(st.sampled_from((2, 4)))
        return op("component", below(VectorType(type.scalar, lanes)),
                  Number(draw(st.integers(0, lanes - 1)), U32))
    return draw(numbers(type))


@st.composite
def programs(draw: st.DrawFn) -> GroupProgram:
    """A program in which each invocation reads and writes places of its own."""
    b = Builder(draw(st.sampled_from(("drawn", "of words", '"quoted" {'))), SIZE,
                draw(st.sampled_from((0, 8))))
    x = b.binding("x", draw(st.sampled_from(("f32", "f16", "bf16", "i8"))), 3 * SIZE, "read")
    y = b.binding("y", "f32", 3 * SIZE * 4, "write", 4)
    part = b.shared("part", "f32", SIZE)
    place = b.let(b.group[1] * SIZE + b.invocation)
    known = [place, b.lane, b.load(x, place), b.load(x, place, where=b.invocation < 3)]
    for type in draw(st.lists(st.sampled_from([
            VectorType(s, lanes) for s in ("f32", "f16", "i32", "u32", "bool") for lanes in LANES]),
            max_size=4)):
        known.append(b.let(draw(values(type, tuple(known)))))
    total = b.variable(draw(values(F32, tuple(known))))
    with b.loop(draw(st.integers(1, 4)), draw(st.integers(0, 2)), draw(st.integers(1, 2))) as k:
        inside = (*known, total, k)
        with b.branch(draw(values(BOOL, inside))):
            b.set(total, draw(values(F32, inside)))
        if draw(st.booleans()):
            with b.otherwise():
                b.set(total, total + draw(values(F32, inside)))
        b.store(part, b.invocation, total)
        b.barrier()
        known.append(total)
        b.set(total, total + b.load(part, SIZE - 1 - b.invocation))
        b.barrier()
    whole = draw(values(VectorType("f32", 4), (*known, spread(total, 4))))
    b.store(y, place * 4, whole, where=draw(values(BOOL, tuple(known))))
    return b.finish((1, 3, 1))
