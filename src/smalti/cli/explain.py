"""`smalti explain`: what a model becomes: its kernels, their schedules, and why each cut."""

from __future__ import annotations

from pathlib import Path

import click

import smalti
from smalti.cli.arrays import parse_shapes
from smalti.cli.compile import ENGINE, ONNX
from smalti.cli.generate import parse_size, show_progress
from smalti.cli.interrupt import ending_at_once
from smalti.cli.run import opened
from smalti.errors import InputError

PARTS = ("text", "unet", "vae")


@click.command()
@click.argument("model", required=False)
@click.option("--part", default=None, help="Only one of text, unet, vae.")
@click.option("--size", default=None, metavar="WIDTH[xHEIGHT]",
              help="Pixels. Default: the model's own.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--precision", default=None, help="auto, f32 or bf16. Default: auto.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=NUMBERS",
              help="Shape of an input, or extent of a dimension, that an .onnx leaves open.")
def explain(model: str | None, part: str | None, size: str | None, threads: int | None,
            precision: str | None, shapes: tuple[str, ...]) -> None:
    """Show the kernels and schedules of MODEL.

    MODEL is a checkpoint (default: the model that ships with Smalti), an .onnx model or a .smalti
    engine file.
    """
    if model is not None and Path(model).suffix in (ENGINE, ONNX):
        if part is not None or size is not None:
            raise InputError("--part and --size are for checkpoints")
        program = opened(Path(model), parse_shapes(shapes), {}, precision, threads, False)
        show_progress("")
        click.echo(program.explain())
        return
    if shapes:
        raise InputError("--shape is for .onnx models; give a checkpoint --size")
    if part is not None and part not in PARTS:
        raise InputError(f"--part is {part!r}; known: {', '.join(PARTS)}")
    width, height = parse_size(size)
    with ending_at_once():
        pipeline = smalti.Pipeline
    pipe = pipeline.load(model, precision=precision or "auto", threads=threads,
                         progress=show_progress)
    for name in [part] if part else PARTS:
        text = pipe.explain(name, width=width, height=height)
        show_progress("")
        click.echo(f"# {name}\n{text}")
