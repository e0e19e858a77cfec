"""Group programs as WGSL.

Bindings are storage buffers of group 0, in the order of the program. Each begins, in elements, at a
word of the struct `offsets`: an immediate, or where the device has none, a uniform buffer that
comes after the bindings. Behind these words there is a 0, and the number of the first work-group
along x, y and z: WebGPU launches only from 0 on, and long launches are cut into several.
"""

from __future__ import annotations

from smalti.codegen.gpu.form import (
    Barrier,
    Branch,
    Builtin,
    Expr,
    GroupLoad,
    GroupProgram,
    Let,
    Loop,
    MatrixStore,
    Name,
    Number,
    Op,
    Set,
    Statement,
    Store,
    Variable,
    expressions,
    statements,
)
from smalti.codegen.gpu.instructions import DOT, SUBGROUP
from smalti.codegen.gpu.types import Matrix, vector_type
from smalti.codegen.wgsl.instructions import (
    DOT_OF_BYTES,
    constant,
    instruction,
    is_constant,
    type_name,
)
from smalti.codegen.wgsl.memory import WgslArray, access_functions, memories
from smalti.errors import IllegalSchedule
from smalti.schedule.group import GroupLimits

ENTRY = "main"
OWN_WORDS = 4
"""Of the offsets, behind those of the bindings."""
BUILTINS = {
    "group_x": "(group.x + offsets.x)", "group_y": "(group.y + offsets.y)",
    "group_z": "(group.z + offsets.z)", "invocation": "invocation", "subgroup": "subgroup",
    "lane": "lane",
}
PARAMETERS = {
    "group": "@builtin(workgroup_id) group: vec3<u32>",
    "invocation": "@builtin(local_invocation_index) invocation: u32",
    "subgroup": "@builtin(subgroup_id) subgroup: u32",
    "lane": "@builtin(subgroup_invocation_id) lane: u32",
}


def emit(program: GroupProgram, limits: GroupLimits, *, immediates: bool = True) -> str:
    """`program` as WGSL for a device of these limits, that has `immediates` or none; its entry
    point is `ENTRY`.

    Raises IllegalSchedule where the program asks for what WGSL, or the device, does not have.

    >>> from smalti.codegen.gpu.builder import Builder
    >>> b = Builder("double", 64)
    >>> x = b.binding("x", "f32", 64, "read_write")
    >>> b.store(x, b.invocation, 2.0 * b.load(x, b.invocation))
    >>> print(emit(b.finish((1, 1, 1)), GroupLimits()).rpartition("@compute")[2].strip())
    @workgroup_size(64)
    fn main(@builtin(local_invocation_index) invocation: u32) {
        write_b0_f32x1(invocation, (2.0f * read_b0_f32x1(invocation)));
    }
    """
    parts, steps = list(expressions(program.body)), list(statements(program.body))
    _check(program, limits, parts, steps)
    found = memories([(f"b{n}", b) for n, b in enumerate(program.bindings)] +
                     [(f"s{n}", s) for n, s in enumerate(program.shared)], parts, steps,
                     limits.f16)
    fields = "".join(f"b{n}: u32, " for n in range(len(program.bindings)))
    place = "var<immediate>" if immediates else (
        f"@group(0) @binding({len(program.bindings)}) var<uniform>")
    uses = {part.type.scalar for part in parts} | {memory.scalar for memory in found.values()}
    head = [*(["enable f16;"] if "f16" in uses else []),
            f"struct Offsets {{ {fields}zero: u32, x: u32, y: u32, z: u32 }}",
            f"{place} offsets: Offsets;",
            *[memory.declaration(n) for n, memory in enumerate(found.values())], ""]
    dot = "dot4I8Packed" if limits.dot_i8 else "dot_i8"
    if not limits.dot_i8 and any(isinstance(p, Op) and p.instruction == DOT for p in parts):
        head.append(DOT_OF_BYTES)
    function = _Function(found, any(b.access == "read_write" for b in program.bindings), dot)
    function.block(program.body)
    used = {part.name.partition("_")[0] for part in parts if isinstance(part, Builtin)}
    parameters = ", ".join(text for name, text in PARAMETERS.items() if name in used)
    return "\n".join([*head, *access_functions(found, parts, steps),
                      "@compute", f"@workgroup_size({program.size})",
                      f"fn {ENTRY}({parameters}) {{", *function.lines, "}", ""])


def _check(program: GroupProgram, limits: GroupLimits, parts: list[Expr],
           steps: list[Statement]) -> None:
    if any(isinstance(part.type, Matrix) for part in parts) or any(
            isinstance(step, MatrixStore) for step in steps):
        raise IllegalSchedule(f"{program.name}: WGSL reaches no matrix units")
    if not limits.f16 and any(part.type.scalar == "f16" for part in parts):
        raise IllegalSchedule(f"{program.name}: the device does not compute with f16")
    subgroups = any(isinstance(part, Op) and part.instruction in SUBGROUP or
                    isinstance(part, Builtin) and part.name in ("subgroup", "lane")
                    for part in parts)
    if subgroups and not limits.subgroup_operations:
        raise IllegalSchedule(f"{program.name}: the device has no subgroup operations")
    if program.subgroup and not limits.subgroup_min == limits.subgroup_max == program.subgroup:
        raise IllegalSchedule(f"{program.name} is written for subgroups of {program.subgroup}; the "
                              f"device runs {limits.subgroup_min} to {limits.subgroup_max}")


class _Function:
    """Statements of a program as lines of WGSL."""

    def __init__(self, found: dict[str, WgslArray], memory_is_shared: bool, dot: str) -> None:
        self.lines: list[str] = []
        self.dot = dot
        self.memory, self.memory_is_shared = found, memory_is_shared
        self._depth = self._made = 0

    def block(self, body: tuple[Statement, ...]) -> None:
        """Every statement of a block."""
        self._depth += 1
        for statement in body:
            self._statement(statement)
        self._depth -= 1

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Let(name, value):
                self._line(f"let {_name(name)} = {self._text(value)};")
            case Variable(name, value):
                kind = type_name(vector_type(value.type))
                self._line(f"var {_name(name)}: {kind} = {self._text(value)};")
            case Set(name, value):
                self._line(f"{_name(name)} = {self._text(value)};")
            case Store():
                self._store(statement)
            case Barrier():  # there is none of subgroups: all of the group reach those, too
                self._line("workgroupBarrier();")
                if self.memory_is_shared:  # what is only read is written by nobody
                    self._line("storageBarrier();")
            case Loop():
                self._loop(statement)
            case Branch(condition, then, otherwise):
                self._line(f"if {self._text(condition)} {{")
                self.block(then)
                if otherwise:
                    self._line("} else {")
                    self.block(otherwise)
                self._line("}")

    def _store(self, store: Store) -> None:
        """The value comes before the branch, as all invocations take part in subgroups."""
        writer = self.memory[store.buffer].writer(vector_type(store.value.type))
        value, index = self._text(store.value), self._text(store.index)
        if store.where is None:
            self._line(f"{writer}({index}, {value});")
            return
        made = self._temporary(value)
        self._line(f"if {self._text(store.where)} {{ {writer}({index}, {made}); }}")

    def _loop(self, loop: Loop) -> None:
        counter, start, stop = _name(loop.counter), self._text(loop.start), self._text(loop.stop)
        if not isinstance(loop.stop, Number):
            stop = self._temporary(stop)
        self._line(f"for (var {counter} = {start}; {counter} < {stop}; "
                   f"{counter} += {loop.step}u) {{")
        self.block(loop.body)
        self._line("}")

    def _temporary(self, value: str) -> str:
        self._made += 1
        self._line(f"let x{self._made} = {value};")
        return f"x{self._made}"

    def _line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    def _text(self, expr: Expr, hidden: bool = False) -> str:
        """An expression. Constants in it are `hidden` behind names where WGSL's compiler would
        compute with them."""
        match expr:
            case Number(value, type):
                text = constant(value, vector_type(type))
                return self._temporary(text) if hidden else text
            case Name(name):
                return _name(name)
            case Builtin(name):
                return BUILTINS[name]
            case GroupLoad():
                reader = self.memory[expr.buffer].reader(expr.type, expr.where is not None)
                parts = [expr.index, *([] if expr.where is None else [expr.where])]
                return f"{reader}({', '.join(map(self._text, parts))})"
            case Op():
                hidden = hidden or expr.instruction != "vector" and is_constant(expr)
                numbers = expr.instruction == "component"  # the number of a lane stays one
                return instruction(expr, [
                    self._text(a, hidden and not (numbers and n == 1))
                    for n, a in enumerate(expr.arguments)], self.dot)
        raise AssertionError(expr)


def _name(name: str) -> str:
    """A name that is no word of WGSL's, and none that is made here."""
    return f"{name}_"
