"""Whole models and random graphs on GPUs, through each language, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import HealthCheck, given, note
from interpreted_gpu import InterpretedGpu
from mixed_graphs import mixed_graphs
from native_regions import arrays_for, relative_error
from tiny_programs import MODELS, arrays
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.graph import Graph, evaluate
from smalti.runtime.gpu.compilation import compile_for
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.program import DeviceProgram

ALLOWED = {"f32": 1e-5, "f16": 2e-3}
EXAMPLES = 12


@pytest.fixture(scope="module", params=["interpreted", "vulkan", "webgpu"])
def gpu(request: pytest.FixtureRequest) -> Gpu:
    if request.param == "interpreted":
        return InterpretedGpu()
    return request.getfixturevalue(request.param)


def agreeing(gpu: Gpu, graph: Graph, precision: str, inputs: dict, parameters: dict,
             ) -> DeviceProgram:
    """The program of `graph`, which gives what its interpreter does."""
    expected = evaluate(graph, inputs, parameters)
    program = compile_for(gpu, graph, precision=precision)
    program.bind(parameters.__getitem__)
    found = program.run(inputs)
    for output, array in expected.items():
        error = relative_error(found[output], array)
        assert error < ALLOWED[precision], f"{output!r} is off by {error:.3g}\n{program.explain()}"
    if not isinstance(gpu, InterpretedGpu):
        again = program.run(inputs)
        assert all(found[name].tobytes() == again[name].tobytes() for name in expected)
    return program


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ALLOWED)
@pytest.mark.parametrize("model", MODELS)
def test_models(gpu: Gpu, model: str, precision: str) -> None:
    graph = MODELS[model]()
    program = agreeing(gpu, graph, precision, *arrays(graph))
    assert not any(region.form == "host" for region in program.module.regions)


@examples(EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mixed_graphs())
def test_random_graphs(gpu: Gpu, graph: Graph) -> None:
    note(f"{graph}")
    agreeing(gpu, graph, "f32", *arrays_for(graph))


def test_the_first_kernel_that_makes_nan_is_named(gpu: Gpu) -> None:
    g = Graph("bad")
    with g.scope("one"):
        x = g.apply("softmax", g.input("x", (4, 6)), axis=-1)
    with g.scope("two"):
        g.output("y", g.apply("mat_mul", x, g.parameter("w", (6, 5))))
    program = compile_for(gpu, g, precision="f32")
    program.bind({"two.w": np.ones((6, 5), np.float32)})
    assert "of one" in program.first_nonfinite({"x": np.full((4, 6), np.nan, np.float32)})
