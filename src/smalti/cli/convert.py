"""`smalti convert`: weights in another format or precision."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from smalti.cli.interrupt import loading_modules
from smalti.cli.output import check_apart, check_writable, whole_file


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="What to write: .safetensors or .gguf.")
@click.option("--precision", default=None,
              help="f32, f16, bf16; fp8 (.safetensors); q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, "
                   "q4_0 (.gguf). Default: as it is.")
@click.option("--vae", type=click.Path(path_type=Path), default=None, metavar="PATH",
              help="Autoencoder to put in instead of the model's own.")
@click.option("--text-encoder", "text_encoders", multiple=True, type=click.Path(path_type=Path),
              metavar="PATH", help="Text encoder to put in; once for each.")
def convert(file: Path, output: Path, precision: str | None, vae: Path | None,
            text_encoders: tuple[Path, ...]) -> None:
    """Write weights as .safetensors or .gguf.

    FILE is a checkpoint in any format that Smalti reads, or a diffusers folder.
    """
    started = time.perf_counter()
    check_apart(output, file, vae, *text_encoders)
    check_writable([output])
    with loading_modules():
        from smalti.checkpoint.convert import plan
    planned = plan(file, output.suffix.lower(), precision, text_encoders, vae)
    for note in planned.notes:
        click.echo(f"note: {note}", err=True)
    with whole_file(output) as stream, click.progressbar(
            length=planned.bytes, label="writing", file=sys.stderr,
            hidden=not sys.stderr.isatty()) as bar:
        before = 0
        for done in planned.write(stream):
            bar.update(done - before)
            before = done
    tensors = ", ".join(f"{dtype} ({count} tensors)"
                        for dtype, count in planned.precisions.items())
    click.echo(f"{output}: {output.stat().st_size / 1e6:.1f} MB, {tensors}, whole "
               f"{time.perf_counter() - started:.1f} s")
