"""`smalti generate`: a prompt becomes a picture."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import smalti
from smalti.cli.change import change_options
from smalti.cli.interrupt import ending_at_once
from smalti.cli.output import check_writable, output_paths, write_png
from smalti.errors import InputError

LORA = re.compile(r"(.*?)((?::[-+]?(?:\d+\.?\d*|\.\d+)){1,2})?", re.DOTALL)
SIZE = re.compile(r"(\d{1,9})(?:[xX](\d{1,9}))?")


def parse_size(text: str | None) -> tuple[int | None, int | None]:
    """Width and height in pixels from `512` or `512x768`; None stays for the model to decide.

    >>> parse_size("512"), parse_size("512x768"), parse_size(None)
    ((512, 512), (512, 768), (None, None))
    """
    if text is None:
        return None, None
    found = SIZE.fullmatch(text)
    if not found:
        raise InputError(f"--size is {text!r}; expected WIDTH or WIDTHxHEIGHT in pixels, "
                         f"such as 512 or 512x768")
    return int(found[1]), int(found[2] or found[1])


def parse_layers(text: str | None) -> smalti.SkipLayers | None:
    """Skip-layer guidance for the layers of `7,8,9`.

    >>> parse_layers("7,8").layers
    (7, 8)
    """
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", text):
        raise InputError(f"--skip-layers is {text!r}; expected numbers of layers, such as 7,8,9")
    return smalti.SkipLayers(tuple(map(int, text.split(","))))


def parse_lora(text: str) -> tuple[str, float] | tuple[str, float, float]:
    """Path and weights of `PATH`, `PATH:WEIGHT` or `PATH:WEIGHT:TEXT_WEIGHT`.

    >>> parse_lora("a.safetensors"), parse_lora("C:/a.safetensors:0.5:-1")
    (('a.safetensors', 1.0), ('C:/a.safetensors', 0.5, -1.0))
    """
    path, weights = LORA.fullmatch(text).groups()
    return (path, *(map(float, weights[1:].split(":")) if weights else (1.0,)))


@click.command()
@click.argument("prompt")
@click.option("-o", "--output", default="smalti.png", show_default=True,
              help="PNG to write; %03d in the name is the number of the picture.")
@click.option("-m", "--model", default=None, metavar="PATH",
              help="Checkpoint (.safetensors, .ckpt, .gguf) or diffusers folder. Default: the "
                   "model that ships with Smalti.")
@click.option("--text-encoder", "text_encoders", multiple=True, metavar="PATH",
              help="File of a text encoder that the model lacks, or instead of its own; may be "
                   "given several times.")
@click.option("--vae", default=None, metavar="PATH",
              help="File of an autoencoder that the model lacks, or instead of its own.")
@click.option("--prediction", default=None,
              help="What the denoiser predicts, where the file tells it wrong: epsilon, "
                   "v_prediction, ...")
@click.option("--refiner", default=None, metavar="PATH",
              help="A model that takes the last steps over, such as that of SDXL.")
@click.option("--refiner-switch", type=float, default=None,
              help="Share of the steps after which the refiner takes over. Default: 0.8.")
@click.option("--lora", "loras", multiple=True, metavar="PATH[:WEIGHT[:TEXT_WEIGHT]]",
              help="Adapter (LoRA and its relatives), how much of it, and how much of it for the "
                   "text encoders; may be given several times.")
@click.option("--lora-dir", default=None, metavar="FOLDER",
              help="Where the adapters are that the prompt names as <lora:name:0.8>.")
@click.option("--embedding", "embeddings", multiple=True, metavar="PATH",
              help="File of a textual inversion, which the prompt names by its file; may be given "
                   "several times.")
@click.option("--embedding-dir", "embedding_dirs", multiple=True, metavar="FOLDER",
              help="Folder of such files; may be given several times.")
@click.option("-n", "--negative-prompt", default="", help="What the picture should not show.")
@click.option("--steps", type=int, default=None, help="Denoising steps. Default: the model's own.")
@click.option("--sampler", default=None,
              help="euler, euler_a, heun, dpm++_2m, uni_pc, lcm, ...: names of A1111 and ComfyUI. "
                   "Default: the model's own.")
@click.option("--noise", default=None,
              help="automatic, normal, karras, ..., or levels that fall to 0: '14.6,7.8,1.5,0'. "
                   "Default: the model's own.")
@click.option("--size", default=None, metavar="WIDTH[xHEIGHT]",
              help="Pixels. Default: the model's own.")
@click.option("--seed", type=int, default=7, show_default=True, help="-1: a random one.")
@click.option("--batch", type=int, default=1, show_default=True,
              help="Pictures to make; their seeds follow one another.")
@click.option("--guidance", type=float, default=None,
              help="How strongly the prompt steers. Default: the model's own.")
@click.option("--guidance-time", type=(float, float), default=(0.0, 1.0), metavar="START END",
              help="From when to when guidance counts, as shares of the way. Default: 0 1.")
@click.option("--guidance-rescale", type=float, default=0.0,
              help="How far guidance leaves the contrast as it was, 0 to 1; 0.7 is usual.")
@click.option("--apg", is_flag=True, help="Adaptive projected guidance, for strong guidance.")
@click.option("--skip-layers", default=None, metavar="N,N,...",
              help="Skip-layer guidance for SD 3.5 medium: away from the picture without these, "
                   "such as 7,8,9.")
@click.option("--distilled-guidance", type=float, default=None,
              help="What models such as FLUX.1 dev are told of guidance. Default: 3.5.")
@click.option("--clip-skip", type=int, default=None,
              help="The state of CLIP to read, counted from the last, 1. Default: the model's own.")
@click.option("--emphasis", default="original", show_default=True,
              help="What weights in a prompt do: original, 'no norm' or comfy.")
@change_options
@click.option("--tiling", type=click.Choice(["x", "y", "xy"]), default=None,
              help="Directions in which the picture can be repeated without a seam.")
@click.option("--control", "controls", nargs=2, multiple=True, metavar="MODEL PICTURE",
              help="A ControlNet and the picture that it reads; may be given several times.")
@click.option("--control-strength", "strengths", type=float, multiple=True,
              help="How much a ControlNet counts, for each in order. Default: 1.")
@click.option("--control-time", "times", type=(float, float), multiple=True, metavar="START END",
              help="From when to when, as shares of the way, for each in order. Default: 0 1.")
@click.option("--edges", is_flag=True,
              help="ControlNets read the edges of their pictures, not the pictures.")
@click.option("--preview", default=None, metavar="PATH",
              help="A tiny autoencoder (TAESD) that shows each step as OUTPUT.preview.png.")
@click.option("--rng", default="cpu", show_default=True,
              help="Random numbers of torch on the cpu, or of torch on cuda.")
@click.option("--device", default="auto", show_default=True, help="One of `smalti devices`.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--precision", default="auto", show_default=True,
              help="auto, f32, bf16, or f16 on a GPU.")
@click.option("--supervise/--no-supervise", default=False, show_default=True,
              help="Look for faster schedules while the picture is made; it is the same with and "
                   "without.")
@click.option("--objective", default="latency", show_default=True,
              help="What a CPU's schedules are chosen for: latency, throughput or energy.")
@click.option("--memory", default=None, metavar="SIZE",
              help="What all of it may take, such as 6GB. Default: what the device has.")
def generate(prompt: str, output: str, model: str | None, text_encoders: tuple[str, ...],
             vae: str | None, prediction: str | None, refiner: str | None,
             refiner_switch: float | None, loras: tuple[str, ...], lora_dir: str | None,
             embeddings: tuple[str, ...], embedding_dirs: tuple[str, ...], negative_prompt: str,
             steps: int | None, sampler: str | None, noise: str | None, size: str | None, seed: int,
             batch: int, guidance: float | None, guidance_time: tuple[float, float],
             guidance_rescale: float, apg: bool, skip_layers: str | None,
             distilled_guidance: float | None,
             clip_skip: int | None, tiling: str | None, controls: tuple[tuple[str, str], ...],
             strengths: tuple[float, ...], times: tuple[tuple[float, float], ...], edges: bool,
             emphasis: str, preview: str | None, rng: str, device: str, threads: int | None,
             precision: str, supervise: bool, objective: str, memory: str | None,
             **change: Any) -> None:
    """Make a picture of PROMPT."""
    started = time.perf_counter()
    width, height = parse_size(size)
    paths = output_paths(output, max(1, min(batch, 1000)))
    check_writable(paths)
    with ending_at_once():
        pipeline = smalti.Pipeline
    pipe = pipeline.load(model, device=device, precision=precision, threads=threads,
                         progress=show_progress, keep=False, text_encoders=text_encoders, vae=vae,
                         prediction=prediction, refiner=refiner, supervise=supervise, memory=memory,
                         loras=[parse_lora(text) for text in loras], lora_folder=lora_dir,
                         embeddings=(*embeddings, *embedding_dirs), objective=objective)
    work = pipe.steps(
        prompt, negative_prompt=negative_prompt, width=width, height=height, steps=steps,
        guidance_scale=guidance, sampler=sampler, noise=noise, seed=seed, rng=rng,
        batch_size=batch, clip_skip=clip_skip, distilled_guidance=distilled_guidance,
        emphasis=emphasis, controls=read_controls(controls, strengths, times, edges),
        tiling=tiling or "", refiner_switch=refiner_switch,
        guide=smalti.Guide(guidance_rescale, smalti.Projected() if apg else None, *guidance_time,
                           parse_layers(skip_layers)), **change)
    if preview is not None:
        work = previewed(work, smalti.Preview.load(preview, threads, device),
                         paths[0].with_suffix(".preview.png"))
    result = watch(work)
    for warning in result.warnings:
        click.echo(f"Warning: {warning}", err=True)
    for path, image, text in zip(paths, result.images, result.texts, strict=True):
        write_png(image, path, text)
    report(result, paths, time.perf_counter() - started)


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
    return [smalti.Control.load(model, opened(picture), strength=strength, start=start,
                                end=end, edges=(LOW, HIGH) if edges else None)
            for (model, picture), strength, (start, end) in zip(
                controls, strengths, times, strict=False)]


def show_progress(text: str) -> None:
    """A line that the next one replaces; on anything but a terminal, nothing."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text}", err=True, nl=False)


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
    return step.result


def previewed(steps: Iterator[smalti.Step], preview: smalti.Preview, path: Path
              ) -> Iterator[smalti.Step]:
    """The same steps; the first picture of each is written to `path`, which goes in the end."""
    try:
        for step in steps:
            if step.result is None:
                write_png(preview(step.denoised)[0], path, "")
            yield step
    finally:
        path.unlink(missing_ok=True)


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
