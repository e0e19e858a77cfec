"""`smalti inspect`: what a model file is, or how a picture was made."""

from __future__ import annotations

from pathlib import Path

import click

from smalti.cli.arrays import parse_shapes
from smalti.cli.compile import ENGINE, ONNX
from smalti.cli.interrupt import ending_at_once
from smalti.cli.picture_report import SUFFIXES, picture_report
from smalti.errors import InputError


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--shape", "shapes", multiple=True, metavar="NAME=NUMBERS",
              help="Shape of an input, or extent of a dimension, that an .onnx leaves open.")
def inspect(file: Path | None, shapes: tuple[str, ...]) -> None:
    """Say what FILE is, without reading its weights.

    FILE is a checkpoint, a diffusers folder, an adapter, an embedding, a ControlNet, an upscaler,
    TAESD, an .onnx model, a .smalti engine file, or a picture, whose settings are printed. Default:
    the model that ships with Smalti, and what it draws.
    """
    wanted = parse_shapes(shapes)
    if wanted and (file is None or file.suffix != ONNX):
        raise InputError(f"--shape is for .onnx models; {file or 'the model that ships'} has "
                         f"shapes of its own")
    with ending_at_once():
        from smalti import checkpoint
        from smalti.checkpoint.adapters.report import adapter_report, embedding_report
        from smalti.checkpoint.companion_report import companion_report
        from smalti.diffusion.pipeline import SHIPPED_MODEL
        from smalti.runtime import report
    file = SHIPPED_MODEL if file is None else file
    if file.suffix.lower() in SUFFIXES:
        text = picture_report(file)
    elif file.suffix == ENGINE:
        text = report.engine_report(file)
    elif file.suffix == ONNX:
        text = report.onnx_report(file, wanted)
    elif file.is_dir() and not (file / "model_index.json").exists() \
            and (file / "config.json").exists():
        text = companion_report(file)
    else:
        found = checkpoint.inspect(file)
        describe = {
            "lora": adapter_report, "embedding": embedding_report, "controlnet": companion_report,
            "esrgan": companion_report, "taesd": companion_report,
        }.get(found.kind.id if found.kind else "")
        text = describe(file) if describe else str(found)
    click.echo(text)
