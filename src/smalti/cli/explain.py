"""`smalti explain`: what a model becomes: its kernels, their times, schedules and limits."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

import smalti
from smalti.cli.arrays import parse_shapes
from smalti.cli.compile import ENGINE, ONNX
from smalti.cli.generate import show_progress
from smalti.cli.interrupt import loading_modules
from smalti.cli.picture_options import parse_size
from smalti.cli.run import opened
from smalti.errors import InputError


def chosen_parts(pipe: smalti.Pipeline, part: str | None) -> list[str]:
    """The names of the parts to show: `part`, or all that a picture from a prompt runs.

    Raises InputError for a part that the model does not have.
    """
    known = [name for name in pipe.parts if name != "vae_encoder"]
    if part is not None and part not in pipe.parts:
        raise InputError(f"--part is {part!r}; known: {', '.join(pipe.parts)}")
    return [part] if part else known


def where(device: str | None) -> tuple[str, str | None]:
    """Split --device into what is here, to compile for (a device, or devices of parts), and the
    name of a device of the timing model's library, to predict for (None where it is a device here).

    Raises InputError for a name that is neither."""
    from smalti import machine
    from smalti.runtime import choice

    if device is not None and "=" in device:
        return device, None
    if device is None or choice.local(device):
        return choice.chosen(device or "cpu"), None
    machine.device(device)  # before anything is compiled
    return "cpu", device


def terminal_columns() -> int | None:
    """The width of the terminal that standard output is; None where it is a file or a pipe."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):  # ValueError: a stream without a file
        return None


@click.command()
@click.argument("model", required=False)
@click.option("--part", default=None, help="Only one part, such as text, unet or vae.")
@click.option("--size", default=None, metavar="WIDTH[xHEIGHT]",
              help="Pixels. Default: the model's own.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--precision", default=None,
              help="auto, f32, bf16, int8, or f16 on a GPU. Default: auto.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=NUMBERS",
              help="Shape of an input, or extent of a dimension, that an .onnx leaves open.")
@click.option("--device", default=None, metavar="NAME",
              help="One of `smalti devices`, or parts and devices, such as "
                   "denoiser=vulkan:0,text=cpu; or a GPU or CPU that need not be here, say "
                   "rtx_4060: what to expect of it. Default: cpu.")
@click.option("--objective", default=None,
              help="latency, throughput or energy. Default: latency.")
@click.option("--all", "every", is_flag=True,
              help="Also every kernel, with its schedule and the reason why fusion ends there.")
def explain(model: str | None, part: str | None, size: str | None, threads: int | None,
            precision: str | None, shapes: tuple[str, ...], device: str | None,
            objective: str | None, every: bool) -> None:
    """Show the kernels that MODEL becomes, and their times.

    That is: kernels by form, how long they are expected to take and what limits them, the longest
    of them, and memory.

    MODEL is a checkpoint (default: the model that ships with Smalti), an .onnx model or a .smalti
    engine file.
    """
    here, elsewhere = where(device)
    if model is not None and Path(model).suffix in (ENGINE, ONNX):
        if part is not None or size is not None:
            raise InputError("--part and --size are for checkpoints")
        program = opened(Path(model), parse_shapes(shapes), {}, precision, threads, False,
                         device=here, objective=objective)
        show_progress("")
        click.echo(program.explain(elsewhere, all=every, columns=terminal_columns()), nl=False)
        return
    if shapes:
        raise InputError("--shape is for .onnx models; give a checkpoint --size")
    width, height = parse_size(size)
    with loading_modules():
        pipeline = smalti.Pipeline
    pipe = pipeline.load(model, precision=precision or "auto", threads=threads,
                         progress=show_progress, objective=objective or "latency", device=here)
    for name in chosen_parts(pipe, part):
        text = pipe.explain(name, width=width, height=height, device=elsewhere, all=every,
                            columns=terminal_columns())
        show_progress("")
        place = f" on {pipe.placement.of_part(name)}" * (len(pipe.placement.devices) > 1)
        click.echo(f"# {name}{place}\n{text}")
