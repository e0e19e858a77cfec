"""`smalti upscale`: a larger picture."""

from __future__ import annotations

import time
from pathlib import Path

import click

import smalti
from smalti.cli.generate import show_progress
from smalti.cli.interrupt import loading_modules
from smalti.cli.output import check_apart, check_writable, output_paths, write_png


@click.command()
@click.argument("picture", type=click.Path(path_type=Path))
@click.option("-m", "--model", required=True, metavar="PATH",
              help="ESRGAN, Real-ESRGAN or its compact network (.pth, .safetensors, ...).")
@click.option("-o", "--output", default="upscaled.png", show_default=True, help="PNG to write.")
@click.option("--factor", type=float, default=None,
              help="How many times as large. Default: the model's own.")
@click.option("--tile", type=int, default=192, show_default=True,
              help="Pixels along a side that are computed at once; fewer take less memory.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--device", default="auto", show_default=True, help="One of `smalti devices`.")
@click.option("--precision", default="auto", show_default=True, help="auto, f32, f16 or bf16.")
def upscale(picture: Path, model: str, output: str, factor: float | None, tile: int,
            threads: int | None, device: str, precision: str) -> None:
    """Make PICTURE larger."""
    started = time.perf_counter()
    (path,) = output_paths(output, 1)
    check_writable([path])
    check_apart(path, picture, Path(model))
    with loading_modules():
        loading = smalti.Upscaler.load
        from smalti.diffusion.images import opened
        from smalti.diffusion.metadata import carried
    image = opened(picture)
    upscaler = loading(model, precision, threads, show_progress, device)
    made = upscaler(image, factor, tile)
    show_progress("")
    write_png(made, path, carried(image))
    click.echo(f"{path}: {made.width}x{made.height}, from {image.width}x{image.height}, "
               f"whole {time.perf_counter() - started:.2f} s")
