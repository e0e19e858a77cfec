"""Ovis-Image and LongCat-Image, which have the blocks of FLUX.1: their unit, and what drivers of
GPUs compute of them in halves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from native_regions import arrays_for
from transformer_graphs import ALLOWED, Arrays, bf16_error, gpu_error
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.graph import Graph, evaluate
from smalti.models import FluxConfig, LongCatImageConfig, OvisImageConfig, flux_graph

SIZES = {"hidden_size": 128, "heads": 2, "double_blocks": 1, "single_blocks": 1, "in_channels": 4,
         "out_channels": 4, "context_dim": 24, "axes": (8, 28, 28)}
WIDE = {"Ovis-Image": OvisImageConfig(**SIZES, mlp_size=192),
        "LongCat-Image": LongCatImageConfig(**SIZES, mlp_size=384)}
"""So wide that 192 tokens are stored as halves."""
EACH = pytest.mark.parametrize("name", WIDE)
LAST = ("_attn.proj.weight", "_mlp.2.weight", "linear2.weight")
"""What ends the names of the layers that attention and MLPs end with."""


def graph_of(config: FluxConfig) -> Graph:
    """As it is compiled: vectors that modulate are an input."""
    return flux_graph(config, 1, 32, 20, 32, modulated=True)


@contextmanager
def in_unit(config: FluxConfig, unit: float) -> Iterator[None]:
    """Tokens are kept in another unit."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(config), "unit", unit)
        yield


def large(config: FluxConfig, graph: Graph) -> tuple[Arrays, Arrays]:
    """Inputs and parameters that make sums of hundreds of thousands: gates of 300 for what is up to
    about 2,000."""
    inputs, parameters = arrays_for(graph)
    for name, value in parameters.items():
        if name.endswith(LAST):
            spread = np.float32(value.shape[1] ** -0.5)
            parameters[name] = value * (np.float32(300) * spread / value.std())
    numbers = np.arange(config.modulations)
    gates = (numbers % 3 == 2) & (numbers < config.modulations - 2)
    inputs["modulation"] = inputs["modulation"] + np.float32(300) * gates[:, None]
    return inputs, parameters


@EACH
def test_the_unit_changes_no_number(name: str) -> None:
    """It is a power of two, and norms read what is in it."""
    found = []
    for unit in (1.0, WIDE[name].unit):
        with in_unit(WIDE[name], unit):
            graph = flux_graph(WIDE[name], 1, 6, 4, 5)
            found.append(evaluate(graph, *arrays_for(graph))["prediction"])
    assert WIDE[name].unit != 1
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


@EACH
@pytest.mark.sweep
@pytest.mark.parametrize("device", ["vulkan", "webgpu"])
def test_large_sums_between_blocks_fit_f16(request: pytest.FixtureRequest, device: str,
                                           name: str) -> None:
    """Of hundreds of thousands, which do not in another unit."""
    gpu, config = request.getfixturevalue(device), WIDE[name]
    for unit in (config.unit, 1.0):
        with in_unit(config, unit):
            graph = graph_of(config)
            error = gpu_error(gpu, graph, "f16", *large(config, graph))
            assert (error < ALLOWED["f16"]) == (unit != 1)


@EACH
@pytest.mark.sweep
@pytest.mark.parametrize(("device", "precision"), [
    ("vulkan", "f16"), ("vulkan", "bf16"), ("webgpu", "f16")])
def test_gpus_compute_it(request: pytest.FixtureRequest, device: str, precision: str,
                         name: str) -> None:
    graph = graph_of(WIDE[name])
    gpu = request.getfixturevalue(device)
    assert gpu_error(gpu, graph, precision, *arrays_for(graph)) < ALLOWED[precision]


@EACH
@pytest.mark.sweep
def test_bf16(name: str) -> None:
    graph = graph_of(WIDE[name])
    assert bf16_error(graph, *arrays_for(graph)) < ALLOWED["bf16"]
