"""ControlNets of Z-Image: where they go, their unit, what programs and diffusers compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_regions import relative_error
from transformer_graphs import (
    ALLOWED,
    bf16_error,
    check_program,
    gpu_error,
    published,
    with_texts,
)
from transformer_peers import (
    TINY_Z_IMAGE,
    filled,
    weights_of,
    z_image_controlnet_module,
    z_image_module,
)
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.errors import InputError
from smalti.families.keys import Z_IMAGE_CONTROLNET_DIFFUSERS, Z_IMAGE_DIFFUSERS
from smalti.graph import Graph, evaluate, verify
from smalti.models import (
    Z_IMAGE,
    ZImageConfig,
    ZImageControlNetConfig,
    z_image,
    z_image_control_places,
    z_image_controlnet,
    z_image_controlnet_graph,
    z_image_graph,
)
from smalti.runtime.gpu.interface import Gpu

CONTROL, MODEL = "control_model", "model.diffusion_model"
FIRST = ZImageControlNetConfig(**{**vars(TINY_Z_IMAGE), "blocks": 1}, hint_channels=4)
NETS = {"1.0": FIRST,
        "2.0": replace(FIRST, blocks=2, refining="layers", refiners=0, hint_channels=9),
        "2.1": replace(FIRST, blocks=2, refining="steering", hint_channels=9)}
WIDE = replace(TINY_Z_IMAGE, hidden_size=128, mlp_size=256, axes=(16, 24, 24), vector_size=32,
               blocks=1)
"""So wide that its tokens are stored as halves."""


def wide(refining: str = "steering") -> Graph:
    config = ZImageControlNetConfig(**vars(WIDE), hint_channels=9, refining=refining)
    return z_image_controlnet_graph(config, WIDE, 1, 16, 16, 32)


def test_the_parameters_are_those_of_the_published_unions() -> None:
    """Six blocks and two that refine, of 16 channels; 15 and two that steer, of 33."""
    first = ZImageControlNetConfig(**{**vars(Z_IMAGE), "blocks": 6})
    newer = replace(first, blocks=15, hint_channels=33, refining="steering")
    block, outside = 13, 2  # tensors, with queries, keys and values in one matrix
    for config, projections in ((first, 2 * 7), (newer, 2 * (15 + 1) + 2 * (2 + 1))):
        graph = z_image_controlnet_graph(config, Z_IMAGE, 1, 8, 8, 4)
        own = [name for name in graph.parameters if name.startswith(CONTROL)]
        assert len(own) == block * (config.blocks + 2) + projections + outside
        assert graph.parameters[f"{CONTROL}.control_all_x_embedder.2-1.weight"].shape == (
            3840, 4 * config.hint_channels)


@pytest.mark.parametrize("name", [
    "1.0", pytest.param("2.0", marks=pytest.mark.sweep), "2.1"])
def test_the_program_computes_it(name: str) -> None:
    graph = z_image_controlnet_graph(NETS[name], TINY_Z_IMAGE, 1, 4, 6, 5)
    verify(graph)
    check_program(graph)


@pytest.mark.parametrize(("blocks", "places"), [
    (6, range(0, 30, 5)), (15, range(0, 30, 2)), (3, (0, 10, 20))])
def test_blocks_are_spread_as_those_that_were_published(blocks: int, places: range) -> None:
    config = ZImageControlNetConfig(**{**vars(Z_IMAGE), "blocks": blocks})
    found = z_image_control_places(config, Z_IMAGE)
    assert [i for i, place in enumerate(found) if place >= 0] == list(places)
    assert [place for place in found if place >= 0] == list(range(blocks))


def test_what_is_stated_decides_where_they_go() -> None:
    config = replace(FIRST, blocks=2, places=(0, 4))
    assert z_image_control_places(config, replace(TINY_Z_IMAGE, blocks=5)) == (0, -1, -1, -1, 1)
    with pytest.raises(InputError, match="adds something behind block 4; the model has blocks 0"):
        z_image_control_places(config, TINY_Z_IMAGE)


def test_controls_are_added_behind_their_blocks() -> None:
    """To tokens of the text, too."""
    graph = z_image_graph(TINY_Z_IMAGE, 1, 4, 4, 40, control=(-1, 0))
    assert graph.inputs["control.0"].shape == (1, 64 + 32, 64)
    inputs, parameters = with_texts(graph, [40])
    plain = {name: array for name, array in inputs.items() if name != "control.0"}
    expected = evaluate(z_image_graph(TINY_Z_IMAGE, 1, 4, 4, 40), plain, parameters)["prediction"]
    nothing = {**plain, "control.0": inputs["control.0"] * 0}
    np.testing.assert_array_equal(evaluate(graph, nothing, parameters)["prediction"], expected)
    assert relative_error(evaluate(graph, inputs, parameters)["prediction"], expected) > 0.01
    with pytest.raises(InputError, match="are given for 2 blocks"):
        z_image_graph(TINY_Z_IMAGE, 1, 4, 4, 40, control=(0,))


def test_the_unit_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for unit in (1.0, z_image.STREAM_UNIT):
        monkeypatch.setattr(z_image, "STREAM_UNIT", unit)
        monkeypatch.setattr(z_image_controlnet, "STREAM_UNIT", unit)
        graph = z_image_controlnet_graph(NETS["2.1"], TINY_Z_IMAGE, 1, 4, 4, 5)
        found.append(evaluate(graph, *with_texts(graph, [5]))["control.0"] / np.float32(unit))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.sweep
def test_wgsl_computes_it(webgpu: Gpu) -> None:  # noqa: F811  the fixture
    graph = wide()
    assert gpu_error(webgpu, graph, "f16", *with_texts(graph, [30])) < ALLOWED["f16"]


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ALLOWED)
def test_gpus_compute_it(vulkan: Gpu, precision: str) -> None:
    graph = wide()
    assert gpu_error(vulkan, graph, precision, *with_texts(graph, [30])) < ALLOWED[precision]


@pytest.mark.sweep
def test_activations_of_the_size_of_published_ones_fit_f16(vulkan: Gpu) -> None:
    """What is given stays in the unit in which the tokens of the model are."""
    graph = wide("alone")
    assert gpu_error(vulkan, graph, "f16", *published(graph)) < ALLOWED["f16"]


@pytest.mark.sweep
def test_bf16() -> None:
    graph = wide()
    assert bf16_error(graph, *with_texts(graph, [30])) < ALLOWED["bf16"]


# ---------------------------------------------------------------------- beside diffusers


@pytest.mark.peers
@pytest.mark.parametrize("counts", [(7,), (7, 40)])
@pytest.mark.parametrize("name", NETS)
def test_diffusers_computes_the_same(name: str, counts: tuple[int, ...]) -> None:
    """What the net gives for texts of a batch, each filled up by itself, and what the model makes
    of it; a net is told how much it counts."""
    import torch

    height, width, length, strength = 6, 10, max(counts), 0.7
    config, base = NETS[name], replace(TINY_Z_IMAGE, blocks=3)
    places = [0, 2][:config.blocks]
    config = replace(config, places=tuple(places))
    module = filled(z_image_module(base))
    net = filled(z_image_controlnet_module(config, places))
    weights = {**weights_of(module, Z_IMAGE_DIFFUSERS, MODEL),
               **weights_of(net, Z_IMAGE_CONTROLNET_DIFFUSERS, CONTROL)}
    net = type(net).from_transformer(net, module)
    graph = z_image_controlnet_graph(config, base, len(counts), height, width, length)
    own = {key: value.shape for key, value in graph.parameters.items() if key.startswith(CONTROL)}
    assert own == {key: array.shape for key, array in weights.items() if key.startswith(CONTROL)}
    inputs, _ = with_texts(graph, list(counts))
    if "strength" in inputs:
        inputs["strength"] = np.full(len(counts), strength, np.float32)
    found = evaluate(graph, inputs, weights)
    tensors = {key: torch.tensor(array) for key, array in inputs.items()}
    latents = list(tensors["latent"].unsqueeze(2).unbind())
    texts = [text[:count] for text, count in zip(tensors["context"], counts, strict=True)]
    times = (1000 - tensors["timesteps"]) / 1000
    with torch.no_grad():
        samples = net(latents, times, texts, list(tensors["hint"].unsqueeze(2).unbind()), strength)
        expected = module(latents, times, texts, controlnet_block_samples=samples,
                          return_dict=False)[0]
    assert list(samples) == places
    tokens, image = length + -length % 32, height * width // 4
    for array, tensor in zip(found.values(), samples.values(), strict=True):
        given = array / np.float32(z_image.STREAM_UNIT) * np.float32(strength)
        for row, theirs in enumerate(tensor.numpy()):  # of the image, and of the longest text
            assert relative_error(given[row, -image:], theirs[:image]) <= 1e-4
            if -counts[row] % 32 + counts[row] == tokens:
                assert relative_error(given[row, :tokens], theirs[-tokens:]) <= 1e-4
    whole = z_image_graph(base, len(counts), height, width, length,
                          control=z_image_control_places(config, base))
    given = {**inputs, **{key: array * np.float32(strength) for key, array in found.items()}}
    prediction = evaluate(whole, {key: given[key] for key in whole.inputs}, weights)["prediction"]
    theirs = -torch.stack([each.squeeze(1) for each in expected]).numpy()
    assert relative_error(prediction, theirs) <= 1e-4


@pytest.mark.peers
def test_its_names_are_those_of_diffusers() -> None:
    import torch

    config = ZImageControlNetConfig(**{**vars(Z_IMAGE), "blocks": 15}, hint_channels=33,
                                    refining="steering")
    with torch.device("meta"):
        net = z_image_controlnet_module(config, range(0, 30, 2))
    size = sum(tensor.numel() for tensor in net.state_dict().values())
    graph = z_image_controlnet_graph(config, Z_IMAGE, 1, 8, 8, 4)
    assert size == sum(value.type.size for name, value in graph.parameters.items()
                       if name.startswith(CONTROL))
    assert isinstance(config, ZImageConfig)
