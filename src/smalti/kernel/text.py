"""Kernels as text that parses back.

    kernel contraction {
      input x0: f32[1, 4, 8, 8] strides [256, 1, 32, 4]
      parameter weight: f32[16, 4, 3, 3] strides [36, 9, 3, 1]
      parameter x1: f32[16] strides [1]
      output out: f32[1, 8, 8, 16] strides [1024, 128, 16, 1]
      local patch: f32[1, 10, 10, 4]
      local sum: f32[1, 8, 8, 16]
      patch[b < 1, y < 10, x < 10, c < 4] = silu(x0[b, c, y - 1, x - 1])
        where 0 <= y - 1 < 8, 0 <= x - 1 < 8
      sum[b < 1, y < 8, x < 8, o < 16] = sum over r < 3, s < 3, c < 4
        of patch[b, y + r, x + s, c] * weight[o, c, r, s]
      out[b < 1, y < 8, x < 8, o < 16] = sum[b, y, x, o] + x1[o]
    }

`a < n` names an axis and its extent. Numbers are written so that they read back exactly. Options
follow the form: `kernel attention (scale = 0.125, causal = 1) {`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from smalti.errors import InputError
from smalti.kernel.form import Buffer, Call, Const, Expr, Index, Kernel, Load, Stage

INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2)}
"""Functions that are written between their two arguments, and how tightly they bind."""
FUNCTIONS = {sign: (name, binding) for name, (sign, binding) in INFIX.items()}
ROLES = ("input", "parameter", "output", "local")


# ---------------------------------------------------------------------- showing


def show(kernel: Kernel) -> str:
    """`kernel` as text; equal kernels give equal texts.

    >>> from smalti.kernel.form import axis
    >>> double = Call("mul", (Load("x", (axis("i"),)), Const(2.0)))
    >>> x, out = Buffer("x", "input", (8,), (1,)), Buffer("out", "output", (8,), (1,))
    >>> print(show(Kernel("map", (x, out), (Stage("out", (("i", 8),), double),))), end="")
    kernel map {
      input x: f32[8] strides [1]
      output out: f32[8] strides [1]
      out[i < 8] = x[i] * 2
    }
    """
    options = ", ".join(f"{name} = {_number(value)}" for name, value in kernel.options)
    lines = [f"kernel {kernel.form} {f'({options}) ' if options else ''}{{"]
    for buffer in kernel.buffers:
        strides = f" strides {list(buffer.strides)}" if buffer.strides else ""
        lines.append(f"  {buffer.role} {buffer.name}: {buffer.dtype}{list(buffer.shape)}{strides}")
    for stage in kernel.stages:
        lines.extend(f"  {line}" for line in show_stage(stage).splitlines())
    return "\n".join([*lines, "}"]) + "\n"


def show_stage(stage: Stage) -> str:
    """One stage as it stands in the text of its kernel."""
    head, value = f"{stage.result}[{_axes(stage.axes)}] =", _expr(stage.value)
    text = f"{head} {value}"
    if stage.reducer:
        text = f"{head} {stage.reducer} over {_axes(stage.reduced)}\n  of {value}"
    if stage.guards:
        guards = ", ".join(f"0 <= {show_index(index)} < {extent}" for index, extent in stage.guards)
        text += f"\n  where {guards}"
        if stage.outside:
            text += f" else {_number(stage.outside)}"
    return text


def _axes(axes: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} < {extent}" for name, extent in axes)


def _number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    text = repr(float(value))
    return text.removesuffix(".0")


def show_index(index: Index | Load) -> str:
    """An index as it stands between the brackets of a load."""
    if isinstance(index, Load):
        return _expr(index)
    text = ""
    for name, coefficient in index.terms:
        size = abs(coefficient)
        term = name if size == 1 else f"{size} * {name}"
        text += _signed(term, coefficient < 0, first=not text)
    if index.offset or not index.terms:
        text += _signed(str(abs(index.offset)), index.offset < 0, first=not text)
    return text if index.divisor == 1 else f"({text}) // {index.divisor}"


def _signed(text: str, negative: bool, first: bool) -> str:
    if first:
        return f"-{text}" if negative else text
    return f" - {text}" if negative else f" + {text}"


def _expr(expr: Expr, binding: int = 0) -> str:
    """An expression, in parentheses if it binds less tightly than `binding`."""
    if isinstance(expr, Const):
        return _number(expr.value)
    if isinstance(expr, Load):
        return f"{expr.buffer}[{', '.join(map(show_index, expr.index))}]"
    if expr.function in INFIX and len(expr.arguments) == 2:
        sign, own = INFIX[expr.function]
        left, right = expr.arguments
        text = f"{_expr(left, own)} {sign} {_expr(right, own + 1)}"
        return f"({text})" if own < binding else text
    return f"{expr.function}({', '.join(map(_expr, expr.arguments))})"


# ---------------------------------------------------------------------- parsing

TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?|[A-Za-z_]\w*|//|<=|[-+*/<=()\[\]{},:])")
NAME = re.compile(r"[A-Za-z_]\w*$")
Item = TypeVar("Item")


def parse(text: str) -> Kernel:
    """The kernel that `show` printed. Raises InputError saying where the text does not parse."""
    return _Parser(text).kernel()


class _Parser:
    """A parser by recursive descent: each method reads from the tokens what its name says."""

    def __init__(self, text: str) -> None:
        self.text, self.ends = text, []
        self.tokens: list[str] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = TOKEN.match(text, at)
            if not found:
                at += len(text[at:]) - len(text[at:].lstrip())
                self._fail(at, f"{text[at]!r} is not part of the notation")
            self.tokens.append(found[1])
            at = found.end()
            self.ends.append(at)
        self.position = 0

    def _fail(self, at: int, why: str) -> None:
        line = self.text.count("\n", 0, at)
        shown = self.text.split("\n")[line].strip()
        raise InputError(f"kernel text, line {line + 1}: {shown!r}: {why}")

    def fail(self, expected: str) -> None:
        at = min(self.position, len(self.tokens) - 1)
        found = self.tokens[at] if self.position < len(self.tokens) else "the end"
        self._fail(self.ends[at] - 1 if self.tokens else 0,
                   f"expected {expected}, found {found!r}")

    def peek(self, ahead: int = 0) -> str:
        at = self.position + ahead
        return self.tokens[at] if at < len(self.tokens) else ""

    def expect(self, token: str) -> None:
        if self.peek() != token:
            self.fail(repr(token))
        self.position += 1

    def name(self) -> str:
        if not NAME.match(self.peek()):
            self.fail("a name")
        self.position += 1
        return self.peek(-1)

    def whole(self) -> int:
        sign = -1 if self.take("-") else 1
        if not self.peek().isdigit():
            self.fail("a whole number")
        self.position += 1
        return sign * int(self.peek(-1))

    def take(self, token: str) -> bool:
        """True if the next token is this one; it is then read."""
        found = self.peek() == token
        self.position += found
        return found

    def listed(self, item: Callable[[], Item], end: str) -> tuple[Item, ...]:
        """Items separated by commas, up to the token `end`, which is read, too."""
        items: list[Item] = []
        while not self.take(end):
            if items:
                self.expect(",")
            items.append(item())
        return tuple(items)

    def some(self, item: Callable[[], Item]) -> tuple[Item, ...]:
        """One or more items separated by commas."""
        items = [item()]
        while self.take(","):
            items.append(item())
        return tuple(items)

    # ------------------------------------------------------------------ kernels

    def kernel(self) -> Kernel:
        self.expect("kernel")
        form = self.name()
        options = self.listed(self.option, ")") if self.take("(") else ()
        self.expect("{")
        buffers, stages = [], []
        while self.peek() in ROLES and self.peek(2) == ":":
            buffers.append(self.buffer())
        while not self.take("}"):
            stages.append(self.stage())
        if self.position < len(self.tokens):
            self.fail("the end")
        return Kernel(form, tuple(buffers), tuple(stages), options)

    def option(self) -> tuple[str, float]:
        name = self.name()
        self.expect("=")
        return name, self.number()

    def number(self) -> float:
        sign = -1.0 if self.take("-") else 1.0
        token = self.peek()
        if not (token[:1].isdigit() or token in ("inf", "nan")):
            self.fail("a number")
        self.position += 1
        return sign * float(token)

    def buffer(self) -> Buffer:
        role, name = self.name(), self.name()
        self.expect(":")
        dtype = self.name()
        self.expect("[")
        shape, strides = self.listed(self.whole, "]"), tuple[int, ...]()
        if self.take("strides"):
            self.expect("[")
            strides = self.listed(self.whole, "]")
        return Buffer(name, role, shape, strides, dtype)

    def stage(self) -> Stage:
        result = self.name()
        self.expect("[")
        axes, reducer, reduced = self.listed(self.axis, "]"), "", tuple[tuple[str, int], ...]()
        self.expect("=")
        if self.peek(1) == "over" and self.peek(2) != "[":
            reducer = self.name()
            self.expect("over")
            reduced = self.some(self.axis)
            self.expect("of")
        value, guards, outside = self.expr(), tuple[tuple[Index, int], ...](), 0.0
        if self.peek() == "where" and self.peek(1) != "[":
            self.expect("where")
            guards = self.some(self.guard)
            outside = self.number() if self.take("else") else 0.0
        return Stage(result, axes, value, reduced, reducer, guards, outside)

    def axis(self) -> tuple[str, int]:
        name = self.name()
        self.expect("<")
        return name, self.whole()

    def guard(self) -> tuple[Index, int]:
        self.expect("0")
        self.expect("<=")
        index = self.affine()
        self.expect("<")
        return index, self.whole()

    # ------------------------------------------------------------------ expressions

    def affine(self) -> Index:
        """An index without look-ups: terms + offset, or (terms + offset) // divisor."""
        if self.take("("):
            inner = self.affine()
            self.expect(")")
            self.expect("//")
            return Index(inner.terms, inner.offset, self.whole())
        terms, offset, sign = [], 0, -1 if self.take("-") else 1
        while True:
            if self.peek().isdigit() and self.peek(1) == "*":
                size = self.whole()
                self.expect("*")
                terms.append((self.name(), sign * size))
            elif self.peek().isdigit():
                offset += sign * self.whole()
            else:
                terms.append((self.name(), sign))
            if self.peek() not in ("+", "-"):
                return Index(tuple(terms), offset)
            sign = 1 if self.take("+") else -1
            self.position += sign < 0

    def index(self) -> Index | Load:
        if self.peek(1) == "[":
            return self.load()
        return self.affine()

    def load(self) -> Load:
        name = self.name()
        self.expect("[")
        return Load(name, self.listed(self.index, "]"))

    def expr(self, binding: int = 1) -> Expr:
        """An expression of factors and operators that bind at least as tightly as `binding`."""
        left = self.factor()
        while self.peek() in FUNCTIONS and FUNCTIONS[self.peek()][1] >= binding:
            function, own = FUNCTIONS[self.peek()]
            self.position += 1
            left = Call(function, (left, self.expr(own + 1)))
        return left

    def factor(self) -> Expr:
        if self.take("("):
            inner = self.expr()
            self.expect(")")
            return inner
        if self.peek(1) == "[":
            return self.load()
        if self.peek(1) == "(":
            name = self.name()
            self.expect("(")
            return Call(name, self.listed(self.expr, ")"))
        return Const(self.number())
