"""`smalti run`: a model or an engine file on arrays from files."""

from __future__ import annotations

import importlib
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smalti.cli.arrays import (
    check_results,
    parse_shapes,
    random_inputs,
    read_inputs,
    write_outputs,
)
from smalti.cli.compile import ENGINE
from smalti.cli.generate import show_progress
from smalti.cli.interrupt import loading_modules
from smalti.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from smalti.runtime import Program


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("inputs", nargs=-1, metavar="[NAME=FILE.npy | FILE.npz]...")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, metavar="PATH",
              help="Folder for a .npy file of each result, or a .npz file. Default: print ranges.")
@click.option("--weights", type=click.Path(path_type=Path), default=None, metavar="PATH",
              help="Weights to bind: .safetensors, a folder of them, .onnx or .smalti. Default: "
                   "the model's own.")
@click.option("--recompile", is_flag=True,
              help="Of an engine file, use the graph only and compile it here.")
@click.option("--random", is_flag=True, help="Random inputs instead of files, for a try.")
@click.option("--runs", type=click.IntRange(1, 100_000), default=1, show_default=True,
              help="Runs; the median of their times is printed.")
@click.option("--device", default="auto", show_default=True,
              help="One of `smalti devices`; an engine file has to hold code for it.")
@click.option("--precision", default=None,
              help="Of an .onnx: f32, bf16, int8, or f16 on a GPU. Default: f32.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=NUMBERS",
              help="Shape of an input, or extent of a dimension, that an .onnx leaves open.")
def run(model: Path, inputs: tuple[str, ...], output: Path | None, weights: Path | None,
        recompile: bool, random: bool, runs: int, device: str, precision: str | None,
        threads: int | None, shapes: tuple[str, ...]) -> None:
    """Run MODEL on arrays from files.

    MODEL is an .onnx file or an engine file (.smalti). Prints the range of each result, and on
    standard error how long everything took.
    """
    wanted = parse_shapes(shapes)
    if output is not None:
        check_results(output)
    if random and inputs:
        raise InputError("--random makes all inputs; give it, or files")
    given = read_inputs(inputs)
    started = time.perf_counter()
    with loading_modules():
        importlib.import_module("smalti.runtime")
    imported = time.perf_counter()
    show_progress(f"loading {model}")
    program = opened(model, wanted, given, precision, threads, recompile, device, to_run=True)
    loaded = time.perf_counter()
    if weights is not None:
        show_progress(f"loading {weights}")
        program.bind(weights)
    elif not program.bound:
        raise InputError(f"{model} holds no weights; give --weights FILE: .safetensors, a folder "
                         f"of them, .onnx or .smalti")
    bound = time.perf_counter()
    if random:
        given = random_inputs(*inputs_of(program), program.arena_bytes)
    elif set(given) != set(program.inputs):
        raise InputError(missing_inputs(program, given))
    show_progress(f"running {program.name}")
    seconds = []
    for _ in range(runs):
        before = time.perf_counter()
        outputs = program.run(given)
        seconds.append(time.perf_counter() - before)
    show_progress("")
    report(outputs, write_outputs(output, outputs) if output is not None else [])
    parts = [("imports", imported - started), ("load", loaded - imported)]
    parts += [("bind", bound - loaded)] * (weights is not None) + [("first run", seconds[0])]
    parts += [(f"median of {runs} runs", sorted(seconds)[runs // 2])] * (runs > 1)
    click.echo(", ".join(f"{name} {show_seconds(value)}" for name, value in parts), err=True)


def opened(model: Path, shapes: dict, given: dict[str, np.ndarray], precision: str | None,
           threads: int | None, recompile: bool, device: str = "cpu",
           objective: str | None = None, to_run: bool = False) -> Program:
    """Compile or load the program of a model file; its own weights are bound.

    Dimensions that a model leaves open are those of the arrays given. Where it is `to_run` here,
    inputs and outputs that free memory cannot hold are refused before anything is compiled.
    """
    def progress(done: int, total: int) -> None:
        show_progress(f"compiling {model.name}: {done} of {total}")

    if model.suffix == ENGINE:
        from smalti.runtime import load

        if shapes:
            raise InputError("the shapes of an engine file are fixed; give --shape with the model "
                             "that it was made from")
        if precision is not None:
            raise InputError("an engine file has the precision that it was compiled for; give "
                             "--precision to `smalti compile`")
        if objective is not None:
            raise InputError("an engine file has the objective that it was compiled for; give "
                             "--objective to `smalti compile`")
        return load(model, device=device, threads=threads, recompile=recompile,
                    progress=progress)
    from smalti.frontend.onnx import load as load_onnx
    from smalti.runtime.choice import chosen
    from smalti.runtime.cpu.memory import check_free
    from smalti.runtime.models import compile_model

    if recompile:
        raise InputError(f"--recompile is for engine files; {model} is compiled anyway")
    shapes = {**{name: array.shape for name, array in given.items()}, **shapes}
    loaded = load_onnx(model, shapes)
    if to_run and loaded.static:
        ends = (*loaded.graph.inputs.values(), *loaded.graph.outputs.values())
        check_free(sum(value.type.bytes for value in ends), "the inputs and outputs take",
                   "choose smaller shapes")
    return compile_model(loaded, precision=precision or "f32", threads=threads,
                         progress=progress, device=chosen(device),
                         objective=objective or "latency")


def inputs_of(program: Program) -> tuple[dict[str, tuple[tuple[int, ...], str]], dict[str, int]]:
    """(shape, dtype) of each input of a program, and of inputs that index a table: its rows.

    Raises InputError for an input that is no array."""
    if program.recipe is not None:
        values = program.recipe.graph.inputs
        types = {name: (value.shape, value.dtype) for name, value in values.items()}
        return types, dict(program.rows)
    from smalti.runtime.staged import StagedProgram

    if not isinstance(program, StagedProgram):
        raise InputError(f"{program.name}: of this program no inputs are known")
    found = {}
    for name, type in program.model.inputs.items():
        if type is None:
            raise InputError(f"the input {name!r} is no array of numbers; run this model from "
                             f"Python")
        found[name] = (type.shape, type.dtype)
    return found, {}


def missing_inputs(program: Program, given: Collection[str]) -> str:
    """The message for missing or unknown inputs: what the program takes, and how to give it."""
    types, _ = inputs_of(program)
    listed = ", ".join(f"{name} {dtype}{list(shape)}" for name, (shape, dtype) in types.items())
    files = " ".join(f"{name}=FILE.npy" for name in types)
    return (f"{program.name} has the inputs {listed or 'none'}; "
            f"{', '.join(given) or 'none'} given. Give {files or 'none'}, or --random for a try")


def report(outputs: dict[str, np.ndarray], files: list[Path]) -> None:
    """Print a line for each result: its type and range, and the file it was written to."""
    import numpy as np

    for number, (name, array) in enumerate(outputs.items()):
        array = np.asarray(array)
        text = f"{name}: {array.dtype}{list(array.shape)}"
        if array.size and array.dtype.kind in "fiub":
            wide = array.astype(np.float64)
            text += f", {wide.min():.6g} to {wide.max():.6g}, mean {wide.mean():.6g}"
        if files:
            text += f" -> {files[number] if len(files) > 1 else files[0]}"
        click.echo(text)


def show_seconds(value: float) -> str:
    """Seconds in a unit that fits.

    >>> show_seconds(0.00123), show_seconds(2.5)
    ('1.23 ms', '2.50 s')
    """
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"
