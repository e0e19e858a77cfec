"""ControlNets of Qwen-Image: where they go, their unit, what programs and diffusers compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_regions import relative_error
from transformer_graphs import ALLOWED, bf16_error, check_program, gpu_error, with_texts
from transformer_peers import (
    TINY_QWEN_IMAGE,
    filled,
    packed,
    qwen_image_controlnet_module,
    qwen_image_module,
)
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.errors import InputError
from smalti.graph import evaluate, verify
from smalti.models import (
    QWEN_IMAGE,
    QwenImageControlNetConfig,
    qwen_image,
    qwen_image_control_places,
    qwen_image_controlnet,
    qwen_image_controlnet_graph,
    qwen_image_graph,
)
from smalti.runtime.gpu.interface import Gpu

CONTROL, MODEL = "control_model", "model.diffusion_model"
UNION = QwenImageControlNetConfig(**{**vars(TINY_QWEN_IMAGE), "blocks": 1}, hint_channels=4)
NETS = {"union": UNION, "inpaint": replace(UNION, hint_channels=5, blocks=2)}
WIDE = QwenImageControlNetConfig(hidden_size=128, heads=2, mlp_size=256, blocks=1, in_channels=4,
                                 out_channels=4, context_dim=24, axes=(16, 24, 24), hint_channels=4)
"""So wide that 128 tokens are stored as halves."""


def test_the_parameters_are_those_of_the_published_union() -> None:
    """181 tensors, 1.77 billion numbers."""
    config = QwenImageControlNetConfig(**{**vars(QWEN_IMAGE), "blocks": 5})
    graph = qwen_image_controlnet_graph(config, 1, 8, 8, 4)
    assert len(graph.parameters) == 181
    assert sum(value.type.size for value in graph.parameters.values()) == 1_768_003_584
    assert graph.parameters[f"{CONTROL}.controlnet_x_embedder.weight"].shape == (3072, 64)
    assert graph.parameters[f"{CONTROL}.controlnet_blocks.4.weight"].shape == (3072, 3072)


@pytest.mark.parametrize("name", NETS)
def test_the_program_computes_it(name: str) -> None:
    graph = qwen_image_controlnet_graph(NETS[name], 1, 4, 6, 5)
    verify(graph)
    check_program(graph)


def test_each_goes_behind_as_many_blocks_in_a_row() -> None:
    net = replace(UNION, blocks=5)
    places = qwen_image_control_places(net, QWEN_IMAGE)
    assert places == tuple(i // 12 for i in range(60))
    assert qwen_image_control_places(net, replace(QWEN_IMAGE, blocks=7)) == (0, 0, 1, 1, 2, 2, 3)


def test_the_unit_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a power of two: what the model is given is in the unit that its tokens are in."""
    found = []
    for unit in (1.0, qwen_image.STREAM_UNIT):
        monkeypatch.setattr(qwen_image, "STREAM_UNIT", unit)
        monkeypatch.setattr(qwen_image_controlnet, "STREAM_UNIT", unit)
        graph = qwen_image_controlnet_graph(UNION, 1, 6, 4, 5)
        found.append(evaluate(graph, *with_texts(graph, [5]))["control.0"] / np.float32(unit))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-5)


@pytest.mark.sweep
def test_wgsl_computes_it(webgpu: Gpu) -> None:  # noqa: F811  the fixture
    graph = qwen_image_controlnet_graph(WIDE, 1, 16, 16, 32)
    assert gpu_error(webgpu, graph, "f16", *with_texts(graph, [30])) < ALLOWED["f16"]


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ALLOWED)
def test_gpus_compute_it(vulkan: Gpu, precision: str) -> None:
    graph = qwen_image_controlnet_graph(WIDE, 1, 16, 16, 32)
    assert gpu_error(vulkan, graph, precision, *with_texts(graph, [30])) < ALLOWED[precision]


@pytest.mark.sweep
def test_bf16() -> None:
    graph = qwen_image_controlnet_graph(WIDE, 1, 16, 16, 32)
    assert bf16_error(graph, *with_texts(graph, [30])) < ALLOWED["bf16"]


def test_what_no_model_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"7 x 8 \(height x width\)"):
        qwen_image_controlnet_graph(UNION, 1, 7, 8, 5)
    with pytest.raises(InputError, match=r"axes of \(8, 12, 10\) channels do not make up .* 32"):
        qwen_image_controlnet_graph(replace(UNION, axes=(8, 12, 10)), 1, 8, 8, 5)


# ---------------------------------------------------------------------- beside diffusers


@pytest.mark.peers
@pytest.mark.parametrize("name", NETS)
def test_diffusers_computes_the_same(name: str) -> None:
    """What the net gives, for texts of a batch, and what the model makes of it."""
    import torch

    config, counts, (height, width) = NETS[name], [7, 12], (6, 10)
    net = filled(qwen_image_controlnet_module(config))
    model = filled(qwen_image_module(TINY_QWEN_IMAGE))
    weights = {f"{prefix}.{key}": tensor.numpy() for prefix, module in
               ((CONTROL, net), (MODEL, model)) for key, tensor in module.state_dict().items()}
    graph = qwen_image_controlnet_graph(config, 2, height, width, 12)
    assert {key: value.shape for key, value in graph.parameters.items()} == {
        key: array.shape for key, array in weights.items() if key.startswith(CONTROL)}
    inputs, _ = with_texts(graph, counts)
    found = evaluate(graph, inputs, weights)
    tensors = {key: torch.tensor(array) for key, array in inputs.items()}
    told = dict(encoder_hidden_states=tensors["context"], return_dict=False,
                encoder_hidden_states_mask=tensors["mask"].bool(),
                timestep=tensors["timesteps"] / 1000,
                img_shapes=[[(1, height // 2, width // 2)]] * 2)
    latent = packed(tensors["latent"])
    with torch.no_grad():
        samples = net(latent, packed(tensors["hint"]), 0.7, **told)
        expected = model(latent, controlnet_block_samples=samples, **told)[0].numpy()
    assert len(found) == len(samples) == config.blocks
    unit = np.float32(qwen_image.STREAM_UNIT)
    for array, tensor in zip(found.values(), samples, strict=True):
        assert relative_error(array / unit * np.float32(0.7), tensor.numpy()) <= 1e-4
    whole = qwen_image_graph(TINY_QWEN_IMAGE, 2, height, width, 12,
                             control=qwen_image_control_places(config, TINY_QWEN_IMAGE))
    given = {**inputs, **{key: array * np.float32(0.7) for key, array in found.items()}}
    prediction = evaluate(whole, {key: given[key] for key in whole.inputs}, weights)["prediction"]
    assert relative_error(packed(torch.tensor(prediction)).numpy(), expected) <= 1e-4
