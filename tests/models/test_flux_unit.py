"""FLUX.1 and what has its blocks: the unit of their tokens, and what drivers of GPUs compute of
them in halves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from native_regions import arrays_for
from transformer_graphs import ALLOWED, Arrays, bf16_error, gpu_error
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.graph import Graph, evaluate
from smalti.models import (
    ChromaConfig,
    Flux2Config,
    FluxConfig,
    FluxControlNetConfig,
    LongCatImageConfig,
    OvisImageConfig,
    chroma_graph,
    flux2_graph,
    flux_control_places,
    flux_controlnet_graph,
    flux_graph,
)
from smalti.runtime.compilation import compile_graph

SIZES = {"hidden_size": 128, "heads": 2, "double_blocks": 1, "single_blocks": 1, "context_dim": 24}
"""So wide that 192 tokens are stored as halves."""
LATENT = {"in_channels": 4, "out_channels": 4}
FLUX = {**SIZES, **LATENT, "axes": (8, 28, 28)}
FLUX1 = FluxConfig(**FLUX, mlp_size=384, pooled_dim=20)
NET = FluxControlNetConfig(**FLUX, mlp_size=384, pooled_dim=20, modes=7)
FLUX2 = Flux2Config(**SIZES, mlp_size=192, in_channels=8, out_channels=8, axes=(16, 16, 16, 16))
SHAPE = (1, 32, 20, 32)
"""A picture, height and width of its latent, tokens of the text."""
WIDE: dict[str, Callable[[], Graph]] = {
    "FLUX.1": partial(flux_graph, FLUX1, *SHAPE, modulated=True),
    "FLUX.1, vectors computed": partial(flux_graph, FLUX1, *SHAPE),
    "FLUX.1 Kontext": partial(flux_graph, FLUX1, 1, 20, 16, 32, modulated=True,
                              referenced=((16, 20),)),
    "FLUX.1, controlled": partial(flux_graph, FLUX1, *SHAPE, modulated=True,
                                  control=flux_control_places(NET, FLUX1)),
    "ControlNet of FLUX.1": partial(flux_controlnet_graph, NET, *SHAPE),
    "Chroma": partial(chroma_graph, ChromaConfig(**FLUX, mlp_size=384), *SHAPE, masked=True),
    "FLUX.2": partial(flux2_graph, FLUX2, 1, 10, 8, 32, referenced=((8, 10),)),
    "Ovis-Image": partial(flux_graph, OvisImageConfig(**FLUX, mlp_size=192), *SHAPE,
                          modulated=True),
    "LongCat-Image": partial(flux_graph, LongCatImageConfig(**FLUX, mlp_size=384), *SHAPE,
                             modulated=True),
}
EACH = pytest.mark.parametrize("name", WIDE)
LAST = ("_attn.proj.weight", "_mlp.2.weight", "linear2.weight")
"""What ends the names of the layers that attention and MLPs end with."""


@contextmanager
def in_unit(unit: float) -> Iterator[None]:
    """Tokens are kept in another unit."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FluxConfig, "unit", unit)
        yield


def usual(graph: Graph) -> tuple[Arrays, Arrays]:
    """Inputs and parameters of usual sizes; all tokens of the text are seen."""
    inputs, parameters = arrays_for(graph)
    if "mask" in inputs:
        inputs["mask"][:] = 1
    return inputs, parameters


def large(graph: Graph) -> tuple[Arrays, Arrays]:
    """Inputs and parameters that make sums of hundreds of thousands, a million at most: gates of
    about 300 for what is up to about 2,000."""
    inputs, parameters = usual(graph)
    for name, value in parameters.items():
        width, vectors = value.shape[-1], value.shape[0] // value.shape[-1]
        if name.endswith(LAST):
            parameters[name] = value * (np.float32(300) * np.float32(width**-0.5) / value.std())
        elif name.endswith("lin.weight"):
            gates = np.arange(vectors).repeat(width) % 3 == 2
            value[gates] *= np.float32(150)
    if "modulation" in inputs:
        numbers = np.arange(inputs["modulation"].shape[1])
        gates = (numbers % 3 == 2) & (numbers < len(numbers) - 2)
        inputs["modulation"] = inputs["modulation"] + np.float32(300) * gates[:, None]
    return inputs, parameters


def evaluated(graph: Graph, inputs: Arrays, parameters: Arrays) -> Arrays:
    """What the interpreter computes."""
    return evaluate(graph, inputs, parameters)


def compiled(graph: Graph, inputs: Arrays, parameters: Arrays, precision: str) -> Arrays:
    """What a CPU computes."""
    program = compile_graph(graph, precision=precision, threads=1)
    program.bind(parameters.__getitem__)
    return program.run(inputs)


@EACH
@pytest.mark.parametrize("run", [
    evaluated,
    *(pytest.param(partial(compiled, precision=precision), id=precision, marks=pytest.mark.sweep)
      for precision in ("f32", "bf16"))])
def test_the_unit_changes_no_bit(name: str, run: Callable[..., Arrays]) -> None:
    """It is a power of two, and norms read what is in it; controls are in it, too."""
    found = []
    for unit in (1.0, FluxConfig.unit):
        with in_unit(unit):
            graph = WIDE[name]()
        inputs, parameters = usual(graph)
        inputs |= {key: array * np.float32(unit) for key, array in inputs.items()
                   if key.startswith("control.")}
        found.append({key: array / np.float32(unit) if key.startswith("control.") else array
                      for key, array in run(graph, inputs, parameters).items()})
    assert FluxConfig.unit != 1
    for key, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][key])


def test_a_control_net_and_its_model_have_one_unit() -> None:
    """What a model makes of a picture does not depend on it."""
    found = []
    for unit in (1.0, FluxConfig.unit):
        with in_unit(unit):
            net = flux_controlnet_graph(NET, 1, 4, 6, 5)
            model = flux_graph(FLUX1, 1, 4, 6, 5, control=flux_control_places(NET, FLUX1))
        made = evaluate(net, *arrays_for(net))
        inputs, parameters = arrays_for(model)
        found.append(evaluate(model, {**inputs, **made}, parameters)["prediction"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)
    assert np.abs(evaluate(model, inputs, parameters)["prediction"] - found[1]).max() > 1e-3


@EACH
@pytest.mark.sweep
@pytest.mark.parametrize("device", ["vulkan", "webgpu"])
def test_large_sums_between_blocks_fit_f16(request: pytest.FixtureRequest, device: str,
                                           name: str) -> None:
    """Of hundreds of thousands, which do not in another unit."""
    gpu = request.getfixturevalue(device)
    for unit in (FluxConfig.unit, 1.0):
        with in_unit(unit):
            graph = WIDE[name]()
        error = gpu_error(gpu, graph, "f16", *large(graph))
        assert (error < ALLOWED["f16"]) == (unit != 1), error


@EACH
@pytest.mark.sweep
@pytest.mark.parametrize(("device", "precision"), [
    ("vulkan", "f16"), ("vulkan", "bf16"), ("webgpu", "f16")])
def test_gpus_compute_it(request: pytest.FixtureRequest, device: str, precision: str,
                         name: str) -> None:
    graph = WIDE[name]()
    gpu = request.getfixturevalue(device)
    assert gpu_error(gpu, graph, precision, *usual(graph)) < ALLOWED[precision]


@EACH
@pytest.mark.sweep
def test_bf16(name: str) -> None:
    graph = WIDE[name]()
    assert bf16_error(graph, *usual(graph)) < ALLOWED["bf16"]
