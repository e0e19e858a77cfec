"""`smalti export`: a model for other libraries and compilers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smalti.cli.arrays import parse_shapes
from smalti.cli.interrupt import loading_modules
from smalti.cli.output import check_apart, check_writable, replace_file, show_bytes

if TYPE_CHECKING:
    from smalti.frontend.onnx import OnnxModel


@click.group()
def export() -> None:
    """Write a model for other libraries and compilers."""


def reads_model(command: Callable[..., None]) -> Callable[..., None]:
    """Add the argument MODEL and the option --shape to `command`."""
    model = click.argument("model", type=click.Path(path_type=Path))
    shapes = click.option("--shape", "shapes", multiple=True, metavar="NAME=NUMBERS",
                          help="Shape of an input, or extent of a dimension, that MODEL leaves "
                               "open.")
    return model(shapes(command))


@export.command()
@reads_model
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FOLDER",
              help="A new or empty folder.")
@click.option("--precision", default="f32", show_default=True,
              help="What matrices and windows are stored as: f32 or f16.")
def ggml(model: Path, shapes: tuple[str, ...], output: Path, precision: str) -> None:
    """Write a C++ project that computes MODEL with ggml.

    MODEL is an .onnx file. The project holds its weights, and a program that runs it.
    """
    opened = load(model, shapes)
    from smalti.export.ggml import export as write

    write(opened.graph, opened.parameters, output, precision=precision)
    for file in sorted(output.iterdir()):
        click.echo(f"{file}  {show_bytes(file.stat().st_size)}")
    click.echo(f"{output}/README.md says how to build and run it")


@export.command()
@reads_model
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="The text to write.")
def mlir(model: Path, shapes: tuple[str, ...], output: Path) -> None:
    """Write the graph of MODEL as MLIR text.

    MODEL is an .onnx file. Its weights become arguments of the function.
    """
    check_apart(output, model)
    check_writable([output])
    opened = load(model, shapes)
    from smalti.export.mlir import export as text_of

    replace_file(output, text_of(opened.graph).encode())
    click.echo(f"{output}  {show_bytes(output.stat().st_size)}")


def load(model: Path, shapes: tuple[str, ...]) -> OnnxModel:
    """Read the ONNX file `model` with open shapes fixed by the texts of --shape."""
    wanted = parse_shapes(shapes)
    with loading_modules():
        from smalti.frontend.onnx import load as load_onnx
    return load_onnx(model, wanted)
