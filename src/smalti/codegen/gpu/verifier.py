"""Checks that a group program keeps the rules of its form, and what a device can do.

How far a value is the same for all is one of three levels, and so is how far control flow is: by
invocation (anything may differ), by subgroup, or by work-group. All of those who share in a barrier
have to reach it, so barriers want control flow of the level of work-groups, operations of subgroups
and matrices that of subgroups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum

from smalti.codegen.gpu.form import (
    BOOL,
    BUILTINS,
    STORED,
    U32,
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
    Op,
    Set,
    Shared,
    Statement,
    Store,
    Variable,
    constant,
    covered,
    expressions,
    operands,
    statements,
)
from smalti.codegen.gpu.instructions import HELD, SUBGROUP, result_type
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.codegen.gpu.registers import shared_bytes
from smalti.codegen.gpu.text import NAME, RESERVED, show_statement
from smalti.codegen.gpu.types import IN_A_WORD, SCALARS, Matrix, VectorType, vector_type
from smalti.errors import IllegalSchedule, VerificationError
from smalti.graph.operation import HALVES
from smalti.schedule.group import GroupLimits, MatrixShape

READS = {"f32": ("f32",), "f16": ("f32", "f16", "u32"), "bf16": ("f32", "u32"), "i32": ("i32",),
         "u32": ("u32",), "i8": ("i32", "u32"), "u8": ("i32", "u32")}
"""What scalars an element of each stored dtype is read as."""
WRITES = {"f32": ("f32",), "f16": ("f32", "f16", "u32"), "bf16": ("f32", "u32"),
          "i32": ("i32",), "u32": ("u32",)}
"""What scalars are stored as each dtype."""
VALID = {VectorType(scalar, lanes) for scalar in SCALARS for lanes in (1, 2, 4)}
MATRIX_SCALARS = {"a": ("f32", "f16", "bf16", "i8"), "sum": ("f32", "f16", "bf16", "i32")}
MATRIX_SCALARS["b"] = MATRIX_SCALARS["a"]
"""What the elements of a matrix of each role are."""


class Level(IntEnum):
    """For whom a value is the same."""

    INVOCATION = 0
    SUBGROUP = 1
    GROUP = 2


BUILTIN_LEVELS = {name: Level.GROUP if name.startswith("group_") else
                  Level.SUBGROUP if name == "subgroup" else Level.INVOCATION for name in BUILTINS}


def verify(program: GroupProgram, limits: GroupLimits | None = None,
           after: str = "lowering") -> None:
    """Raise VerificationError, naming the pass and the statement, unless the program is well
    formed; raise IllegalSchedule if a device of these `limits` cannot run it.

    >>> from smalti.codegen.gpu.builder import Builder
    >>> b = Builder("half", 64)
    >>> with b.branch(b.invocation < 32):
    ...     b.barrier()
    >>> verify(b.finish((1, 1, 1)))
    Traceback (most recent call last):
    smalti.errors.VerificationError: after lowering, program half: barrier: expected control flow \
that is the same for the group, found that it differs by invocation
    """
    _Verifier(program, after).run()
    if limits is not None:
        _check_limits(program, limits)


# ---------------------------------------------------------------------- form


class _Verifier:
    def __init__(self, program: GroupProgram, after: str) -> None:
        self.program, self.after = program, after
        self.buffers = {b.name: b for b in program.buffers}
        self.statement: Statement | None = None
        self.levels = levels(program)
        self.defined: set[str] = set()

    def check(self, holds: bool, expected: str, found: object) -> None:
        """Raise unless a rule holds."""
        if not holds:
            place = f"after {self.after}, program {self.program.name}: "
            if self.statement is not None:
                place += f"{show_statement(self.program, self.statement)}: "
            raise VerificationError(f"{place}expected {expected}, found {found}")

    def run(self) -> None:
        program = self.program
        self.check(program.size >= 1 and len(program.groups) == 3 and min(program.groups) >= 1,
                   "groups and invocations of 1 or more", (program.groups, program.size))
        self.check(len(self.buffers) == len(program.buffers), "each buffer listed once",
                   [b.name for b in program.buffers])
        for buffer in program.buffers:
            self._buffer(buffer)
        self._block(program.body, {}, set(), Level.GROUP)

    def _name(self, name: str) -> None:
        self.check(bool(NAME.match(name)) and name not in RESERVED,
                   "a name of letters and digits that means nothing else", repr(name))

    def _buffer(self, buffer: Binding | Shared) -> None:
        name, written = buffer.name, isinstance(buffer, Shared) or buffer.access != "read"
        self._name(name)
        self.check(buffer.dtype in STORED, f"a dtype of {', '.join(STORED)} for {name}",
                   buffer.dtype)
        self.check(buffer.dtype in WRITES or not written, f"{name} to be only read",
                   f"{buffer.dtype}, which is not written")
        lanes = (1, 2, 4, 8) if buffer.dtype in HALVES else (1, 2, 4)
        self.check(1 <= buffer.elements < 1 << 32 and buffer.lanes in lanes,
                   f"elements that u32 counts, and {', '.join(map(str, lanes))} at once in {name}",
                   (buffer.elements, buffer.lanes))
        if isinstance(buffer, Binding):
            self.check(buffer.access in ("read", "write", "read_write"),
                       f"{name} to be read or written", buffer.access)

    # ------------------------------------------------------------------ statements

    def _block(self, body: tuple[Statement, ...], outer: dict[str, VectorType | Matrix],
               variables: set[str], control: Level) -> None:
        """`outer` are the types of names that are known, `variables` those of them that change."""
        scope, variables = dict(outer), set(variables)
        for statement in body:
            self.statement = statement
            for expr in operands(statement):
                self._expr(expr, scope, control)
            self.statement = statement
            match statement:
                case Let(name, value) | Variable(name, value):
                    self._define(name)
                    scope[name] = value.type
                    if isinstance(statement, Variable):
                        variables.add(name)
                case Set(name, value):
                    self.check(name in variables, "a variable that is known here", name)
                    self.check(scope[name] == value.type, f"a value of {scope[name]}", value.type)
                case Store():
                    self._store(statement)
                case MatrixStore():
                    self._matrix(statement, statement.value.type, False, control)
                case Barrier():
                    self._reached(control, Level.GROUP)
                case Loop():
                    self._loop(statement, scope, variables, control)
                case Branch(condition, then, otherwise):
                    self.check(condition.type == BOOL, "a question", condition.type)
                    inside = min(control, level(condition, self.program, self.levels))
                    self._block(then, scope, variables, inside)
                    self._block(otherwise, scope, variables, inside)
                case _:
                    self.check(False, "a statement", statement)

    def _define(self, name: str) -> None:
        self._name(name)
        self.check(name not in self.defined, "each name given once", name)
        self.defined.add(name)

    def _loop(self, loop: Loop, scope: dict[str, VectorType | Matrix], variables: set[str],
              control: Level) -> None:
        self._define(loop.counter)
        self.check(loop.start.type == loop.stop.type == U32 and loop.step >= 1,
                   "a loop over u32, forwards", (loop.start.type, loop.stop.type, loop.step))
        ends = [level(end, self.program, self.levels) for end in (loop.start, loop.stop)]
        self._block(loop.body, {**scope, loop.counter: U32}, variables, min(control, *ends))

    def _reached(self, control: Level, by: Level) -> None:
        self.check(control >= by, f"control flow that is the same for the {by.name.lower()}",
                   f"that it differs by {control.name.lower()}")

    # ------------------------------------------------------------------ memory

    def _accessed(self, access: GroupLoad | Store | MatrixLoad | MatrixStore, reads: bool):
        buffer = self.buffers.get(access.buffer)
        self.check(buffer is not None, "a buffer that is listed", access.buffer)
        self.check(access.index.type == U32, "an index of u32", access.index.type)
        if isinstance(buffer, Binding):
            ways = ("read", "read_write") if reads else ("write", "read_write")
            self.check(buffer.access in ways, f"{buffer.name} to be {ways[0]}", buffer.access)
        if isinstance(access, GroupLoad | Store) and access.where is not None:
            self.check(access.where.type == BOOL, "a question after where", access.where.type)
        return buffer

    def _lanes(self, access: GroupLoad | Store, type: VectorType, buffer: Binding | Shared) -> None:
        count = covered(buffer.dtype, type)
        self.check(buffer.lanes % count == 0,
                   f"at most {buffer.lanes} elements of {buffer.name} at once", count)
        factor, rest = residue(access.index)
        known = math.gcd(factor, count)
        self.check(rest % known == 0, f"an index that is a multiple of {count}",
                   f"one that is {rest % known} more than a multiple of {known}")

    def _store(self, store: Store) -> None:
        buffer, type = self._accessed(store, reads=False), store.value.type
        self.check(isinstance(type, VectorType) and type.scalar in WRITES[buffer.dtype],
                   f"a value that is stored as {buffer.dtype}", type)
        self._lanes(store, vector_type(type), buffer)

    def _matrix(self, access: MatrixLoad | MatrixStore, type: VectorType | Matrix, reads: bool,
                control: Level) -> None:
        buffer = self._accessed(access, reads)
        self.check(isinstance(type, Matrix) and buffer.dtype in (type.scalar, "u32"),
                   f"a matrix of {buffer.dtype}", type)
        self._reached(control, Level.SUBGROUP)
        self._reached(level(access.index, self.program, self.levels), Level.SUBGROUP)
        assert isinstance(type, Matrix), type
        least = type.rows if access.by_columns else type.columns
        if buffer.dtype == "u32" and type.scalar in IN_A_WORD:
            each = IN_A_WORD[type.scalar]
            self.check(least % each == 0, "a line of whole words", least)
            least //= each
        self.check(access.stride >= least, f"a stride of {least} or more", access.stride)

    # ------------------------------------------------------------------ expressions

    def _expr(self, expr: Expr, scope: dict[str, VectorType | Matrix], control: Level) -> None:
        if type(expr) is Name:
            known = scope.get(expr.name)
            if known != expr.type:
                self.check(False, f"{expr.name} to be known here, of {expr.type}",
                           known or "nothing")
            return
        for part in operands(expr):
            self._expr(part, scope, control)
        self._type(expr.type)
        match expr:
            case Op():
                self._op(expr, control)
            case Builtin(name):
                self.check(name in BUILTINS, f"one of {', '.join(BUILTINS)}", name)
            case GroupLoad():
                buffer = self._accessed(expr, reads=True)
                self.check(isinstance(expr.type, VectorType) and
                           expr.type.scalar in READS[buffer.dtype],
                           f"{buffer.dtype} read as {' or '.join(READS[buffer.dtype])}", expr.type)
                self._lanes(expr, expr.type, buffer)
            case MatrixLoad():
                self._matrix(expr, expr.type, True, control)
            case _:
                self.check(isinstance(expr, Number), "an expression", repr(expr))

    def _type(self, type: VectorType | Matrix) -> None:
        if type in VALID:
            return
        if isinstance(type, Matrix):
            self.check(type.scalar in MATRIX_SCALARS.get(type.role, ()) and
                       min(type.rows, type.columns) >= 1, "a matrix", type)
        else:
            self.check(False, "a type", type)

    def _op(self, op: Op, control: Level) -> None:
        types = [argument.type for argument in op.arguments]
        if op.instruction in ("convert", "bits", "vector"):
            fits = self._shaped(op, types)
            self.check(fits, f"{op.instruction} to fit", f"{op.type} of "
                       f"{', '.join(map(str, types))}")
        else:
            try:
                found = result_type(op.instruction, types)
            except (KeyError, TypeError) as error:
                self.check(False, f"an instruction and its operands ({op.instruction})", error)
            self.check(op.type == found, f"{op.instruction} to give {found}", op.type)
        if op.instruction in HELD:
            self._held(op, types[0])
        if op.instruction in ("component", "subgroup_shuffle_xor", "of_column"):
            self.check(isinstance(op.arguments[1], Number) and types[1] == U32,
                       f"a constant as second operand of {op.instruction}", op.arguments[1])
        if op.instruction == "component":
            lane = constant(op.arguments[1])
            self.check(lane < vector_type(types[0]).lanes, "a lane of the vector", lane)
        if op.instruction == "subgroup_shuffle":
            self.check(types[1] == U32, "a lane of u32", types[1])
        if op.instruction == "matrix_times":
            self._reached(level(op.arguments[1], self.program, self.levels), Level.SUBGROUP)
        if op.instruction in SUBGROUP or isinstance(op.type, Matrix):
            self._reached(control, Level.SUBGROUP)

    def _held(self, op: Op, matrix: VectorType | Matrix) -> None:
        """Each invocation of a subgroup has a column, or a word of each row."""
        assert isinstance(matrix, Matrix), op
        lines = matrix.columns // (2 if op.instruction == "with_words" else 1)
        self.check(self.program.subgroup == lines, f"subgroups of {lines}", self.program.subgroup)
        if op.instruction == "of_column":
            place = constant(op.arguments[1])
            self.check(place < matrix.rows, f"one of {matrix.rows} elements", place)

    def _shaped(self, op: Op, types: list[VectorType | Matrix]) -> bool:
        """Whether operands fit an instruction that says its own type."""
        first = types[0]
        if op.instruction == "vector":
            return len(set(types)) == 1 and isinstance(first, VectorType) and first.lanes == 1 and (
                op.type == VectorType(first.scalar, len(types)))
        if len(types) != 1:
            return False
        if isinstance(op.type, Matrix):
            return op.instruction == "convert" and isinstance(first, Matrix) and (
                (first.role, first.rows, first.columns) == (
                    op.type.role, op.type.rows, op.type.columns))
        plain = op.instruction == "convert" or {first.scalar, op.type.scalar} <= {
            "f32", "i32", "u32"}
        return isinstance(first, VectorType) and first.lanes == op.type.lanes and plain


# ---------------------------------------------------------------------- what is the same for all


def level(expr: Expr, program: GroupProgram, known: dict[str, Level]) -> Level:
    """For whom the value of an expression is the same, given that of names."""
    if isinstance(expr, Number):
        return Level.GROUP
    if isinstance(expr, Name):
        return known.get(expr.name, Level.INVOCATION)
    if isinstance(expr, Builtin):
        return BUILTIN_LEVELS.get(expr.name, Level.INVOCATION)
    inside = Level.GROUP
    for part in operands(expr):
        inside = min(inside, level(part, program, known))
    if isinstance(expr, GroupLoad):
        constant = any(b.name == expr.buffer and b.access == "read" for b in program.bindings)
        return inside if constant else Level.INVOCATION
    if isinstance(expr, MatrixLoad) or isinstance(expr.type, Matrix):
        return Level.SUBGROUP
    if expr.instruction == "of_column":
        return Level.INVOCATION
    if expr.instruction in SUBGROUP:
        folded = expr.instruction in ("subgroup_add", "subgroup_max", "subgroup_min")
        return Level.SUBGROUP if folded else min(inside, Level.SUBGROUP)
    return inside


def levels(program: GroupProgram) -> dict[str, Level]:
    """For whom each name has the same value: what loops carry round lowers it until all agrees."""
    known: dict[str, Level] = {}

    def lower(name: str, to: Level) -> None:
        known[name] = min(known.get(name, Level.GROUP), to)

    def walk(body: Iterable[Statement], control: Level) -> None:
        for statement in body:
            match statement:
                case Let(name, value) | Variable(name, value):
                    lower(name, level(value, program, known))
                case Set(name, value):
                    lower(name, min(control, level(value, program, known)))
                case Loop(counter, start, stop, _, inside):
                    ends = min(level(start, program, known), level(stop, program, known))
                    lower(counter, level(start, program, known))
                    walk(inside, min(control, ends))
                case Branch(condition, then, otherwise):
                    inner = min(control, level(condition, program, known))
                    walk(then, inner)
                    walk(otherwise, inner)

    before = None
    while before != known:
        before = dict(known)
        walk(program.body, Level.GROUP)
    return known


def residue(index: Expr) -> tuple[int, int]:
    """(m, r): the index, which wraps at 2**32, is r more than a multiple of m.

    >>> from smalti.codegen.gpu.form import Builtin
    >>> residue(Builtin("lane") * 4 + 6)
    (4, 6)
    """
    match index:
        case Number(value):
            return 1 << 32, int(value)
        case Op("add", (x, y), _):
            (m, r), (n, s) = residue(x), residue(y)
            return math.gcd(m, n), r + s
        case Op("sub", (x, y), _):
            (m, r), (n, s) = residue(x), residue(y)
            return math.gcd(m, n), r - s
        case Op("mul", (x, y), _):
            (m, r), (n, s) = residue(x), residue(y)
            return math.gcd(m * n, m * s, n * r, 1 << 32), r * s
    return 1, 0


# ---------------------------------------------------------------------- limits


def _check_limits(program: GroupProgram, limits: GroupLimits) -> None:
    """Raise IllegalSchedule for the first limit that the program goes beyond."""
    def within(holds: bool, what: str, has: object, allowed: object) -> None:
        if not holds:
            raise IllegalSchedule(f"program {program.name}: {what}: {has}, the device allows "
                                  f"{allowed}")

    shared = shared_bytes(program)
    within(shared <= limits.shared_bytes, "bytes of shared memory", shared, limits.shared_bytes)
    within(program.size <= limits.invocations, "invocations of a group", program.size,
           limits.invocations)
    within(all(n <= most for n, most in zip(program.groups, limits.grid)), "groups",
           program.groups, limits.grid)
    bindings = min(limits.bindings, limits.push_bytes // 4)
    within(len(program.bindings) <= bindings, "bindings", len(program.bindings), bindings)
    for binding in program.bindings:
        size = binding.elements * STORED_DTYPES[binding.dtype].itemsize
        within(size <= limits.buffer_range, f"bytes of {binding.name}", size, limits.buffer_range)
    _check_subgroups(program, limits, within)


def _check_subgroups(program: GroupProgram, limits: GroupLimits, within) -> None:
    """The part that concerns types, subgroups and matrices."""
    found = list(expressions(program.body))
    halves = any(e.type.scalar == "f16" for e in found if isinstance(e.type, VectorType))
    within(limits.f16 or not halves, "arithmetic in f16", "used", "none")
    used = sorted({e.instruction for e in found if isinstance(e, Op) and e.instruction in SUBGROUP})
    within(limits.subgroup_operations or not used, "operations of subgroups", used, "none")
    if program.subgroup:
        least, most = limits.subgroup_min, limits.subgroup_max
        given = least == most == program.subgroup
        chosen = limits.subgroup_choice and least <= program.subgroup <= most
        within(given or chosen, "invocations of a subgroup", program.subgroup,
               f"{least} to {most}{'' if limits.subgroup_choice else ', of its own choice'}")
    meet = any(isinstance(s, Barrier) and s.subgroup for s in statements(program.body))
    within(bool(program.subgroup) or not meet, "subgroups that have barriers", "any",
           "those of one size")
    matrices = [e for e in found if isinstance(e.type, Matrix)] + [
        s for s in statements(program.body) if isinstance(s, MatrixStore)]
    whole = program.subgroup and program.size % program.subgroup == 0
    within(bool(whole) or not matrices, "subgroups that share matrices", program.subgroup or "any",
           "full ones of one size")
    for op in found:
        if isinstance(op, Op) and op.instruction == "matrix_multiply_add":
            a, _, total = (argument.type for argument in op.arguments)
            assert isinstance(a, Matrix) and isinstance(total, Matrix), op
            shape = MatrixShape(total.rows, total.columns, a.columns, a.scalar, total.scalar)
            within(shape in limits.matrices, "matrices", shape, list(limits.matrices))
