"""`smalti inspect`: what a model file is, what it takes, or how a picture was made."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from smalti.claim import temporary_folder
from smalti.cli.arrays import parse_shapes
from smalti.cli.compile import ENGINE, ONNX
from smalti.cli.generate import show_progress
from smalti.cli.interrupt import loading_modules
from smalti.cli.output import check_writable, replace_file
from smalti.cli.picture_options import parse_size
from smalti.cli.picture_report import SUFFIXES, picture_report
from smalti.errors import InputError


@click.command()
@click.argument("file", required=False, metavar="[FILE|NAME]")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=NUMBERS",
              help="Shape of an input, or extent of a dimension, that an .onnx leaves open.")
@click.option("--device", default=None, metavar="NAME",
              help="Foretell pictures: one of `smalti devices`, or a GPU or CPU that need not be "
                   "here, say rtx_3060 or raspberry_pi_5; or parts and devices, such as "
                   "denoiser=rtx_3060,text=cpu.")
@click.option("--memory", default=None, metavar="SIZE",
              help="What all of it may take of main memory there, such as 16GB. Default: what the "
                   "device has; beside a GPU that has its own, what this computer has.")
@click.option("--gpu-memory", default=None, metavar="SIZE",
              help="What it may take of the memory of a GPU that has its own. Default: what that "
                   "has.")
@click.option("--precision", default=None,
              help="auto, f32, bf16, int8 on this computer's CPU, or f16 on a GPU. Default: auto.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--size", default=None, metavar="WIDTH[xHEIGHT]",
              help="Pixels of the picture. Default: the model's own.")
@click.option("--steps", type=int, default=None, help="Denoising steps. Default: the model's own.")
@click.option("--text-encoder", "text_encoders", multiple=True, metavar="PATH|NAME",
              help="File of a text encoder that the model lacks; may be given several times.")
@click.option("--vae", default=None, metavar="PATH|NAME",
              help="File of an autoencoder that the model lacks.")
@click.option("--redux", type=click.IntRange(0, 10), default=None, metavar="NUMBER",
              help="Pictures that the prompt takes on, with the files of FLUX.1 Redux among the "
                   "text encoders. Default: none.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None,
              metavar="FILE", help="Also write what is foretold of pictures to a file, as JSON.")
def inspect(file: str | None, shapes: tuple[str, ...], json_path: Path | None,
            **given: Any) -> None:
    """Say what FILE is, and what pictures of it would take.

    FILE is a checkpoint, a diffusers folder, an adapter, an embedding, a ControlNet, an upscaler,
    TAESD, an .onnx model, a .smalti engine file, or a picture, whose settings are printed; or the
    NAME that a model is fetched by, of which only headers are read. Default: the model that ships
    with Smalti, and what it draws.

    With any of the options but --shape, it says whether, how and how fast a checkpoint makes
    pictures: which of its parts stay in memory and which are streamed, in which precision, how much
    memory they take and how long a step and a picture are expected to take.
    """
    wanted = parse_shapes(shapes)
    if wanted and (file is None or Path(file).suffix != ONNX):
        raise InputError(f"--shape is for .onnx models; {file or 'the model that ships'} has "
                         f"shapes of its own")
    foretell = json_path is not None or any(value not in (None, ()) for value in given.values())
    if foretell and Path(file or "").suffix.lower() in (ONNX, ENGINE, *SUFFIXES):
        raise InputError(f"--device and what it goes with are for models that make pictures, and "
                         f"{file} is none; smalti explain --device says what .onnx models and "
                         f"engine files take")
    if json_path is not None:
        check_writable([json_path])
    with loading_modules():
        from smalti import fetch
    with temporary_folder("inspect") as folder:
        fetch.check_spelling(file)
        if fetch.is_name(file) and not foretell:
            path = fetch.outlined(str(file), None, folder, show_progress)
            click.echo(told(path, wanted).replace(str(path), str(file)))
            return
        if not foretell:
            click.echo(told(None if file is None else Path(file), wanted))
            return
        found = foretold(file, given, folder)
        show_progress("")
        click.echo(str(found))
        if json_path is not None:
            replace_file(json_path, json.dumps(found.document(), indent=2).encode())


def foretold(file: str | None, given: dict[str, Any], folder: Path) -> Any:
    """The plan of a picture (a `Forecast`); outlines of what has to be fetched are put into
    `folder`."""
    with loading_modules():
        from PIL import Image

        from smalti import fetch
        from smalti.diffusion.load_options import LoadOptions
        from smalti.diffusion.named import fetched
        from smalti.diffusion.pipeline import Pipeline
        from smalti.runtime.choice import foreseen

    def outlined(name: str | Path, memory: int | None, tell: Any) -> Path:
        return fetch.outlined(str(name), memory, folder, tell)

    width, height = parse_size(given.pop("size"))
    steps, shown = given.pop("steps"), given.pop("redux")
    device, precision = given.pop("device") or "auto", given.pop("precision") or "auto"
    places = [each.rpartition("=") for each in device.split(",")]
    device = ",".join(f"{part}{equals}{place if place == 'auto' else foreseen(place)}"
                      for part, equals, place in places)
    asked = fetched(LoadOptions(file, device, precision, progress=show_progress, keep=False,
                                **given), outlined)
    pipe = Pipeline.load(**{each.name: getattr(asked, each.name) for each in fields(asked)})
    pictures = [Image.new("RGB", (1, 1))] * (shown or 0)  # which all become as many tokens
    return pipe.forecast("", width=width, height=height, steps=steps, redux=pictures or None)


def told(file: Path | None, wanted: dict[str, Any]) -> str:
    """What is at a path, as text."""
    with loading_modules():
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
    return text
