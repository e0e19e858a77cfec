"""Engine files: a compiled program as one file, for this machine or another, without its weights.

    program.save("model.smalti", targets=("avx2", "avx512"))
    program = smalti.load("model.smalti")            # no compilation
    program.bind("model.safetensors")

A file is machine code: load only what you would also run as a program. `recompile=True` takes
nothing but the graph from it, and is safe with any file.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

from smalti import settings
from smalti.compiler.module import Module
from smalti.compiler.targets import TARGETS
from smalti.compiler.targets import target as target_named
from smalti.errors import EngineError
from smalti.runtime.choice import chosen
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu.adapter import available_levels, cpu, feature_level
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.cpu.recipe import recipe_of
from smalti.runtime.drivers import driver_of
from smalti.runtime.engine_file import ANEW, EngineFile
from smalti.runtime.inputs import checked_path
from smalti.runtime.interface import Program

if TYPE_CHECKING:
    from smalti.runtime.gpu.interface import Gpu


def load(path: str | PathLike, *, device: str = "auto", threads: int | None = None,
         recompile: bool = False,
         progress: Callable[[int, int], None] | None = None) -> Program:
    """The program in an engine file, for this machine; with its weights where they are embedded.

    `device` is one of `smalti.devices()`; "auto" is the fastest that the file has code for. With
    `recompile` only the graph of the file is used, and compiled here and now; `progress` is
    called with (kernels done, kernels) then. Raises EngineError for a file that is damaged, of
    another version, or without code that the device runs; InputError for an unknown device.

    >>> import os, tempfile
    >>> import numpy as np
    >>> from smalti.graph import Graph
    >>> graph = Graph("twice")
    >>> x = graph.input("x", (2, 16))
    >>> graph.output("y", x + x)
    >>> path = os.path.join(tempfile.mkdtemp(), "twice.smalti")
    >>> compile_graph(graph, threads=1).save(path)
    >>> float(load(path).run({"x": np.ones((2, 16), np.float32)})["y"].sum())
    64.0
    """
    file = EngineFile(checked_path(path, "load", "the path of an engine file (.smalti)"))
    about = file.about
    if device != "auto" or recompile:
        device = chosen(device)
    if recompile:
        program = compile_graph(file.graph, precision=about.precision, threads=threads,
                                held=about.held, weights=dict(about.weights),
                                objective=about.objective, progress=progress, device=device)
    elif (found := _gpu_here(file, device)) is not None:
        program = _on_gpu(file, *found, threads)
    else:
        name = _target_here(file)
        recipe = recipe_of(file.graph, about.precision, about.held, threads, dict(about.weights),
                           about.objective, name)
        program = NativeProgram(file.module(name), recipe.options.threads, recipe)
    if file.has_weights:
        program.bind(file.array, file.drop)
    return program


def _on_gpu(file: EngineFile, gpu: Gpu, module: Module, threads: int | None) -> Program:
    """The program of a module that a file has for a GPU; it is compiled anew where the device is
    not to be trusted with it as it is."""
    from smalti.runtime.doctor.first_use import trusted  # GPUs alone need these
    from smalti.runtime.gpu.compilation import program_of
    from smalti.runtime.gpu.recipe import recipe_for

    about = file.about
    if not trusted(gpu, module):
        return compile_graph(file.graph, precision=about.precision, held=about.held,
                             threads=threads, weights=dict(about.weights),
                             objective=about.objective, device=gpu.device.id)
    return program_of(module, gpu, recipe_for(
        gpu, file.graph, precision=about.precision, held=about.held, threads=threads,
        weights=dict(about.weights), objective=about.objective))


def _gpu_here(file: EngineFile, device: str) -> tuple[Gpu, Module] | None:
    """The GPU to run a file on, and its module: the one that is asked for, or the fastest device,
    where the file has code for it; None for the CPU. Raises EngineError where a GPU is asked for
    that has no code."""
    held = {TARGETS[name].driver for name in file.targets if name in TARGETS}
    asked = device
    if device == "auto":
        device = chosen("auto") if held - {"cpu"} else "cpu"
    opened = driver_of(device).opened
    if opened is None:
        return None
    gpu = opened(device)
    name = gpu.target.name
    module = file.module(name) if name in file.targets else None
    if module is not None and gpu.limits.covers(module.limits or gpu.target.least):
        return gpu, module
    if asked == "auto":
        return None
    holds = ", ".join(file.targets) or "nothing"
    why = (f"its code for {name} was made for a device that can do more than {gpu.device.name}"
           if module is not None else f"it holds code for {holds}, and {asked} runs {name}")
    driver = gpu.target.driver
    needed = driver if target_named(driver) is gpu.target else shlex.quote(name)
    raise EngineError(f"{file.path}: {why}; make the file again with `smalti compile --target "
                      f"{needed}`, or {ANEW}")


def _target_here(file: EngineFile) -> str:
    """The best feature level that both this CPU and the file have, or the one asked for."""
    here = set(available_levels())
    wanted = settings.target()
    if wanted is not None:
        here &= {feature_level(wanted).name}
    fitting = [name for name in TARGETS if name in here and name in file.targets]
    if not fitting:
        has = f"SMALTI_TARGET asks for {wanted}" if wanted else (
            f"{cpu().name} has {', '.join(sorted(here)) or 'none that Smalti compiles for'}")
        raise EngineError(f"{file.path} holds code for {', '.join(file.targets) or 'nothing'}, and "
                          f"{has}; make the file again with `smalti compile --target`, or {ANEW}")
    return fitting[-1]
