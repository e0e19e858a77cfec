"""`smalti compile`: a model becomes an engine file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from smalti.cli.arrays import parse_shapes
from smalti.cli.bench import names
from smalti.cli.generate import show_progress
from smalti.cli.interrupt import loading_modules
from smalti.cli.output import check_apart, check_writable
from smalti.errors import InputError

if TYPE_CHECKING:
    from smalti.runtime.sources import Weights

ENGINE, ONNX = ".smalti", ".onnx"
"""Endings of names by which commands tell engine files and ONNX models from checkpoints."""


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="Engine file to write. Default: MODEL with .smalti for .onnx.")
@click.option("--target", default=None, metavar="TARGETS",
              help="avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16, neon, neon_dot, neon_bf16, "
                   "vulkan or wgpu for any GPU, or several with commas. Default: this CPU's "
                   "best.")
@click.option("--precision", default=None,
              help="f32, bf16 or int8. Default: f32, or that of a .smalti.")
@click.option("--threads", type=int, default=None,
              help="Threads to choose schedules for. Default: all cores.")
@click.option("--objective", default=None,
              help="latency, throughput or energy. Default: latency, or that of a .smalti.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=NUMBERS",
              help="Shape of an input, or extent of a dimension, that MODEL leaves open.")
@click.option("--weights", type=click.Path(path_type=Path), default=None, metavar="PATH",
              help="Weights instead of the model's own: .safetensors, a folder of them, .onnx or "
                   ".smalti.")
@click.option("--with-weights", is_flag=True, help="Also put the weights into the file.")
def compile(model: Path, output: Path | None, target: str | None, precision: str | None,
            threads: int | None, objective: str | None, shapes: tuple[str, ...],
            weights: Path | None, with_weights: bool) -> None:
    """Compile MODEL to an engine file, which starts at once.

    MODEL is an .onnx file, or an engine file (.smalti) to compile for other CPUs. The result runs
    with `smalti run` and smalti.load, with these weights or others.
    """
    wanted = parse_shapes(shapes)
    if not model.is_file():
        raise InputError(f"{model} is no file; the path of an .onnx or {ENGINE} file is expected")
    if output is None:
        output = model.with_suffix(ENGINE)
        if output == model:
            raise InputError(f"{model} is an engine file already; give another with -o")
    check_apart(output, model, weights)
    if output.suffix != ENGINE:
        raise InputError(f"the output is {output}; give a name that ends in {ENGINE}, by which "
                         f"`smalti run` knows an engine file")
    if target is not None and not names(target):
        raise InputError(f"--target is {target!r}; expected avx2, avx2_vnni, avx512, "
                         f"avx512_vnni, avx512_bf16, neon, neon_dot, neon_bf16, vulkan or wgpu, "
                         f"or several with commas")
    check_writable([output])
    with loading_modules():
        from smalti.runtime import engine_writer
        from smalti.runtime.cpu.adapter import best_level
        from smalti.runtime.cpu.recipe import recipe_of
        from smalti.runtime.engine_file import EngineFile
    targets = names(target) or tuple(level for level in [best_level()] if level)
    if not targets:
        raise InputError("this CPU has no level that Smalti compiles for; name some with --target, "
                         "such as --target avx2,neon")
    show_progress(f"reading {model}")
    if model.suffix == ENGINE:
        if wanted:
            raise InputError("the shapes of an engine file are fixed; give --shape with the model "
                             "that it was made from")
        file = EngineFile(model)
        recipe = recipe_of(file.graph, precision or file.about.precision, file.about.held, threads,
                           dict(file.about.weights), objective or file.about.objective)
        own: Weights | None = model if file.has_weights else None
        if with_weights and weights is None and own is None:
            raise InputError(f"{model} holds no weights; give --weights FILE: .safetensors, a "
                             f"folder of them, .onnx or .smalti")
    else:
        from smalti.frontend.onnx import load

        opened = load(model, shapes=wanted)
        recipe = recipe_of(opened.graph, precision or "f32", (), threads,
                           objective=objective or "latency")
        own = opened.parameters
    engine_writer.save(recipe, output, targets=targets, weights=weights or own,
                       with_weights=with_weights, progress=show_progress)
    show_progress("")
    click.echo(f"{output}: {', '.join(targets)}, {recipe.options.asked}, "
               f"{output.stat().st_size / 1e6:.2f} MB, "
               f"{'with' if with_weights else 'without'} weights")
