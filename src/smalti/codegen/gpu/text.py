"""Group programs as text that parses back.

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
from collections.abc import Callable
from typing import NoReturn

from smalti.codegen.gpu.form import (
    BUILTINS,
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
)
from smalti.codegen.gpu.instructions import INSTRUCTIONS, result_type
from smalti.codegen.gpu.types import SCALARS, Matrix, VectorType
from smalti.errors import InputError

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
TYPES = {str(type): type for type in (
    VectorType(scalar, lanes) for scalar in SCALARS for lanes in (1, 2, 4))}
WORDS = {"true": True, "false": False, "inf": float("inf"), "nan": float("nan"),
         "infh": float("inf"), "nanh": float("nan")}
"""Numbers that are written as words."""
RESERVED = {"let", "var", "barrier", "subgroup_barrier", "for", "from", "below", "step", "if",
            "else", "where", "as", "rows", "columns", "read", "write", "read_write", "shared",
            *BUILTINS, *WORDS, *TYPES}
"""Words that name no value and no buffer."""


# ---------------------------------------------------------------------- showing


def show(program: GroupProgram) -> str:
    """`program` as text; equal programs give equal texts."""
    name = program.name if NAME.match(program.name) else json.dumps(program.name)
    subgroups = f" in subgroups of {program.subgroup}" if program.subgroup else ""
    grid = " x ".join(map(str, program.groups))
    lines = [f"program {name} of {grid} groups of {program.size}{subgroups} {{"]
    lines.extend(f"  {_buffer(b)}" for b in program.buffers)
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
        self.stored = {b.name: b.dtype for b in program.buffers}

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
        return "subgroup_barrier" if statement.subgroup else "barrier"

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
            case GroupLoad():
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

    def load(self, load: GroupLoad) -> str:
        """A load; its type only where it is not the usual one."""
        stored = self.stored.get(load.buffer, "")
        usual = load.type == VectorType(READ_AS.get(stored, stored))
        type_ = "" if usual else f" as {load.type}"
        where = "" if load.where is None else f" where {self.expr(load.where)}"
        return f"{load.buffer}[{self.expr(load.index)}{type_}{where}]"


def _number(number: Number) -> str:
    """The shortest text that reads back as the same number of the same type."""
    scalar, value = number.type.scalar, number.value
    if scalar == "bool":
        text = "true" if value else "false"
    elif scalar in ("u32", "i32", "i8"):
        text = f"{int(value)}{'' if scalar == 'u32' else 'i'}"
    else:
        text = f"{float(value)!r}{'h' if scalar == 'f16' else ''}"
    if isinstance(number.type, Matrix) or number.type.lanes > 1:
        plain = text.removesuffix("h") if isinstance(number.type, Matrix) else text
        return f"{number.type}({plain})"
    return text


# ---------------------------------------------------------------------- parsing

TOKEN = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|\d+(?:\.\d+)?(?:e[+-]?\d+)?[hi]?|[A-Za-z_]\w*|"""
                   r"""<<|>>|<=|>=|==|!=|[-+*/%&^|<>=()\[\]{},:])""")
SIGNS = {sign: (instruction, binding) for instruction, (sign, binding) in INFIX.items()}
Scope = dict[str, VectorType | Matrix]


def parse(text: str) -> GroupProgram:
    """The program that `show` printed. Raises InputError saying where the text does not parse."""
    return _Parser(text).program()


class _Parser:
    """Recursive descent over the tokens; each method reads what its name says."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self.tokens: list[str] = []
        self.ends: list[int] = []
        self.stored: dict[str, str] = {}
        at, end = 0, len(text.rstrip())
        while at < end:
            found = TOKEN.match(text, at)
            if not found:
                self._fail(len(text) - len(text[at:].lstrip()), "this is no part of the notation")
            self.tokens.append(found[1])
            at = found.end()
            self.ends.append(at)

    def _fail(self, at: int, why: str) -> NoReturn:
        line = self.text.count("\n", 0, at)
        shown = self.text.split("\n")[line].strip()
        raise InputError(f"program text, line {line + 1}: {shown!r}: {why}")

    def fail(self, expected: str) -> NoReturn:
        """Raise an error at the next token."""
        at = min(self.position, len(self.tokens) - 1)
        self._fail(self.ends[at] - 1 if self.tokens else 0,
                   f"expected {expected}, found {self.peek() or 'the end'!r}")

    def peek(self, ahead: int = 0) -> str:
        at = self.position + ahead
        return self.tokens[at] if at < len(self.tokens) else ""

    def take(self, token: str) -> bool:
        """Whether the next token is this one; it is then read."""
        found = self.peek() == token
        self.position += found
        return found

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if not self.take(token):
                self.fail(repr(token))

    def name(self) -> str:
        if not NAME.match(self.peek()):
            self.fail("a name")
        self.position += 1
        return self.peek(-1)

    def whole(self) -> int:
        if not self.peek().isdigit():
            self.fail("a whole number")
        self.position += 1
        return int(self.peek(-1))

    # ------------------------------------------------------------------ programs and statements

    def program(self) -> GroupProgram:
        self.expect("program")
        if self.peek().startswith('"'):
            self.position += 1
            name = json.loads(self.peek(-1))
        else:
            name = self.name()
        self.expect("of")
        x, y, z = self.whole(), self.extent(), self.extent()
        self.expect("groups", "of")
        size, subgroup = self.whole(), 0
        if self.take("in"):
            self.expect("subgroups", "of")
            subgroup = self.whole()
        self.expect("{")
        buffers: list[Binding | Shared] = []
        while self.peek() in ("read", "write", "read_write", "shared"):
            buffers.append(self.buffer())
        bindings = tuple(b for b in buffers if isinstance(b, Binding))
        shared = tuple(b for b in buffers if isinstance(b, Shared))
        body = self.block({})
        if self.position < len(self.tokens):
            self.fail("the end")
        return GroupProgram(name, (x, y, z), size, bindings, shared, body, subgroup)

    def extent(self) -> int:
        self.expect("x")
        return self.whole()

    def buffer(self) -> Binding | Shared:
        role, name = self.name(), self.name()
        self.expect(":")
        dtype = self.name()
        self.expect("[")
        elements = self.whole()
        self.expect("]")
        lanes = self.whole() if self.take("by") else 1
        self.stored[name] = dtype
        if role == "shared":
            return Shared(name, dtype, elements, lanes)
        return Binding(name, dtype, elements, role, lanes)

    def block(self, outer: Scope) -> tuple[Statement, ...]:
        """Statements up to the closing brace, which is read too."""
        found, scope = [], dict(outer)
        while not self.take("}"):
            found.append(self.statement(scope))
        return tuple(found)

    def statement(self, scope: Scope) -> Statement:
        for word in ("barrier", "subgroup_barrier"):
            if self.take(word):
                return Barrier(subgroup=word != "barrier")
        if self.peek() in ("let", "var"):
            make = Let if self.name() == "let" else Variable
            name = self.name()
            self.expect("=")
            value = self.expr(scope)
            scope[name] = value.type
            return make(name, value)
        if self.take("for"):
            return self.loop(scope)
        if self.take("if"):
            condition = self.expr(scope)
            self.expect("{")
            then = self.block(scope)
            if not self.take("else"):
                return Branch(condition, then)
            self.expect("{")
            return Branch(condition, then, self.block(scope))
        name = self.name()
        if self.take("="):
            return Set(name, self.expr(scope))
        self.expect("[")
        return self.store(name, scope)

    def loop(self, scope: Scope) -> Loop:
        counter = self.name()
        self.expect("from")
        start = self.expr(scope)
        self.expect("below")
        stop = self.expr(scope)
        step = self.whole() if self.take("step") else 1
        self.expect("{")
        return Loop(counter, start, stop, step, self.block({**scope, counter: U32}))

    def store(self, buffer: str, scope: Scope) -> Store | MatrixStore:
        index = self.expr(scope)
        if self.peek() in ("rows", "columns"):
            by_columns, stride = self.name() == "columns", self.whole()
            self.expect("]", "=")
            return MatrixStore(buffer, index, stride, self.expr(scope), by_columns)
        self.expect("]", "=")
        value = self.expr(scope)
        return Store(buffer, index, value, self.expr(scope) if self.take("where") else None)

    # ------------------------------------------------------------------ expressions

    def type(self) -> VectorType | Matrix:
        if self.peek() in TYPES:
            return TYPES[self.name()]
        role = self.name()
        self.expect(":")
        scalar = self.name()
        self.expect("[")
        rows = self.whole()
        self.expect(",")
        columns = self.whole()
        self.expect("]")
        return Matrix(role, rows, columns, scalar)

    def op(self, instruction: str, arguments: tuple[Expr, ...]) -> Op:
        """An instruction, whose operands say its type."""
        types = [argument.type for argument in arguments]
        if instruction == "vector" and types:
            return Op(instruction, arguments, VectorType(types[0].scalar, len(arguments)))
        try:
            return Op(instruction, arguments, result_type(instruction, types))
        except TypeError as error:
            self.fail(f"operands that fit ({error})")

    def expr(self, scope: Scope, binding: int = 0) -> Expr:
        """Operators that bind at least as tightly as `binding`, from the left."""
        left = self.factor(scope)
        while self.peek() in SIGNS and SIGNS[self.peek()][1] >= binding:
            instruction, own = SIGNS[self.peek()]
            self.position += 1
            left = self.op(instruction, (left, self.expr(scope, own + 1)))
        return left

    def factor(self, scope: Scope) -> Expr:
        token, after = self.peek(), self.peek(1)
        if self.take("("):
            inner = self.expr(scope)
            self.expect(")")
            return inner
        if self.take("-"):
            if after[:1].isdigit() or after in WORDS:
                positive = self.number()
                return Number(-positive.value, positive.type)
            return self.op("neg", (self.factor(scope),))
        if token[:1].isdigit() or token in WORDS:
            return self.number()
        if after == "[":
            return self.load(scope)
        if token in TYPES or after == ":":
            return self.typed(scope)
        if after == "(":
            return self.call(scope)
        if token in BUILTINS:
            return Builtin(self.name())
        if token not in scope:
            self.fail("a name that is known here")
        return Name(self.name(), scope[token])

    def number(self) -> Number:
        self.position += 1
        token = self.peek(-1)
        if token in ("true", "false"):
            return Number(WORDS[token], TYPES["bool"])
        if token.endswith("i"):
            return Number(int(token[:-1]), TYPES["i32"])
        if token.isdigit():
            return Number(int(token), U32)
        value = WORDS[token] if token in WORDS else float(token.removesuffix("h"))
        return Number(value, TYPES["f16" if token.endswith("h") else "f32"])

    def typed(self, scope: Scope) -> Expr:
        """A conversion, or a number for all lanes of a vector or all elements of a matrix."""
        type = self.type()
        self.expect("(")
        value = self.expr(scope)
        self.expect(")")
        many = isinstance(type, Matrix) or type.lanes > 1
        like = TYPES.get("i32" if type.scalar == "i8" else type.scalar)
        if many and isinstance(value, Number) and value.type in (like, TYPES["f32"]):
            return Number(value.value, type)
        return Op("convert", (value,), type)

    def call(self, scope: Scope) -> Op:
        function = self.name()
        arguments = self.listed(lambda: self.expr(scope))
        if function.startswith("bits_") and function[5:] in TYPES:
            return Op("bits", arguments, TYPES[function[5:]])
        if function not in INSTRUCTIONS:
            self.position -= 1
            self.fail(f"an instruction; {function!r} is none")
        return self.op(function, arguments)

    def listed(self, item: Callable[[], Expr]) -> tuple[Expr, ...]:
        """Items between commas in parentheses."""
        self.expect("(")
        items: list[Expr] = []
        while not self.take(")"):
            if items:
                self.expect(",")
            items.append(item())
        return tuple(items)

    def load(self, scope: Scope) -> GroupLoad | MatrixLoad:
        buffer = self.name()
        if buffer not in self.stored:
            self.fail(f"a buffer; {buffer!r} is none")
        self.expect("[")
        index = self.expr(scope)
        if self.peek() in ("rows", "columns"):
            by_columns, stride = self.name() == "columns", self.whole()
            self.expect("as")
            at, type = self.position, self.type()
            if not isinstance(type, Matrix):
                self.position = at
                self.fail("the type of a matrix")
            self.expect("]")
            return MatrixLoad(buffer, index, stride, type, by_columns)
        stored = self.stored[buffer]
        usual: VectorType | Matrix = VectorType(READ_AS.get(stored, stored))
        type, at = usual, self.position + 1
        if self.take("as"):
            type = self.type()
        if isinstance(type, Matrix):
            self.position = at
            self.fail("the type of a scalar or a vector")
        where = self.expr(scope) if self.take("where") else None
        self.expect("]")
        return GroupLoad(buffer, index, type, where)
