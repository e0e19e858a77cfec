"""`smalti generate`: a prompt becomes a picture."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

import smalti
from smalti.cli.interrupt import loading_modules
from smalti.cli.loading_options import compute_options, model_options
from smalti.cli.output import check_writable, output_paths, write_png
from smalti.cli.picture_options import PictureCommand, asked_for
from smalti.errors import InputError, OutputError

if TYPE_CHECKING:
    from smalti.models.config import ModelConfig

LORA = re.compile(r"(.*?)((?::[-+]?(?:\d+\.?\d*|\.\d+)){1,2})?", re.DOTALL)
CHANGED = "none"
"""In place of a ControlNet's picture: it reads the one that is changed."""


def parse_lora(text: str) -> tuple[str, float] | tuple[str, float, float]:
    """Path and weights of `PATH`, `PATH:WEIGHT` or `PATH:WEIGHT:TEXT_WEIGHT`.

    >>> parse_lora("a.safetensors"), parse_lora("C:/a.safetensors:0.5:-1")
    (('a.safetensors', 1.0), ('C:/a.safetensors', 0.5, -1.0))
    """
    found = cast(re.Match[str], LORA.fullmatch(text))  # any text is a path
    path, weights = found.groups()
    return (path, *(map(float, weights[1:].split(":")) if weights else (1.0,)))


@click.command(cls=PictureCommand)
@click.argument("prompt", required=False)
@click.option("--from", "source", default=None, metavar="PICTURE",
              help="Take the settings that a picture carries (.png, .jpg, .webp), or a .txt file; "
                   "what is given besides counts instead.")
@click.option("-o", "--output", default="smalti.png", show_default=True,
              help="PNG to write; %03d in the name is the number of the picture.")
@model_options
@click.option("--control", "controls", nargs=2, multiple=True, metavar="MODEL PICTURE",
              help="A ControlNet and the picture that it reads, or none for the one that --image "
                   "changes; may be given several times.")
@click.option("--control-strength", "strengths", type=float, multiple=True,
              help="How much a ControlNet counts, for each in order. Default: 1.")
@click.option("--control-time", "times", type=(float, float), multiple=True, metavar="START END",
              help="From when to when, as shares of the way, for each in order. Default: 0 1.")
@click.option("--edges", is_flag=True,
              help="ControlNets read the edges of their pictures, not the pictures.")
@click.option("--preview", default=None, metavar="PATH",
              help="A tiny autoencoder (TAESD) that shows each step as OUTPUT.preview.png.")
@compute_options
def generate(prompt: str | None, source: str | None, output: str, **given: Any) -> None:
    """Make a picture of PROMPT, or one as another was made (--from)."""
    started = time.perf_counter()
    with loading_modules():
        pipeline = smalti.Pipeline
        from smalti.diffusion.options import OPTIONS
        from smalti.runtime import ahead
    ahead.expect(given["threads"])
    files = {name: given.pop(name) for name in ("controls", "strengths", "times", "edges")}
    asked = asked_for({name: given.pop(name) for name in [*given] if name in OPTIONS}
                      | {"prompt": prompt})
    settings = read_settings(source)
    options = asked if settings is None else settings.with_given({
        **asked, **({"refiner": given["refiner"]} if given["refiner"] else {}),
        **({"controls": files["controls"]} if files["controls"] else {})})
    paths = output_paths(output, max(1, min(options.get("batch_size", 1), 1000)))
    check_writable(paths)
    preview, threads = given.pop("preview"), given["threads"]
    pipe = pipeline.load(given.pop("model"), progress=show_progress, keep=False,
                         **adapters(given, settings), **given)
    if source is not None and settings is not None:
        tell_missing(source, settings, pipe.name, given["precision"])
        leave_out(source, options, asked, pipe.config)
    work = pipe.steps(controls=read_controls(**files), **options)
    if preview is not None:
        work = previewed(work, smalti.Preview.load(preview, threads, pipe.placement.of("decoder")),
                         paths[0].with_suffix(".preview.png"))
    result = watch(work)
    for warning in result.warnings:
        click.echo(f"Warning: {warning}", err=True)
    for path, image, text in zip(paths, result.images, result.texts, strict=True):
        write_png(image, path, text)
    for note in result.notes:
        click.echo(f"Note: {note}", err=True)
    report(result, paths, time.perf_counter() - started)


def read_settings(source: str | None) -> Any:
    """What the text of a picture says of how it was made (an `option_text.PictureText`); None
    without a picture."""
    if source is None:
        return None
    from smalti.diffusion.metadata import parse, text_in
    from smalti.diffusion.option_text import read

    return read(parse(text_in(source)))


def adapters(given: dict[str, Any], settings: Any) -> dict[str, Any]:
    """What `Pipeline.load` takes of adapters and embeddings: those that are given, and those that
    the text of a picture names."""
    from smalti.diffusion.adapters import file_named

    folder = given.pop("lora_dir")
    loras: list[tuple[str | Path, float] | tuple[str | Path, float, float]]
    loras = [parse_lora(text) for text in given.pop("loras")]
    if settings is not None and folder is not None:
        loras += [(file_named([Path(folder)], use.name), use.weight, use.text_weight)
                  for use in settings.adapters]
        settings.adapters.clear()
    return {"loras": loras, "lora_folder": folder,
            "embeddings": (*given.pop("embeddings"), *given.pop("embedding_dirs"))}


def tell_missing(source: str, settings: Any, model: str, precision: str) -> None:
    """Say what made a picture besides what is at hand now."""
    lines = [f"was made with {text}" for text in settings.advice()]
    lines += [f"was made with the adapter {use.name}: give --lora-dir FOLDER"
              for use in settings.adapters]
    if settings.model not in (None, model):
        lines.append(f"was made by the model {settings.model}, this is {model}: give --model PATH")
    if settings.precision not in ("", precision):
        lines.append(f"was made with precision {settings.precision}: give --precision "
                     f"{settings.precision}")
    lines += [f"says {key}: {value:.60}, which is not understood and left out"
              for key, value in settings.unknown.items()]
    for line in lines:
        click.echo(f"Warning: {source} {line}", err=True)


def leave_out(source: str, options: dict[str, Any], asked: Collection[str],
              config: ModelConfig) -> None:
    """Take out of the options of a picture those that mean nothing to this model and are not asked
    for besides, such as what another program writes for all of its pictures, and say so."""
    from smalti.diffusion.options import OPTIONS
    from smalti.diffusion.purpose import untaken

    for name in untaken(config):
        if name in options and name not in asked:
            value = OPTIONS[name].kind.written(options.pop(name))
            click.echo(f"Warning: {source} says {OPTIONS[name].label}: {value}, which means nothing"
                       f" to this model and is left out", err=True)


def read_controls(controls: Sequence[tuple[str, str]], strengths: Sequence[float],
                  times: Sequence[tuple[float, float]], edges: bool) -> list[smalti.Control]:
    """The ControlNets that are asked for; strengths and times belong to the first of them."""
    for what, given in (("--control-strength", strengths), ("--control-time", times)):
        if len(given) > len(controls):
            raise InputError(f"{what} is given {len(given)} times, --control {len(controls)} times")
    if edges and not controls:
        raise InputError("--edges says what ControlNets read, but there is no --control")
    if not controls:
        return []
    from smalti.diffusion.edges import HIGH, LOW
    from smalti.diffusion.images import opened

    strengths = [*strengths, *[1.0] * len(controls)]
    times = [*times, *[(0.0, 1.0)] * len(controls)]
    return [smalti.Control.load(model, None if picture == CHANGED else opened(picture),
                                strength=strength, start=start,
                                end=end, edges=(LOW, HIGH) if edges else None)
            for (model, picture), strength, (start, end) in zip(
                controls, strengths, times, strict=False)]


def show_progress(text: str) -> None:
    """A line that the next one replaces; on anything but a terminal only such as end with a line
    break, which stay."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", err=True, nl=False)
    elif text.endswith("\n"):
        click.echo(text, err=True, nl=False)


def watch(steps: Iterator[smalti.Step]) -> smalti.Result:
    """Go through the steps with a progress bar that tells the time per step."""
    step = next(steps)
    show_progress("")
    with click.progressbar(length=step.total, label="denoising", file=sys.stderr,
                           hidden=not sys.stderr.isatty(),
                           item_show_func=time_per_step) as bar:
        bar.update(1, step)
        for step in steps:
            bar.update(1, step)
    return cast(smalti.Result, step.result)  # the last step has it


def previewed(steps: Iterator[smalti.Step], preview: smalti.Preview, path: Path
              ) -> Iterator[smalti.Step]:
    """The same steps; the first picture of each is written to `path`, which goes in the end.

    Windows replaces and deletes no file that a viewer has open: a message says so, once for all
    steps, and the work goes on.
    """
    said = False
    try:
        for step in steps:
            if step.result is None:
                try:
                    write_png(preview(step.denoised)[0], path, "")
                except OutputError as error:
                    if not said:
                        click.echo(f"{error}; not every step has a preview", err=True)
                    said = True
            yield step
    finally:
        try:
            path.unlink(missing_ok=True)
        except PermissionError as error:
            click.echo(f"the preview {path} stays: {error.strerror}", err=True)


def time_per_step(step: smalti.Step | None) -> str:
    """What stands behind the bar."""
    return f"{step.seconds:.2f} s/step" if step else ""


def report(result: smalti.Result, paths: Sequence[Path], seconds: float) -> None:
    """What was done, in one line a picture."""
    given = result.parameters
    for path, image, seed in zip(paths, result.images, result.seeds, strict=True):
        click.echo(f"{path}: {image.width}x{image.height}, seed {seed}, {given.model}")
    timings = ", ".join(f"{name} {value:.2f} s" for name, value in result.timings.items())
    click.echo(f"{given.steps} step{'s' * (given.steps > 1)} of {given.sampler} ({given.noise}), "
               f"{timings}, whole {seconds:.2f} s")
    saved = result.saved
    if given.cache:
        click.echo(f"{saved.skipped} of {saved.evaluations} evaluations left out, each with a "
                   f"change of at most {saved.error:.3f} foretold")
