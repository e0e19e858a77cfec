"""The meaning of a group program: numpy runs all invocations of many work-groups side by side.

A value is an array [groups, invocations], with lanes behind for a vector; either extent is 1 where
the value does not depend on it. A matrix is [groups, subgroups, rows, columns]. A mask of such
extents says who takes part in a statement; None is everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from smalti.codegen.gpu.form import (
    Barrier,
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
    Statement,
    Store,
    Variable,
    constant,
    covered,
)
from smalti.codegen.gpu.instructions import (
    HELD,
    INSTRUCTIONS,
    NARROWING,
    SUBGROUP,
    WIDENING,
)
from smalti.codegen.gpu.memory import EPOCH, STORED_DTYPES, Agents, TrackedMemory
from smalti.codegen.gpu.text import show_statement
from smalti.codegen.gpu.types import Matrix, VectorType, vector_type
from smalti.errors import InputError, VerificationError

Mask = np.ndarray | None

VALUES = {**{name: STORED_DTYPES[name] for name in ("f32", "f16", "i32", "u32", "i8")},
          "bool": np.dtype(bool), "bf16": np.dtype(np.float32)}
"""What values are computed in; elements of bf16 matrices are rounded to it, and those of matrices
may be i8."""
INVOCATIONS_AT_ONCE = 1 << 15
SHARED_ELEMENTS_AT_ONCE = 1 << 20
POISON = {"f32": np.nan, "f16": np.nan, "bf16": np.nan, "i32": -559038737, "u32": 0xDEADBEEF}
"""What memory holds that nobody has written."""


def run(program: GroupProgram, arrays: Mapping[str, np.ndarray], *, subgroup: int = 32,
        groups: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """What the bindings hold after a run, each a flat array of its stored dtype (numpy's, bf16 that
    of ml_dtypes); `arrays` are those from before, and stay as they are.

    A binding that is only written may be missing: what stays unwritten is then NaN, or `POISON`.
    `subgroup` is the size of subgroups where the program asks for none; `groups` are the numbers of
    the work-groups that run, x fastest, if not all of them.

    Raises InputError for a missing array or one of another size or dtype. Raises VerificationError,
    with the statement and the invocations, for an access out of bounds or out of line, a read of
    shared memory that nobody wrote, a race (see `memory.py`), and a barrier, subgroup operation or
    matrix that not all have reached who take part in it.

    >>> from smalti.codegen.gpu.builder import Builder
    >>> b = Builder("double", 64)
    >>> x, y = b.binding("x", "f32", 3, "read"), b.binding("y", "f32", 3, "write")
    >>> i = b.invocation
    >>> b.store(y, i, 2.0 * b.load(x, i, where=i < 3), where=i < 3)
    >>> run(b.finish((1, 1, 1)), {"x": np.array([1, 2, 3], np.float32)})["y"].tolist()
    [2.0, 4.0, 6.0]
    """
    with np.errstate(all="ignore"):
        return _Launch(program, arrays, program.subgroup or subgroup).run(groups)


class _Launch:
    """All work-groups of a run, a batch at a time."""

    def __init__(self, program: GroupProgram, arrays: Mapping[str, np.ndarray],
                 subgroup: int) -> None:
        self.program, self.subgroup = program, subgroup
        self.agents = Agents(program.groups, program.size, subgroup)
        self.statement: Statement | None = None
        self.memory = {b.name: TrackedMemory(b, _bound(b, arrays), self.agents, self.fail)
                       for b in program.bindings}

    def fail(self, why: str) -> None:
        """Raise an error that names the statement that is being run."""
        shown = show_statement(self.program, self.statement) if self.statement else ""
        raise VerificationError(f"program {self.program.name}: {shown}: {why}")

    def run(self, groups: Sequence[int] | None) -> dict[str, np.ndarray]:
        """Run the groups of these numbers, or all."""
        numbers = np.arange(np.prod(self.program.groups)) if groups is None else np.array(groups)
        shared = sum(array.elements for array in self.program.shared)
        batch = max(1, min(INVOCATIONS_AT_ONCE // self.program.size,
                           SHARED_ELEMENTS_AT_ONCE // max(1, shared)))
        for first in range(0, len(numbers), batch):
            _Batch(self, numbers[first:first + batch]).block(self.program.body, None)
        return {name: memory.values for name, memory in self.memory.items()}


def _bound(binding, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """A copy of the array that is bound."""
    dtype = STORED_DTYPES[binding.dtype]
    if binding.name not in arrays:
        if binding.access != "write":
            raise InputError(f"no array for the binding {binding.name!r}")
        return np.full(binding.elements, POISON[binding.dtype], dtype)
    array = np.array(arrays[binding.name])
    if array.shape != (binding.elements,) or array.dtype != dtype:
        raise InputError(f"binding {binding.name!r} is {binding.dtype}[{binding.elements}], found "
                         f"{array.dtype} {list(array.shape)}")
    return array


class _Batch:
    """Work-groups that run side by side."""

    def __init__(self, launch: _Launch, numbers: np.ndarray) -> None:
        program, agents = launch.program, launch.agents
        self.launch, self.fail, self.agents = launch, launch.fail, agents
        self.groups, self.size, self.subgroup = len(numbers), program.size, launch.subgroup
        self.shape = (self.groups, self.size)
        across, down, _ = program.groups
        invocation = np.arange(self.size)
        self.starts = np.arange(0, self.size, self.subgroup)
        builtins = {"group_x": numbers % across, "group_y": numbers // across % down,
                    "group_z": numbers // (across * down)}
        self.builtins = {name: value.astype(np.uint32)[:, None] for name, value in builtins.items()}
        for name, value in (("invocation", invocation), ("subgroup", invocation // self.subgroup),
                            ("lane", invocation % self.subgroup)):
            self.builtins[name] = value.astype(np.uint32)[None, :]
        self.who = (numbers[:, None] * agents.stride + invocation).astype(np.int64)
        self.epoch = np.zeros(self.groups, np.int64)
        self.names: dict[str, np.ndarray] = {}
        self.mask: Mask = None
        self.memory = dict(launch.memory)
        for array in program.shared:
            values = np.full(array.elements * self.groups, POISON[array.dtype],
                             STORED_DTYPES[array.dtype])
            self.memory[array.name] = TrackedMemory(array, values, agents, self.fail)

    # ------------------------------------------------------------------ statements

    def block(self, body: tuple[Statement, ...], mask: Mask) -> None:
        """Run statements for those who take part."""
        if mask is not None and not mask.any():
            return
        for statement in body:
            self.launch.statement, self.mask = statement, mask
            match statement:
                case Let(name, value) | Variable(name, value):
                    self.names[name] = self.value(value)
                case Set(name, value):
                    self.set(name, self.value(value))
                case Store():
                    self.store(statement)
                case MatrixStore():
                    self.store_matrix(statement)
                case Barrier(subgroup):
                    self.barrier(subgroup)
                case Loop():
                    self.loop(statement, mask)
                case Branch(condition, then, otherwise):
                    holds = self.value(condition)
                    self.block(then, _both(mask, holds))
                    self.block(otherwise, _both(mask, ~holds))

    def loop(self, loop: Loop, mask: Mask) -> None:
        """Repeat the body for those whose counter is below their stop."""
        counter, stop = np.broadcast_arrays(self.value(loop.start), self.value(loop.stop))
        while True:
            live = _both(mask, counter < stop)
            if live is not None and not live.any():
                return
            self.names[loop.counter] = counter
            self.block(loop.body, live)
            self.launch.statement, self.mask = loop, mask
            counter = counter + np.uint32(loop.step)

    def set(self, name: str, value: np.ndarray) -> None:
        """Another value for those who take part."""
        before, mask = self.names[name], self.mask
        if mask is not None:
            if before.ndim == 4:
                mask = self.whole_subgroups(mask)
            value = np.where(mask.reshape(mask.shape + (1,) * (before.ndim - 2)), value, before)
        self.names[name] = value

    def barrier(self, subgroup: bool) -> None:
        """All of a group, or none of it, are here."""
        following = self.epoch + 1 if subgroup else (self.epoch // EPOCH + 1) * EPOCH
        if self.mask is None:
            self.epoch = following
            return
        here = np.broadcast_to(self.mask, self.shape)
        partly = here.any(axis=1) & ~here.all(axis=1)
        if partly.any():
            group = int(np.argmax(partly))
            self.fail(f"{self.agents.show(self.who[group, np.argmax(here[group])])} waits at a "
                      f"barrier that invocation {np.argmin(here[group])} does not reach")
        self.epoch = np.where(here[:, 0], following, self.epoch)

    def store(self, store: Store) -> None:
        """Elements to memory."""
        lanes = vector_type(store.value.type).lanes
        memory, value = self.memory[store.buffer], self.full(self.value(store.value), lanes)
        count = covered(memory.buffer.dtype, store.value.type)
        at, index, who, epoch = self.accesses(store, count)
        cells = memory.cells(index, at // self.size, who)
        memory.write(cells, _stored(value.reshape(-1, lanes)[at], memory, count > lanes), who,
                     epoch)

    def store_matrix(self, store: MatrixStore) -> None:
        """Matrices of subgroups to memory."""
        memory, value = self.memory[store.buffer], self.value(store.value)
        assert isinstance(store.value.type, Matrix), store
        index, group, who, epoch = self.matrix_accesses(store, store.value.type)
        flat = np.broadcast_to(value, (self.groups, len(self.starts), *value.shape[2:]))
        if store.by_columns:
            flat = flat.swapaxes(2, 3)
        flat = flat.reshape(self.groups * len(self.starts), -1)[
            group * len(self.starts) + self.unit(who)]
        words = memory.buffer.dtype == "u32"
        flat = flat.astype(STORED_DTYPES[store.value.type.scalar]) if words else flat
        memory.write(memory.cells(index, group, who), _stored(flat, memory, words), who, epoch)

    # ------------------------------------------------------------------ who touches what

    def accesses(self, access: GroupLoad | Store, lanes: int):
        """Of those who take part: their places in the batch [accesses], the elements that they
        touch [accesses, lanes], who they are, and how many barriers they have passed."""
        active = self.mask
        if access.where is not None:
            active = _both(active, self.value(access.where))
        at = np.arange(self.groups * self.size) if active is None else (
            np.flatnonzero(np.broadcast_to(active, self.shape)))
        index = self.full(self.value(access.index), 1).reshape(-1)[at].astype(np.int64)
        who = self.who.reshape(-1)[at]
        if lanes > 1 and (index % lanes).any():
            wrong = np.argmax(index % lanes != 0)
            self.fail(f"{self.agents.show(who[wrong])} touches {lanes} elements of {access.buffer} "
                      f"from {index[wrong]} on, which is no multiple of {lanes}")
        return at, index[:, None] + np.arange(lanes), who, self.epoch[at // self.size]

    def matrix_accesses(self, access: MatrixLoad | MatrixStore, type: Matrix):
        """Of subgroups that take part: the elements of their matrices [accesses, elements], line by
        line, their groups in the batch, who they are, and how many barriers they have passed."""
        active = self.whole_subgroups(self.mask)
        index = self.full(self.value(access.index), 1)
        first = index[:, self.starts]
        differ = np.repeat(first, self.lengths(), axis=1) != index
        if (differ & np.repeat(active, self.lengths(), axis=1)).any():
            self.fail("the index of a matrix differs inside of a subgroup")
        group, unit = np.nonzero(active)
        lines, each = (type.columns, type.rows) if access.by_columns else (type.rows, type.columns)
        if self.memory[access.buffer].buffer.dtype == "u32":
            each = each * STORED_DTYPES[type.scalar].itemsize // STORED_DTYPES["u32"].itemsize
        elements = (np.arange(lines)[:, None] * access.stride + np.arange(each)).reshape(-1)
        who = self.who[group, 0] + self.size + unit
        touched = first[group, unit].astype(np.int64)[:, None] + elements
        return touched, group, who, self.epoch[group]

    def unit(self, who: np.ndarray) -> np.ndarray:
        """The number of a subgroup in its group."""
        return who % self.agents.stride - self.size

    def lengths(self) -> np.ndarray:
        """How many invocations each subgroup has."""
        return np.diff(np.append(self.starts, self.size))

    def whole_subgroups(self, mask: Mask) -> np.ndarray:
        """The mask by subgroups, of which each takes part as a whole or not at all."""
        here = np.broadcast_to(True if mask is None else mask, self.shape)
        some = np.logical_or.reduceat(here, self.starts, axis=1)
        partly = some & ~np.logical_and.reduceat(here, self.starts, axis=1)
        if partly.any():
            group, unit = np.argwhere(partly)[0]
            self.fail(f"{self.agents.show(self.who[group, 0] + self.size + unit)} is not here as a "
                      "whole")
        return some

    # ------------------------------------------------------------------ expressions

    def full(self, value: np.ndarray, lanes: int) -> np.ndarray:
        """A value for every invocation; lanes behind, also of scalars, unless asked for one."""
        shape = self.shape if lanes == 1 else (*self.shape, lanes)
        return np.broadcast_to(value, shape)

    def value(self, expr: Expr) -> np.ndarray:
        """The expression for all; what those compute who do not take part is of no use."""
        match expr:
            case Number(value, type):
                inner = (type.rows, type.columns) if isinstance(type, Matrix) else (
                    (type.lanes,) if type.lanes > 1 else ())
                return np.full((1, 1, *inner), value, VALUES[type.scalar])
            case Name(name):
                return self.names[name]
            case Builtin(name):
                return self.builtins[name]
            case GroupLoad():
                return self.load(expr)
            case MatrixLoad():
                return self.load_matrix(expr)
        if expr.instruction in SUBGROUP:
            return self.subgroup_operation(expr)
        return self.operation(expr)

    def operation(self, expr: Op) -> np.ndarray:
        """An instruction on an invocation's own values."""
        arguments = [self.value(argument) for argument in expr.arguments]
        dtype, entry = VALUES[expr.type.scalar], INSTRUCTIONS[expr.instruction]
        if expr.instruction == "matrix_times":
            factor = self.full(arguments[1], 1)[:, self.starts]
            return _rounded((arguments[0] * factor[..., None, None]).astype(dtype), expr.type)
        if expr.instruction in HELD:
            return self.held(expr, arguments[0], arguments[1:])
        if entry.meaning is None:
            return _convert(expr, arguments, dtype)
        if expr.instruction == "select" and arguments[0].ndim < arguments[1].ndim:
            arguments[0] = arguments[0][..., None]
        return _rounded(np.asarray(entry.meaning(*arguments)).astype(dtype, copy=False), expr.type)

    def load(self, load: GroupLoad) -> np.ndarray:
        """Elements of memory, 0 for those who read nothing."""
        memory, lanes = self.memory[load.buffer], load.type.lanes
        count = covered(memory.buffer.dtype, load.type)
        at, index, who, epoch = self.accesses(load, count)
        read = memory.read(memory.cells(index, at // self.size, who), who, epoch)
        found = np.zeros((self.groups * self.size, lanes), VALUES[load.type.scalar])
        found[at] = read.view(found.dtype) if count > lanes else read.astype(found.dtype)
        return found.reshape(self.shape if lanes == 1 else (*self.shape, lanes))

    def load_matrix(self, load: MatrixLoad) -> np.ndarray:
        """Matrices of subgroups from memory."""
        memory, units, type = self.memory[load.buffer], len(self.starts), load.type
        index, group, who, epoch = self.matrix_accesses(load, type)
        found = np.zeros((self.groups * units, type.rows * type.columns), VALUES[type.scalar])
        read = memory.read(memory.cells(index, group, who), who, epoch)
        if memory.buffer.dtype == "u32":
            read = read.view(STORED_DTYPES[type.scalar])
        found[group * units + self.unit(who)] = read.astype(found.dtype)
        if load.by_columns:
            return found.reshape(self.groups, units, type.columns, type.rows).swapaxes(2, 3)
        return found.reshape(self.groups, units, type.rows, type.columns)

    def held(self, expr: Op, matrix: np.ndarray, given: Sequence[np.ndarray]) -> np.ndarray:
        """An element of each invocation's column; or matrices of what invocations give."""
        if expr.instruction == "of_column":
            column = matrix[:, :, constant(expr.arguments[1])]
            return np.broadcast_to(column, (self.groups, len(self.starts), self.subgroup)).reshape(
                self.shape)
        lanes = [vector_type(each.type).lanes for each in expr.arguments[1:]]
        lines = np.concatenate([self.full(value, each).reshape(*self.shape, each)
                                for value, each in zip(given, lanes)], axis=2)
        lines = lines.reshape(self.groups, len(self.starts), self.subgroup, -1).swapaxes(2, 3)
        halves = STORED_DTYPES[expr.type.scalar]
        return (np.ascontiguousarray(lines).view(halves) if expr.instruction == "with_words"
                else lines)

    def subgroup_operation(self, expr: Op) -> np.ndarray:
        """Values of the other invocations of a subgroup."""
        present = self.whole_subgroups(self.mask)
        value = self.full(self.value(expr.arguments[0]), vector_type(expr.type).lanes)
        fold = {"subgroup_add": np.add, "subgroup_max": np.fmax, "subgroup_min": np.fmin}.get(
            expr.instruction)
        if fold:
            folded = fold.reduceat(value, self.starts, axis=1)
            return np.repeat(folded.astype(value.dtype), self.lengths(), axis=1)
        lane = self.builtins["lane"]
        other = self.full(self.value(expr.arguments[1]), 1)
        source = (lane ^ other if expr.instruction == "subgroup_shuffle_xor" else other).astype(
            np.int64)
        lengths = np.repeat(self.lengths(), self.lengths())
        lost = (source >= lengths) & np.repeat(present, self.lengths(), axis=1)
        if lost.any():
            group, own = np.argwhere(lost)[0]
            self.fail(f"{self.agents.show(self.who[group, own])} asks for a value of lane "
                      f"{source[group, own]}, which its subgroup lacks")
        source = np.where(source < lengths, source, 0) + np.repeat(self.starts, self.lengths())
        if value.ndim == 3:
            source = source[..., None]
        return np.take_along_axis(value, source, axis=1)


def _both(mask: Mask, holds: np.ndarray) -> Mask:
    """Those of the mask for whom a condition holds."""
    if holds.all():
        return mask
    return holds if mask is None else mask & holds


def _convert(expr: Op, arguments: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Instructions that change the type of a value, and the product of matrices."""
    first = arguments[0]
    match expr.instruction:
        case "convert":
            if np.issubdtype(dtype, np.integer) and np.issubdtype(first.dtype, np.floating):
                limits = np.iinfo(dtype)
                first = np.clip(np.trunc(first.astype(np.float64)), limits.min, limits.max)
            return _rounded(first.astype(dtype), expr.type)
        case "bits":
            return np.ascontiguousarray(first).view(dtype)
        case "vector":
            return np.stack(np.broadcast_arrays(*arguments), axis=-1)
        case "component":
            return first[..., constant(expr.arguments[1])]
        case "widen_f16" | "widen_bf16":
            halves = STORED_DTYPES[WIDENING[expr.instruction]]
            words = first if vector_type(expr.arguments[0].type).lanes > 1 else first[..., None]
            return np.ascontiguousarray(words).view(halves).astype(dtype)
        case "narrow_f16" | "narrow_bf16":
            rounded = first.astype(STORED_DTYPES[NARROWING[expr.instruction]])
            words = np.ascontiguousarray(rounded).view(dtype)
            return words if vector_type(expr.type).lanes > 1 else words[..., 0]
    assert expr.instruction == "matrix_multiply_add", expr.instruction
    if dtype == np.int32:  # f64 holds what the bytes of a matrix add up to, whatever its depth
        wide = [argument.astype(np.float64) for argument in arguments[:2]]
        return (wide[0] @ wide[1]).astype(dtype) + arguments[2]
    a, b, total = (argument.astype(np.float32) for argument in arguments)
    return _rounded((a @ b + total).astype(dtype), expr.type)


def _stored(values: np.ndarray, memory: TrackedMemory, bits: bool) -> np.ndarray:
    """Values [accesses, each] as memory holds them: rounded, or their bits."""
    kind = memory.values.dtype
    return np.ascontiguousarray(values).view(kind) if bits else values.astype(kind)


def _rounded(value: np.ndarray, type: VectorType | Matrix) -> np.ndarray:
    """Values of bf16 matrices, which are kept as f32."""
    return value.astype(STORED_DTYPES["bf16"]).astype(value.dtype) if (
        type.scalar == "bf16") else value
