"""Statements of C++ before variables have names: what is computed, from what, in which scope."""

from __future__ import annotations

from collections.abc import Iterable

from smalti.dataclass import dataclass
from smalti.export.ggml import layout
from smalti.export.ggml.layout import Shape
from smalti.export.ggml.names import number


@dataclass(frozen=True, eq=False)
class Local:
    """A variable, or an input of the model: `hint` is what it would be called."""

    hint: str


@dataclass(frozen=True)
class Weight:
    """A tensor of the weights file, by its full name."""

    name: str


Piece = str | Local | Weight
Code = tuple[Piece, ...]


@dataclass(frozen=True)
class Tensor:
    """A contiguous tensor of ggml: an expression, its dimensions (outermost first) and dtype."""

    code: Code
    dims: Shape
    dtype: str = "f32"

    def shaped(self, *dims: int) -> Tensor:
        """The same elements with these dimensions, at most four."""
        if layout.dimensions(dims) == layout.dimensions(self.dims):
            return Tensor(self.code, dims, self.dtype)
        inner = layout.dimensions(dims)[::-1]
        code = call(f"ggml_reshape_{len(inner)}d", "ctx", self, *inner)
        return Tensor(code, dims, self.dtype)


Argument = Tensor | str | int | float | bool


def call(function: str, *arguments: Argument) -> Code:
    """`function(arguments…)`; text stands as it is, floats become literals of f32."""
    pieces: list[Piece] = [f"{function}("]
    for position, argument in enumerate(arguments):
        if position:
            pieces.append(", ")
        if isinstance(argument, Tensor):
            pieces.extend(argument.code)
        elif isinstance(argument, bool):
            pieces.append("true" if argument else "false")
        else:
            pieces.append(number(argument) if isinstance(argument, float) else str(argument))
    return (*pieces, ")")


def braces(items: Iterable[object]) -> str:
    """`items` as an initialiser.

    >>> braces((1, 2))
    '{1, 2}'
    """
    return f"{{{', '.join(map(str, items))}}}"


@dataclass(frozen=True)
class Statement:
    """`result = code`, part of the model's `scope`; `shape` is what the comment behind it says."""

    result: Local
    code: Code
    scope: str
    shape: Shape

    def reads(self) -> list[Local]:
        """The variables in its code."""
        return [piece for piece in self.code if isinstance(piece, Local)]
