"""FLUX.2: parameters, where tokens stand, what programs compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from native_regions import LEVELS, arrays_for, check_graph
from transformer_graphs import ALLOWED, check_program, gpu_error
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.errors import InputError
from smalti.graph import Graph, evaluate, verify
from smalti.models import (
    FLUX2_DEV,
    FLUX2_KLEIN_4B,
    FLUX2_KLEIN_9B,
    Flux2Config,
    flux2_graph,
)
from smalti.models.config import FLUX2_VAE
from smalti.models.vae import vae_decoder_graph, vae_encoder_graph
from smalti.runtime.gpu.interface import Gpu

TINY = Flux2Config(hidden_size=64, heads=2, mlp_size=96, double_blocks=1, single_blocks=2,
                   in_channels=8, out_channels=8, context_dim=24, axes=(8, 8, 8, 8))
WIDE = Flux2Config(hidden_size=128, heads=2, mlp_size=384, double_blocks=1, single_blocks=1,
                   in_channels=8, out_channels=8, context_dim=24, axes=(16, 16, 16, 16))
"""So wide that its tokens are stored as halves."""


@pytest.mark.parametrize(("config", "numbers"), [
    (FLUX2_KLEIN_4B, 3.88e9), (FLUX2_KLEIN_9B, 9.08e9), (FLUX2_DEV, 32.2e9)])
def test_the_parameters_are_those_of_the_checkpoint(config: Flux2Config, numbers: float) -> None:
    graph = flux2_graph(config, 1, 4, 4, 4)
    verify(graph)
    shapes = [value.shape for value in graph.parameters.values()]
    assert sum(map(math.prod, shapes)) == pytest.approx(numbers, rel=0.002)
    assert not any(name.endswith(".bias") for name in graph.parameters)
    assert any("guidance_in" in name for name in graph.parameters) == (config is FLUX2_DEV)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LEVELS)
def test_native_code_computes_it(name: str) -> None:
    check_graph(flux2_graph(TINY, 2, 3, 4, 5), name)


def test_the_program_computes_it() -> None:
    check_program(flux2_graph(TINY, 1, 3, 5, 7))


def test_tokens_of_the_text_stand_in_their_order() -> None:
    """Those of Flux.1 all stand at one place."""
    graph = flux2_graph(TINY, 1, 2, 2, 6)
    inputs, parameters = arrays_for(graph)
    found = evaluate(graph, inputs, parameters)["prediction"]
    inputs["context"] = inputs["context"][:, ::-1]
    other = evaluate(graph, inputs, parameters)["prediction"]
    assert np.abs(found - other).max() > 1e-4


def test_other_pictures_are_tokens_behind_the_first() -> None:
    """They are read by img_in, too, and stand elsewhere: their order matters."""
    graph = flux2_graph(TINY, 1, 2, 3, 4, referenced=((4, 1), (4, 1)))
    assert graph.inputs["reference.1"].shape == (1, TINY.in_channels, 4, 1)
    assert graph.outputs["prediction"].shape == (1, TINY.out_channels, 2, 3)
    assert set(graph.parameters) == set(flux2_graph(TINY, 1, 2, 3, 4).parameters)
    inputs, parameters = arrays_for(graph)
    found = evaluate(graph, inputs, parameters)["prediction"]
    other = evaluate(graph, {**inputs, "reference.0": inputs["reference.1"],
                             "reference.1": inputs["reference.0"]}, parameters)["prediction"]
    assert np.abs(found - other).max() > 1e-4


@pytest.mark.sweep
@pytest.mark.parametrize(("driver", "precision"), [
    ("vulkan", "f16"), ("vulkan", "bf16"), ("webgpu", "f16")])
def test_gpus_compute_it_in_halves(request: pytest.FixtureRequest, driver: str,
                                   precision: str) -> None:
    graph = flux2_graph(WIDE, 1, 8, 8, 64, referenced=((8, 8),))
    found = gpu_error(request.getfixturevalue(driver), graph, precision, *arrays_for(graph))
    assert found <= ALLOWED[precision]


@pytest.mark.sweep
@pytest.mark.parametrize("half", [vae_decoder_graph, vae_encoder_graph])
def test_gpus_compute_the_autoencoder(vulkan: Gpu, half: Callable[..., Graph]) -> None:
    config = replace(FLUX2_VAE, channels=32, block_channels=(32, 32), res_blocks=1)
    graph = half(config, 1, 4, 8)
    inputs, parameters = arrays_for(graph)
    parameters["first_stage_model.bn.running_var"] = np.abs(
        parameters["first_stage_model.bn.running_var"]) + 1
    assert gpu_error(vulkan, graph, "bf16", inputs, parameters) <= ALLOWED["bf16"]


def test_axes_that_make_up_no_head_are_refused() -> None:
    with pytest.raises(InputError, match=r"axes of \(8, 8, 8\) channels do not make up .* 32"):
        flux2_graph(Flux2Config(64, 2, 96, axes=(8, 8, 8)), 1, 2, 2, 3)
