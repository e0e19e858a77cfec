"""Group programs as text.

    program double of 4 x 1 x 1 groups of 64 {
      read x: f32[250]
      write y: f32[250]
      let t1 = group_x * 64 + invocation
      y[t1] = 2.0 * x[t1 where t1 < 250] where t1 < 250
    }

Numbers: `64` is u32, `-3i` i32, `2.0` f32, `2.0h` f16; `f32x4(0.0)` has the same in all lanes. A
type converts (`f16(t1)`, `bits_u32(t1)` keeps the bits). `x[i as f32x4]` reads 4 elements; without
a type one, of halves as f32 and of 8 bits as i32. `x[i rows 64 as a:f16[16, 8]]` is a matrix whose
rows (or `columns`) lie 64 elements apart.
"""

from __future__ import annotations

import json
import re

from smalti.target.gpu.form import (
    Barrier, Binding, Branch, Builtin, Expr, GroupProgram, Let, Load, Loop, MatrixLoad,
    MatrixStore, Name, Number, Op, Set, Shared, Statement, Store, Variable,
)
from smalti.target.gpu.types import Matrix, Type

INFIX = {
    "mul": ("*", 7), "div": ("/", 7), "rem": ("%", 7), "add": ("+", 6), "sub": ("-", 6),
    "shift_left": ("<<", 5), "shift_right": (">>", 5), "and": ("&", 4), "xor": ("^", 3),
    "or": ("|", 2), "equal": ("==", 1), "not_equal": ("!=", 1), "less": ("<", 1),
    "less_equal": ("<=", 1), "greater": (">", 1), "greater_equal": (">=", 1),
}
"""Instructions that are written between their two operands, and how tightly they bind."""
READ_AS = {"f16": "f32", "bf16": "f32", "i8": "i32", "u8": "i32"}
"""What a load without a type gives, where that is not the stored dtype."""
NAME = re.compile(r"[A-Za-z_]\w*$")


# ---------------------------------------------------------------------- showing


def show(program: GroupProgram) -> str:
    """`program` as text; equal programs give equal texts."""
    name = program.name if NAME.match(program.name) else json.dumps(program.name)
    subgroups = f" in subgroups of {program.subgroup}" if program.subgroup else ""
    grid = " x ".join(map(str, program.groups))
    lines = [f"program {name} of {grid} groups of {program.size}{subgroups} {{"]
    lines.extend(f"  {_buffer(b)}" for b in (*program.bindings, *program.shared))
    writer = _Writer(program)
    for statement in program.body:
        lines.extend(writer.lines(statement, "  "))
    return "\n".join([*lines, "}"]) + "\n"


def show_statement(program: GroupProgram, statement: Statement) -> str:
    """The first line of a statement as it stands in the text of its program."""
    return _Writer(program).lines(statement, "")[0]


def _buffer(buffer: Binding | Shared) -> str:
    role = buffer.access if isinstance(buffer, Binding) else "shared"
    lanes = f" by {buffer.lanes}" if buffer.lanes > 1 else ""
    return f"{role} {buffer.name}: {buffer.dtype}[{buffer.elements}]{lanes}"


class _Writer:
    """Writes statements and expressions; it knows what buffers store."""

    def __init__(self, program: GroupProgram) -> None:
        self.stored = {b.name: b.dtype for b in (*program.bindings, *program.shared)}

    def lines(self, statement: Statement, indent: str) -> list[str]:
        """A statement, and the blocks inside it two columns further in."""
        match statement:
            case Loop():
                step = f" step {statement.step}" if statement.step != 1 else ""
                head = (f"for {statement.counter} from {self.expr(statement.start)} below "
                        f"{self.expr(statement.stop)}{step} {{")
                return [indent + head, *self.block(statement.body, indent), indent + "}"]
            case Branch():
                found = [f"{indent}if {self.expr(statement.condition)} {{",
                         *self.block(statement.then, indent)]
                if statement.otherwise:
                    found += [indent + "} else {", *self.block(statement.otherwise, indent)]
                return [*found, indent + "}"]
        return [indent + self.simple(statement)]

    def block(self, body: tuple[Statement, ...], indent: str) -> list[str]:
        """The statements of a block."""
        return [line for statement in body for line in self.lines(statement, indent + "  ")]

    def simple(self, statement: Statement) -> str:
        """A statement that has no block."""
        match statement:
            case Let(name, value):
                return f"let {name} = {self.expr(value)}"
            case Variable(name, value):
                return f"var {name} = {self.expr(value)}"
            case Set(name, value):
                return f"{name} = {self.expr(value)}"
            case Store(buffer, index, value, where):
                text = f"{buffer}[{self.expr(index)}] = {self.expr(value)}"
                return text if where is None else f"{text} where {self.expr(where)}"
            case MatrixStore():
                return f"{self.matrix_at(statement)}] = {self.expr(statement.value)}"
        assert isinstance(statement, Barrier), statement
        return "barrier"

    def matrix_at(self, access: MatrixLoad | MatrixStore) -> str:
        """Where a matrix lies, without the closing bracket."""
        lies = "columns" if access.by_columns else "rows"
        return f"{access.buffer}[{self.expr(access.index)} {lies} {access.stride}"

    def expr(self, expr: Expr, binding: int = 0) -> str:
        """An expression, in parentheses if it binds less tightly than `binding`."""
        match expr:
            case Number():
                return _number(expr)
            case Name() | Builtin():
                return expr.name
            case Load():
                return self.load(expr)
            case MatrixLoad():
                return f"{self.matrix_at(expr)} as {expr.type}]"
        if expr.instruction in INFIX:
            sign, own = INFIX[expr.instruction]
            left, right = expr.arguments
            text = f"{self.expr(left, own)} {sign} {self.expr(right, own + 1)}"
            return f"({text})" if own < binding else text
        if expr.instruction == "neg":
            (inner,) = expr.arguments
            return f"-({self.expr(inner)})" if isinstance(inner, Number | Op) else (
                f"-{self.expr(inner)}")
        function = {"convert": str(expr.type), "bits": f"bits_{expr.type}"}.get(
            expr.instruction, expr.instruction)
        return f"{function}({', '.join(map(self.expr, expr.arguments))})"

    def load(self, load: Load) -> str:
        """A load; its type only where it is not the usual one."""
        stored = self.stored.get(load.buffer, "")
        usual = load.type == Type(READ_AS.get(stored, stored))
        type_ = "" if usual else f" as {load.type}"
        where = "" if load.where is None else f" where {self.expr(load.where)}"
        return f"{load.buffer}[{self.expr(load.index)}{type_}{where}]"


def _number(number: Number) -> str:
    """The shortest text that reads back as the same number of the same type."""
    scalar, value = number.type.scalar, number.value
    if scalar == "bool":
        text = "true" if value else "false"
    elif scalar in ("u32", "i32"):
        text = f"{int(value)}{'i' if scalar == 'i32' else ''}"
    else:
        text = f"{float(value)!r}{'h' if scalar == 'f16' else ''}"
    if isinstance(number.type, Matrix) or number.type.lanes > 1:
        plain = text.removesuffix("h") if isinstance(number.type, Matrix) else text
        return f"{number.type}({plain})"
    return text
