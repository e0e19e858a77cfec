"""Programs of a GPU: the module, made or found in the cache, and what the driver makes of its
shaders, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor

from smalti import settings
from smalti.compiler.module import Module
from smalti.compiler.options import ALL_F32, ALL_ROUNDED
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.runtime.doctor.first_use import begin, trusted
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.program import DeviceProgram
from smalti.runtime.gpu.recipe import recipe_for
from smalti.runtime.interface import Program
from smalti.runtime.recipe import Recipe, nothing_missing

PRECISIONS = ("auto", "f32", "f16", "bf16")


def compile_for(gpu: Gpu, graph: Graph, *, precision: str = "auto", held: Collection[str] = (),
                threads: int | None = None, target: str | None = None,
                weights: Mapping[str, str] = ALL_F32, objective: str = "latency",
                progress: Callable[[int, int], None] | None = None,
                like: Program | None = None,
                kept: Mapping[str, str] = ALL_ROUNDED,
                missing: Callable[[], None] = nothing_missing) -> DeviceProgram:
    """A program that computes `graph` on `gpu`.

    `precision` "f16" stores values between kernels and weights of products as f16, "bf16" as that,
    where the device stores 16 bits; sums, statistics, softmax, inputs and outputs are f32. "auto"
    is f16 where the device has it, else f32. The other options are as for `compile_graph`; `like`
    is of use in `bind` only, `kept` with a precision of CPUs. Raises InputError for an unknown
    precision or one that the device lacks, UnsupportedError for what it has no room for,
    DeviceError for a GPU that computes something else than the CPU.
    """
    if target not in (None, gpu.target.name):
        raise InputError(f"{gpu.device.id} runs {gpu.target.name}, not {target}; give no target")
    begin(gpu)
    while True:
        recipe = recipe_for(gpu, graph, precision=precision, held=held, threads=threads,
                            weights=weights, objective=objective)
        module = recipe.module(gpu.target, progress=progress, missing=missing)
        if trusted(gpu, module):  # else it has fewer limits from now on
            return program_of(module, gpu, recipe)


def program_of(module: Module, gpu: Gpu, recipe: Recipe) -> DeviceProgram:
    """A module as a program of `gpu`, whose driver compiles several shaders at a time."""
    with ThreadPoolExecutor(settings.threads()) as pool:
        pipelines = list(pool.map(gpu.build, module.shaders,
                                  map(module.code_of, range(len(module.shaders)))))
    return DeviceProgram(module, gpu, pipelines, recipe)
