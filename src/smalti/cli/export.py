"""`smalti export`: a model for other libraries to compute."""

from __future__ import annotations

from collections.abc import Sequence

import click

from smalti.cli.interrupt import ending_at_once
from smalti.errors import InputError


@click.group()
def export() -> None:
    """Write a model for other libraries to compute."""


@export.command()
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="FOLDER", help="A new or empty folder.")
@click.option("--precision", default="f32", show_default=True,
              help="What matrices and windows are stored as: f32 or f16.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=N,N,…",
              help="The shape of an input that MODEL leaves open, or the size of a dimension.")
def ggml(model: str, output: str, precision: str, shapes: Sequence[str]) -> None:
    """Write a C++ project that computes MODEL, an ONNX file, with ggml."""
    with ending_at_once():
        from smalti.export.ggml import export as write
        from smalti.frontend.onnx import load
    loaded = load(model, dict(map(parse_shape, shapes)) or None)
    write(loaded.graph, loaded.parameters, output, precision=precision)


def parse_shape(text: str) -> tuple[str, tuple[int, ...] | int]:
    """A name and extents: of an input, or the one of a dimension.

    >>> parse_shape("x=1,3,224,224"), parse_shape("batch=2")
    (('x', (1, 3, 224, 224)), ('batch', 2))
    """
    name, equals, extents = text.rpartition("=")
    if not equals or not all(word.strip().isdecimal() for word in extents.split(",")):
        raise InputError(f"--shape is {text!r}; expected a name and numbers, such as "
                         f"x=1,3,224,224")
    numbers = tuple(map(int, extents.split(",")))
    return name, numbers if len(numbers) > 1 else numbers[0]
