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


def chosen_parts(pipe: smalti.Pipeline, part: str | None) -> list[str]:
    """The part that was asked for, else all that a picture of a prompt takes.

    Raises InputError for a part that the model does not have.
    """
    known = [name for name in pipe.parts if name != "vae_encoder"]
    if part is not None and part not in pipe.parts:
        raise InputError(f"--part is {part!r}; known: {', '.join(pipe.parts)}")
    return [part] if part else known


@click.command()
@click.argument("model", required=False)
@click.option("--part", default=None, help="Only one part, such as text, unet or vae.")
@click.option("--size", default=None, metavar="WIDTH[xHEIGHT]",
              help="Pixels. Default: the model's own.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--precision", default=None, help="auto, f32 or bf16. Default: auto.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=NUMBERS",
              help="Shape of an input, or extent of a dimension, that an .onnx leaves open.")
@click.option("--device", default=None, metavar="NAME",
              help="A GPU or CPU that need not be here, say rtx_4060: what to expect of it.")
@click.option("--objective", default=None,
              help="latency, throughput or energy. Default: latency.")
def explain(model: str | None, part: str | None, size: str | None, threads: int | None,
            precision: str | None, shapes: tuple[str, ...], device: str | None,
            objective: str | None) -> None:
    """Show the kernels and schedules of MODEL, and how long they are expected to take.

    MODEL is a checkpoint (default: the model that ships with Smalti), an .onnx model or a .smalti
    engine file.
    """
    if device is not None:
        from smalti import machine

        machine.device(device)  # before anything is compiled
    if model is not None and Path(model).suffix in (ENGINE, ONNX):
        if part is not None or size is not None:
            raise InputError("--part and --size are for checkpoints")
        program = opened(Path(model), parse_shapes(shapes), {}, precision, threads, False,
                         objective=objective)
        show_progress("")
        click.echo(program.explain(device))
        return
    if shapes:
        raise InputError("--shape is for .onnx models; give a checkpoint --size")
    width, height = parse_size(size)
    with ending_at_once():
        pipeline = smalti.Pipeline
    pipe = pipeline.load(model, precision=precision or "auto", threads=threads,
                         progress=show_progress, objective=objective or "latency")
    for name in chosen_parts(pipe, part):
        text = pipe.explain(name, width=width, height=height, device=device)
        show_progress("")
        click.echo(f"# {name}\n{text}")
