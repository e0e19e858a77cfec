"""Compiles the graph of a transformer whole and compares what it computes with the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from native_regions import arrays_for, relative_error

from smalti.compiler.module import HostCall
from smalti.graph import Graph, evaluate
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.gpu.compilation import compile_for
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.interface import Program

ALLOWED = {"f16": 2e-3, "bf16": 1e-2}
"""Errors of halves."""

Arrays = dict[str, np.ndarray]


def with_texts(graph: Graph, counts: Sequence[int], zeros: bool = True) -> tuple[Arrays, Arrays]:
    """Inputs with texts of these numbers of tokens, with `zeros` behind them, and parameters."""
    inputs, parameters = arrays_for(graph)
    mask = np.arange(inputs["mask"].shape[1]) < np.array(counts)[:, None]
    inputs["mask"] = mask.astype(np.float32)
    if zeros:
        inputs["context"] *= inputs["mask"][:, :, None]
    if "timesteps" in inputs:
        inputs["timesteps"] = np.linspace(1000, 200, len(counts)).astype(np.float32)
    return inputs, parameters


def check_texts_alone(make: Callable[[int, int], Graph], counts: Sequence[int],
                      inputs: Arrays, parameters: Arrays) -> None:
    """Assert that rows of a batch, with texts of these numbers of tokens, are computed as if each
    were alone; `make` gives the graph of a number of rows and of tokens in each."""
    graph = make(len(counts), max(counts))
    found = evaluate(graph, inputs, parameters)["prediction"]
    for row, count in enumerate(counts):
        alone = {name: array[row:row + 1] for name, array in inputs.items()}
        alone["context"], alone["mask"] = alone["context"][:, :count], alone["mask"][:, :count]
        expected = evaluate(make(1, count), alone, parameters)["prediction"][0]
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-5)


def published(graph: Graph) -> tuple[Arrays, Arrays]:
    """Inputs of Z-Image and its kin, and parameters of the size that those of published models
    have; norms make what enters a half of a block large, and large what leaves it."""
    random = np.random.default_rng(0)
    inputs, parameters = arrays_for(graph)
    if "mask" in inputs:
        inputs["mask"][:], inputs["timesteps"][:] = 1, 500
    sizes = {"ffn_norm1": 300, "attention_norm1": 100, "norm2": 30_000}
    for name, value in parameters.items():
        noise = random.standard_normal(value.shape, np.float32)
        if value.ndim == 2:
            parameters[name] = noise / np.float32(value.shape[1] ** 0.5)
        else:
            size = next((size for end, size in sizes.items() if f"{end}.weight" in name), 1)
            parameters[name] = (float(name.endswith("weight")) + noise / 10) * np.float32(size)
    return inputs, parameters


def check_program(graph: Graph, error_max: float = 1e-5) -> NativeProgram:
    """Assert that kernels compute all of `graph`, as the interpreter does."""
    inputs, parameters = arrays_for(graph)
    program = compile_graph(graph, threads=1)
    assert isinstance(program, NativeProgram)
    calls = [launch for launch in program.module.launches if isinstance(launch, HostCall)]
    assert not calls, [call.operation for call in calls]
    program.bind(parameters.__getitem__)
    found = program.run(inputs)
    for name, expected in evaluate(graph, inputs, parameters).items():
        assert relative_error(found[name], expected) < error_max
    return program


def bf16_error(graph: Graph, inputs: Arrays, parameters: Arrays) -> float:
    """The error of the first output that the CPU computes in bf16."""
    program = compile_graph(graph, precision="bf16", threads=1)
    return _error(program, graph, inputs, parameters)


def gpu_error(gpu: Gpu, graph: Graph, precision: str, inputs: Arrays, parameters: Arrays) -> float:
    """The error of the first output that a GPU computes."""
    return _error(compile_for(gpu, graph, precision=precision), graph, inputs, parameters)


def _error(program: Program, graph: Graph, inputs: Arrays, parameters: Arrays) -> float:
    name = next(iter(graph.outputs))
    program.bind(parameters.__getitem__)
    return relative_error(program.run(inputs)[name], evaluate(graph, inputs, parameters)[name])
