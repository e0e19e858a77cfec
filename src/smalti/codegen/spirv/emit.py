"""Group programs as SPIR-V: one function, `main`, for work-groups along the first axis.

Binding number i is the storage buffer at binding i of set 0, from push constant word i on, which
counts its elements. Names are ids, variables are registers of the function, and what `where`
guards is read from element 0 instead. Modules are for Vulkan 1.1, those with matrices for Vulkan
1.3 with its memory model. How large subgroups are is asked for where a pipeline is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    statements,
)
from smalti.codegen.gpu.instructions import DOT, NARROWING, WIDENING
from smalti.codegen.gpu.ranges import Ranges
from smalti.codegen.gpu.types import FLOATS, Matrix, VectorType, vector_type
from smalti.codegen.spirv.assembler import ModuleAssembler
from smalti.codegen.spirv.instructions import (
    CONVERSIONS,
    NEAREST,
    REDUCTIONS,
    SHUFFLES,
    SPELLINGS,
)
from smalti.codegen.spirv.memory import ElementIndex, SpirvMemory
from smalti.codegen.spirv.opcodes import BUILTINS, OPCODES, SCOPES, SEMANTICS, SIGNED_MATRICES
from smalti.errors import IllegalSchedule
from smalti.schedule.group import GroupLimits

BOOL, U32, I32 = VectorType("bool"), VectorType("u32"), VectorType("i32")
BUILTIN_OF = {"invocation": "LocalInvocationIndex", "subgroup": "SubgroupId",
              "lane": "SubgroupLocalInvocationId"}
MINOR, MINOR_OF_MATRICES = 3, 6
REDUCE = 0
PACKED_BYTES = 0  # the packed vector format of four bytes in a word
EXACT = {"FAdd", "FSub", "FMul", "FDiv", "Fma"}
"""What compilers must neither fuse nor rearrange: functions rely on how single steps round, as in
(x + 1) - 1. What is to be fused is "fma" already."""


def emit(program: GroupProgram, limits: GroupLimits) -> bytes:
    """The words of a module that runs `program` on a device of these limits.

    Raises VerificationError where the program stores 8 bits, or reads a matrix across vectors;
    raises IllegalSchedule where it needs what the device lacks.
    """
    return Emitter(program, limits).module()


class Emitter:
    """Writes one program."""

    def __init__(self, program: GroupProgram, limits: GroupLimits) -> None:
        self.program, self.limits = program, limits
        self.matrices = any(isinstance(s, MatrixStore) for s in statements(program.body))
        self.assembler = a = ModuleAssembler(MINOR_OF_MATRICES if self.matrices else MINOR)
        if self.matrices:
            a.need("VulkanMemoryModel")
        self.memory = SpirvMemory(a, program.bindings, program.shared, limits, self.matrices)
        self.ranges = Ranges(program)
        self._names: dict[str, int] = {}
        self._registers: dict[str, int] = {}
        self._builtins: dict[str, int] = {}
        self._entry = self._block = a.id()
        self._values: dict[type, Callable[[Any], int]] = {
            Number: self._number, Name: self._name, Builtin: self._builtin, Op: self._op,
            GroupLoad: self._load, MatrixLoad: self._matrix_load}
        self._statements: dict[type, Callable[[Any], None]] = {
            Let: self._let, Variable: self._variable, Set: self._set, Store: self._store,
            MatrixStore: self._matrix_store, Barrier: self._barrier, Loop: self._loop,
            Branch: self._branch}
        self._special = {
            "convert": self._convert, "vector": self._vector, "component": self._component,
            "select": self._select, DOT: self._dot, "of_column": self._of_column,
            "low_halves": self._halves, "high_halves": self._halves,
            "with_columns": self._with_lines, "with_words": self._with_lines,
            "matrix_multiply_add": self._multiply_add,
            **dict.fromkeys(WIDENING, self._widen),
            **dict.fromkeys(NARROWING, self._narrow), **dict.fromkeys(REDUCTIONS, self._reduction),
            **dict.fromkeys(SHUFFLES, self._shuffle)}

    def module(self) -> bytes:
        """The module's words."""
        self._run(self.program.body)
        self.memory.finish()
        for capability, known in (("Float16", self.limits.f16),
                                  ("BFloat16TypeKHR", self.limits.bf16),
                                  ("StorageBuffer16BitAccess", self.limits.storage16)):
            if self.assembler.needs(capability) and not known:
                raise IllegalSchedule(f"{self.program.name} needs {capability}")
        modes = []
        if self.limits.keeps_nan:
            self.assembler.need("SignedZeroInfNanPreserve")
            widths = (32, 16) if self.assembler.needs("Float16") else (32,)
            modes = [("SignedZeroInfNanPreserve", width) for width in widths]
        if self.limits.exact_f16 and self.assembler.needs("Float16"):
            for mode in ("DenormPreserve", "RoundingModeRTE"):
                self.assembler.need(mode)
                modes.append((mode, 16))
        return self.assembler.finish(self.program.size, self._entry, modes)

    def value(self, expr: Expr) -> int:
        """The id of an expression's value."""
        return self._values[expr.__class__](expr)

    def _run(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            self._statements[statement.__class__](statement)

    # ------------------------------------------------------------------ values

    def _number(self, expr: Number) -> int:
        if expr.type.scalar == "f16":
            self.assembler.need("Float16")
        return self.assembler.constant(expr.value, expr.type)

    def _name(self, expr: Name) -> int:
        register = self._registers.get(expr.name)
        if register is None:
            return self._names[expr.name]
        return self.assembler.op("Load", self.assembler.type(expr.type), register)

    def _builtin(self, expr: Builtin) -> int:
        found = self._builtins.get(expr.name)
        if found is None:
            a = self.assembler
            if expr.name.startswith("group_"):
                groups = self._input("WorkgroupId", VectorType("u32", 3))
                found = a.begin("CompositeExtract", a.u32, groups, "xyz".index(expr.name[-1]))
            else:
                if expr.name != "invocation":
                    a.need("GroupNonUniform")
                found = self._input(BUILTIN_OF[expr.name], U32)
            self._builtins[expr.name] = found
        return found

    def _input(self, name: str, type: VectorType) -> int:
        """What the device says to each invocation."""
        found = self._builtins.get(name)
        if found is None:
            a, kind = self.assembler, self.assembler.type(type)
            variable = a.variable("Input", kind)
            a.decorate(variable, "BuiltIn", BUILTINS[name])
            found = self._builtins[name] = a.begin("Load", kind, variable)
        return found

    def _op(self, expr: Op) -> int:
        special = self._special.get(expr.instruction)
        if special is not None:
            return special(expr)
        arguments = [self.value(argument) for argument in expr.arguments]
        spelling = SPELLINGS[expr.instruction][expr.arguments[-1].type.scalar]
        result = self.assembler.op(spelling, self.assembler.type(expr.type), *arguments)
        if spelling in EXACT:
            self.assembler.decorate(result, "NoContraction")
        return result

    def _select(self, expr: Op) -> int:
        a = self.assembler
        condition, yes, no = (self.value(argument) for argument in expr.arguments)
        if expr.arguments[0].type == BOOL:
            condition = self._wide(condition, vector_type(expr.type))
        return a.op("Select", a.type(expr.type), condition, yes, no)

    def _wide(self, condition: int, type: VectorType) -> int:
        """A condition for each lane of a type."""
        a = self.assembler
        return condition if type.lanes == 1 else a.op(
            "CompositeConstruct", a.type(VectorType("bool", type.lanes)), *[condition] * type.lanes)

    def _halves(self, expr: Op) -> int:
        """Halves of two words in one, by an instruction that most devices have."""
        a, kind, half = self.assembler, self.assembler.type(expr.type), self.assembler.number(16)
        one, other = (self.value(argument) for argument in expr.arguments)
        if expr.instruction == "low_halves":
            return a.op("BitFieldInsert", kind, one, other, half, half)
        lanes = a.constant(16, vector_type(expr.type))
        upper = a.op("ShiftRightLogical", kind, one, lanes)
        return a.op("BitFieldInsert", kind, other, upper, a.number(0), half)

    def _convert(self, expr: Op) -> int:
        a, (argument,) = self.assembler, expr.arguments
        value, given, wanted = self.value(argument), argument.type, expr.type
        if given.scalar == wanted.scalar:
            return value
        kind = a.type(wanted)
        if wanted.scalar == "f16":
            a.need("Float16")
        if given.scalar == "bool":
            return a.op("Select", kind, value, a.constant(1, wanted), a.constant(0, wanted))
        if wanted.scalar == "bool":
            unequal = "FUnordNotEqual" if given.scalar in FLOATS else "INotEqual"
            return a.op(unequal, kind, value, a.constant(0, given))
        near = NEAREST.get((given.scalar, wanted.scalar))
        if near is not None:
            value = a.op("FClamp", a.type(given), value, *(a.constant(end, given) for end in near))
        return a.op(CONVERSIONS[given.scalar, wanted.scalar], kind, value)

    def _widen(self, expr: Op) -> int:
        if self.limits.f16 and expr.instruction == "widen_f16":
            self.assembler.need("Float16")
        return self.memory.widened(self.value(expr.arguments[0]), WIDENING[expr.instruction],
                                   vector_type(expr.type))

    def _narrow(self, expr: Op) -> int:
        if self.limits.f16 and expr.instruction == "narrow_f16":
            self.assembler.need("Float16")
        return self.memory.narrowed(self.value(expr.arguments[0]), NARROWING[expr.instruction],
                                    vector_type(expr.type))

    def _vector(self, expr: Op) -> int:
        a = self.assembler
        return a.op("CompositeConstruct", a.type(expr.type), *map(self.value, expr.arguments))

    def _component(self, expr: Op) -> int:
        a, (vector, lane) = self.assembler, expr.arguments
        return a.op("CompositeExtract", a.type(expr.type), self.value(vector), constant(lane))

    def _dot(self, expr: Op) -> int:
        """Dot products of bytes in words: an instruction for each lane, or plain arithmetic."""
        a, own = self.assembler, vector_type(expr.type)
        words = [self.value(argument) for argument in expr.arguments]
        product = self._dot_of_words if self.limits.dot_i8 else self._dot_of_bytes
        if own.lanes == 1:
            return product(*words)
        parts = [product(*(a.op("CompositeExtract", a.u32, each, lane) for each in words))
                 for lane in range(own.lanes)]
        return a.op("CompositeConstruct", a.type(own), *parts)

    def _dot_of_words(self, left: int, right: int) -> int:
        a = self.assembler
        a.need("DotProduct")
        a.need("DotProductInput4x8BitPacked")
        return a.op("SDot", a.type(I32), left, right, PACKED_BYTES)

    def _dot_of_bytes(self, left: int, right: int) -> int:
        """The same where the device has no instruction for it, or a wrong one."""
        a, kind, total = self.assembler, self.assembler.type(I32), 0
        left, right = (a.op("Bitcast", kind, each) for each in (left, right))
        for shift in range(0, 32, 8):
            product = a.op("IMul", kind, *(
                a.op("BitFieldSExtract", kind, each, a.number(shift), a.number(8))
                for each in (left, right)))
            total = a.op("IAdd", kind, total, product) if total else product
        return total

    def _multiply_add(self, expr: Op) -> int:
        """The matrix unit is told that bytes and their sums have a sign."""
        signed = (SIGNED_MATRICES,) if expr.type.scalar == "i32" else ()
        return self.assembler.op("CooperativeMatrixMulAddKHR", self.assembler.type(expr.type),
                                 *map(self.value, expr.arguments), *signed)

    def _of_column(self, expr: Op) -> int:
        """Elements of a matrix that an invocation holds are numbered along its line."""
        self._known(expr)
        a, (matrix, place) = self.assembler, expr.arguments
        return a.op("CompositeExtract", a.type(expr.type), self.value(matrix), constant(place))

    def _with_lines(self, expr: Op) -> int:
        """A matrix of what invocations give, of which halves follow each other in their words."""
        self._known(expr)
        a, (matrix, *given), place = self.assembler, expr.arguments, 0
        found, kind, own = self.value(matrix), a.type(expr.type), VectorType(expr.type.scalar)
        if own.scalar == "f16":
            a.need("Float16")
        for each in given:
            value, type = self.value(each), vector_type(each.type)
            for lane in range(type.lanes):
                part = value if type.lanes == 1 else a.op(
                    "CompositeExtract", a.type(VectorType(type.scalar)), value, lane)
                parts = [part]
                if type.scalar != own.scalar:
                    pair = a.op("Bitcast", a.type(VectorType(own.scalar, 2)), part)
                    parts = [a.op("CompositeExtract", a.type(own), pair, n) for n in range(2)]
                for element in parts:
                    found = a.op("CompositeInsert", kind, element, found, place)
                    place += 1
        return found

    def _known(self, expr: Op) -> None:
        """Raise IllegalSchedule where the device does not say who holds a matrix so."""
        type, limits = expr.arguments[0].type, self.limits
        assert isinstance(type, Matrix), expr
        if expr.instruction == "with_words":
            known = limits.left_words and type.role == "a"
        else:
            known = {"sum": limits.sum_lines, "b": limits.right_lines}.get(type.role) == "columns"
        if not known:
            raise IllegalSchedule(f"{self.program.name}: nobody knows whether invocations hold "
                                  f"{type} as {expr.instruction} wants it")

    def _reduction(self, expr: Op) -> int:
        a, own = self.assembler, vector_type(expr.type)
        type = self._exchanged(own)
        value = self._converted(self.value(expr.arguments[0]), own, type)
        a.need("GroupNonUniform")
        a.need("GroupNonUniformArithmetic")
        value = a.op(REDUCTIONS[expr.instruction][type.scalar], a.type(type),
                     a.number(SCOPES["Subgroup"]), REDUCE, value)
        return self._converted(value, type, own)

    def _shuffle(self, expr: Op) -> int:
        a, own = self.assembler, vector_type(expr.type)
        type = self._exchanged(own)
        value, lane = (self.value(argument) for argument in expr.arguments)
        a.need("GroupNonUniform")
        a.need("GroupNonUniformShuffle")
        value = a.op(SHUFFLES[expr.instruction], a.type(type), a.number(SCOPES["Subgroup"]),
                     self._converted(value, own, type), lane)
        return self._converted(value, type, own)

    def _exchanged(self, type: VectorType) -> VectorType:
        """What subgroups exchange for values of a type: few devices know halves there."""
        return VectorType("f32", type.lanes) if type.scalar == "f16" else type

    def _converted(self, value: int, given: VectorType, wanted: VectorType) -> int:
        return value if given == wanted else self.assembler.op(
            CONVERSIONS[given.scalar, wanted.scalar], self.assembler.type(wanted), value)

    # ------------------------------------------------------------------ memory

    def _index(self, expr: Expr) -> ElementIndex:
        rest, more = self.ranges.apart(expr)

        def vectors(lanes: int) -> tuple[list[int], int]:
            terms, behind = self.ranges.vectors(expr, lanes)
            return [self.value(term) for term in terms], behind

        def parted(lanes: int) -> tuple[int | None, list[int], int]:
            other, whole, behind = self.ranges.parted(expr, lanes)
            first = None if other is None else self.value(other)
            return first, [self.value(term) for term in whole], behind

        return ElementIndex(lambda: self.value(rest if more else expr), more, vectors, parted)

    def _load(self, expr: GroupLoad) -> int:
        a, type, index = self.assembler, expr.type, self._index(expr.index)
        if type.scalar == "f16":
            a.need("Float16")
        if expr.where is None:
            return self.memory.load(expr.buffer, index, type)
        where, inside = self.value(expr.where), index

        def masked(place: int) -> int:
            return a.op("Select", a.u32, where, place, a.number(0))

        def vectors(lanes: int) -> tuple[list[int], int]:
            terms, more = inside.vectors(lanes)
            return ([masked(self.memory.sum(terms, more))] if terms else []), 0

        def parted(lanes: int) -> tuple[int | None, list[int], int]:
            return masked(self.memory.whole(inside)), [], 0

        index = ElementIndex(lambda: masked(self.memory.whole(inside)), 0, vectors, parted)
        value = self.memory.load(expr.buffer, index, type)
        found = a.op("Select", a.type(type), self._wide(where, type), value, a.constant(0, type))
        if value in self.memory.halves:
            self.memory.halves.add(found)
        return found

    def _store(self, statement: Store) -> None:
        """All compute what is stored, as all take part in operations of subgroups."""
        stores = self.memory.stores(statement.buffer, self._index(statement.index),
                                    self.value(statement.value),
                                    vector_type(statement.value.type))

        def write() -> None:
            for pointer, value in stores:
                self.assembler.do("Store", pointer, value, *self.memory.operands(statement.buffer))

        if statement.where is None:
            write()
        else:
            self._either(self.value(statement.where), write)

    def _matrix_load(self, expr: MatrixLoad) -> int:
        a = self.assembler
        if self._held_by_lines(expr):
            return self._line_load(expr)
        pointer, stride = self.memory.matrix(expr.buffer, self._index(expr.index), expr.stride)
        return a.op("CooperativeMatrixLoadKHR", a.type(expr.type), pointer,
                    a.number(expr.by_columns), a.number(stride),
                    *self.memory.operands(expr.buffer))

    def _held_by_lines(self, expr: MatrixLoad) -> bool:
        """Whether each invocation is known to hold a line of a matrix as it lies in memory, of
        which it can read several elements at once."""
        held, type, lanes = self.limits.right_lines, expr.type, self.memory.lanes(expr.buffer)
        lines, each = (type.columns, type.rows) if expr.by_columns else (type.rows, type.columns)
        return (type.role == "b" and held == ("columns" if expr.by_columns else "rows")
                and type.scalar == "f16" and self.program.subgroup == lines and lanes > 1
                and expr.stride % lanes == each % (lanes * self._in_an_element(expr)) == 0)

    def _in_an_element(self, expr: MatrixLoad) -> int:
        """Elements of a matrix in one of its buffer: two halves in a word."""
        return 2 if self.memory.dtype(expr.buffer) == "u32" else 1

    def _line_load(self, expr: MatrixLoad) -> int:
        """A matrix whose invocations each read the line that they hold, as vectors.

        The driver's own loads are of words, each with an address that Intel's compiler works out
        by an addition, as it may merge them only where it has proven that no address wraps.
        """
        a, lanes, halves = self.assembler, self.memory.lanes(expr.buffer), self._in_an_element(expr)
        line, each = Builtin("lane") * expr.stride + expr.index, lanes * halves
        length = expr.type.rows if expr.by_columns else expr.type.columns
        scalar, kind = VectorType(expr.type.scalar), a.type(expr.type)
        found = a.constant(0.0, expr.type)
        for first in range(0, length, each):
            type = VectorType("u32" if halves == 2 else scalar.scalar, lanes)
            loaded = self.value(GroupLoad(expr.buffer, line + first // halves, type))
            for place in range(each):
                part = a.op("CompositeExtract", a.type(VectorType(type.scalar)), loaded,
                            place // halves)
                if halves == 2:
                    pair = a.op("Bitcast", a.type(VectorType(scalar.scalar, 2)), part)
                    part = a.op("CompositeExtract", a.type(scalar), pair, place % 2)
                found = a.op("CompositeInsert", kind, part, found, first + place)
        return found

    def _matrix_store(self, statement: MatrixStore) -> None:
        a, value = self.assembler, self.value(statement.value)
        pointer, stride = self.memory.matrix(statement.buffer, self._index(statement.index),
                                             statement.stride)
        a.do("CooperativeMatrixStoreKHR", pointer, value, a.number(statement.by_columns),
             a.number(stride), *self.memory.operands(statement.buffer))

    # ------------------------------------------------------------------ statements

    def _let(self, statement: Let) -> None:
        self._names[statement.name] = self.value(statement.value)

    def _variable(self, statement: Variable) -> None:
        a, value = self.assembler, self.value(statement.value)
        register = a.variable("Function", a.type(statement.value.type))
        self._registers[statement.name] = register
        a.do("Store", register, value)

    def _set(self, statement: Set) -> None:
        self.assembler.do("Store", self._registers[statement.name], self.value(statement.value))

    def _barrier(self, barrier: Barrier) -> None:
        """Memory of the device takes part only where a binding is written and read: to wait for
        loads that are on their way would undo reading ahead."""
        a, seen = self.assembler, ["AcquireRelease", "WorkgroupMemory"]
        if any(binding.access == "read_write" for binding in self.program.bindings):
            seen.append("UniformMemory")
        if self.matrices:
            seen += ["MakeAvailable", "MakeVisible"]
        scope = a.number(SCOPES["Subgroup" if barrier.subgroup else "Workgroup"])
        a.do("ControlBarrier", scope, scope, a.number(sum(SEMANTICS[name] for name in seen)))

    def _loop(self, statement: Loop) -> None:
        """A loop that asks behind each turn whether there is another, and before the first where
        that is not known: what all turns have in common is taken out of such loops only. But what
        they carry has two registers then, so where these are few, a loop whose end is not known
        asks before each turn."""
        a = self.assembler
        start, stop = self.value(statement.start), self.value(statement.stop)
        if isinstance(statement.start, Number) and isinstance(statement.stop, Number) \
                and statement.start.value < statement.stop.value:
            self._turns(statement, start, stop)
        elif self.limits.few_registers:
            self._turns(statement, start, stop, before=True)
        else:
            self._either(a.op("ULessThan", a.type(BOOL), start, stop),
                         lambda: self._turns(statement, start, stop))

    def _turns(self, statement: Loop, start: int, stop: int, before: bool = False) -> None:
        """The turns of a loop, with the question `before` each or behind it."""
        a = self.assembler
        header, body, again, end, counter, following = (a.id() for _ in range(6))
        entry = self._block
        a.do("Branch", header)
        self._begin(header)
        a.code += (7 << 16 | OPCODES["Phi"][0], a.u32, counter, start, entry, following, again)
        inside = a.op("ULessThan", a.type(BOOL), counter, stop) if before else 0
        a.do("LoopMerge", end, again, 0)
        self._jump(inside, body, end)
        self._begin(body)
        self._names[statement.counter] = counter
        self._run(statement.body)
        a.do("Branch", again)
        self._begin(again)
        a.code += (5 << 16 | OPCODES["IAdd"][0], a.u32, following, counter,
                   a.number(statement.step))
        self._jump(0 if before else a.op("ULessThan", a.type(BOOL), following, stop), header, end)
        self._begin(end)

    def _jump(self, condition: int, there: int, otherwise: int) -> None:
        """Go `there` if a condition holds, 0 for always."""
        if condition:
            self.assembler.do("BranchConditional", condition, there, otherwise)
        else:
            self.assembler.do("Branch", there)

    def _branch(self, statement: Branch) -> None:
        otherwise = statement.otherwise
        self._either(self.value(statement.condition), lambda: self._run(statement.then),
                     (lambda: self._run(otherwise)) if otherwise else None)

    def _either(self, condition: int, then: Callable[[], None],
                otherwise: Callable[[], None] | None = None) -> None:
        """Do one thing where a condition holds, and perhaps another where it does not."""
        a = self.assembler
        yes, end = a.id(), a.id()
        no = end if otherwise is None else a.id()
        a.do("SelectionMerge", end, 0)
        a.do("BranchConditional", condition, yes, no)
        self._begin(yes)
        then()
        a.do("Branch", end)
        if otherwise is not None:
            self._begin(no)
            otherwise()
            a.do("Branch", end)
        self._begin(end)

    def _begin(self, label: int) -> None:
        """Begin a block."""
        self.assembler.do("Label", label)
        self._block = label
