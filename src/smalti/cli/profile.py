"""`smalti profile`: where the time of a model goes, kernel by kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

import smalti
from smalti.cli.arrays import parse_shapes
from smalti.cli.bench import say
from smalti.cli.compile import ONNX
from smalti.cli.explain import chosen_parts
from smalti.cli.generate import show_progress
from smalti.cli.interrupt import loading_modules
from smalti.cli.output import check_writable, replace_file
from smalti.cli.picture_options import parse_size
from smalti.cli.run import opened
from smalti.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from smalti.runtime import Program


@click.command()
@click.argument("model", required=False)
@click.option("--part", default=None,
              help="Only one part of a checkpoint, such as text, unet or vae.")
@click.option("--size", default=None, metavar="WIDTH[xHEIGHT]",
              help="Pixels. Default: the model's own.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=NUMBERS",
              help="Shape of an input, or extent of a dimension, that an .onnx leaves open.")
@click.option("--device", default="cpu", show_default=True,
              help="One of `smalti devices`; on a GPU, times are by its clock.")
@click.option("--precision", default="f32", show_default=True,
              help="f32, bf16, int8, or f16 on a GPU.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--runs", type=click.IntRange(1, 1000), default=5, show_default=True,
              help="Runs that are timed, after one that is not.")
@click.option("--top", type=click.IntRange(0, 100_000), default=20, show_default=True,
              help="Kernels to print, the slowest first.")
@click.option("--trace", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="JSON to write for about:tracing or ui.perfetto.dev.")
def profile(model: str | None, part: str | None, size: str | None, shapes: tuple[str, ...],
            device: str, precision: str, threads: int | None, runs: int, top: int,
            trace: Path | None) -> None:
    """Time each kernel of MODEL against the peaks of this machine.

    MODEL is a checkpoint (default: the model that ships with Smalti), an .onnx file, or a name of
    the suite of `smalti bench`, which runs with seeded random weights.
    """
    wanted = parse_shapes(shapes)
    check_shapes(model, shapes)
    with loading_modules():
        from smalti import settings
        from smalti.benchmark import profile as profiling
        from smalti.benchmark import roofline as peaks
        from smalti.benchmark.suite import CASES
        from smalti.runtime.choice import chosen
        from smalti.runtime.cpu.program import NativeProgram
        from smalti.runtime.drivers import driver_of
        from smalti.runtime.gpu.program import DeviceProgram
    count = settings.threads() if threads is None else settings.checked_threads(threads)
    check_writable([trace] if trace else [])
    device = chosen(device)
    if not driver_of(device).runs(device):
        raise InputError("only kernels can be profiled, and there is no code for this CPU: it runs "
                         "the numpy reference")
    if model is not None and model not in CASES and not Path(model).exists():
        raise InputError(f"{model} is neither a file nor a model of the suite; the suite has "
                         f"{', '.join(CASES)}")
    fixed = model in CASES or is_onnx(model)
    if fixed and (part is not None or size is not None):
        what = "an .onnx file" if is_onnx(model) else "a model of the suite at a fixed shape"
        raise InputError(f"{model} is {what}; --part and --size are for checkpoints")
    if model is not None and model in CASES:
        programs = of_suite(model, precision, count, device)
    elif model is not None and is_onnx(model):
        programs = of_onnx(Path(model), wanted, precision, count, device)
    else:
        programs = of_checkpoint(model, part, size, precision, count, device)
    roofline: peaks.Roofline | None = None
    profiles = []
    for program, inputs in programs:
        say(f"running {program.name}")
        profiles.append(profiling.profiled(program, inputs, runs))
        before = roofline
        if isinstance(program, DeviceProgram):
            roofline = peaks.published(program.gpu.device, program.module.precision)
        elif isinstance(program, NativeProgram) and roofline is None:  # the input is good by now
            roofline = peaks.measure(program.module.target, precision, count)
        if roofline != before:
            click.echo(roofline)
        click.echo(f"\n{profiling.table(profiles[-1], roofline, top)}")
    if trace is not None:
        replace_file(trace, json.dumps(profiling.trace(profiles)).encode())


def of_suite(name: str, precision: str, threads: int,
             device: str = "cpu") -> Iterator[tuple[Program, dict[str, np.ndarray]]]:
    """A model of the suite, with its inputs."""
    from smalti.benchmark.suite import CASES
    from smalti.runtime import compile_graph

    case = CASES[name]
    program = compile_graph(case.graph(), precision=precision, threads=threads, held=case.held,
                            device=device)
    program.bind(case.read())
    yield program, case.inputs()


def is_onnx(model: str | None) -> bool:
    """True if the argument MODEL is the name of an ONNX file."""
    return model is not None and Path(model).suffix == ONNX


def check_shapes(model: str | None, shapes: tuple[str, ...]) -> None:
    """Raise InputError for --shape with a MODEL whose shapes it does not fix."""
    if shapes and not is_onnx(model):
        raise InputError("--shape is for .onnx models; give a checkpoint --size")


def of_onnx(model: Path, shapes: dict[str, tuple[int, ...] | int], precision: str, threads: int,
            device: str = "cpu") -> Iterator[tuple[Program, dict[str, np.ndarray]]]:
    """The program of an ONNX file, with random inputs.

    Raises InputError for one whose shapes depend on values: its kernels are known only as it runs.
    """
    from smalti.benchmark.profile import seeded_inputs

    program = opened(model, shapes, {}, precision, threads, False, device, to_run=True)
    show_progress("")
    if program.recipe is None:
        raise InputError(f"{model}: shapes depend on values, so it runs in stages; only a model of "
                         f"static shapes has kernels that can be timed and tuned")
    yield program, seeded_inputs(program)


def of_checkpoint(model: str | None, part: str | None, size: str | None, precision: str,
                  threads: int, device: str) -> Iterator[tuple[Program, dict[str, np.ndarray]]]:
    """The parts of a checkpoint one after the other, with random inputs."""
    from smalti.benchmark.profile import seeded_inputs

    width, height = parse_size(size)
    pipe = smalti.Pipeline.load(model, precision=precision, threads=threads,
                                progress=show_progress, device=device)
    for name in chosen_parts(pipe, part):
        program = pipe.program(name, width=width, height=height)
        show_progress("")
        yield program, seeded_inputs(program)
