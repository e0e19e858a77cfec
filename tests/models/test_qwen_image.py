"""Qwen-Image: parameters, who sees whom, its unit, what programs and diffusers compute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_regions import LEVELS, arrays_for, check_graph, relative_error
from transformer_graphs import (
    ALLOWED,
    Arrays,
    bf16_error,
    check_program,
    check_texts_alone,
    gpu_error,
    with_texts,
)
from transformer_peers import TINY_QWEN_IMAGE, filled, packed, qwen_image_module, weights_of
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.errors import InputError
from smalti.graph import Graph, evaluate
from smalti.models import (
    QWEN_IMAGE,
    QwenImageConfig,
    qwen_image,
    qwen_image_block_graph,
    qwen_image_graph,
    qwen_image_modulation_graph,
)
from smalti.models.flux import PREFIX
from smalti.runtime.gpu.interface import Gpu

TINY = replace(TINY_QWEN_IMAGE, blocks=1)
WIDE = QwenImageConfig(hidden_size=128, heads=2, mlp_size=256, blocks=1, in_channels=4,
                       out_channels=4, context_dim=24, axes=(16, 24, 24))
"""So wide that 192 tokens are stored as halves."""


@pytest.fixture(params=["vulkan", "webgpu"])
def gpu(request: pytest.FixtureRequest) -> Gpu:
    return request.getfixturevalue(request.param)


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    """1933 tensors, 20.43 billion numbers, of which 6.8 billion modulate."""
    counts, sizes = [], []
    for graph in (qwen_image_graph(QWEN_IMAGE, 1, 8, 8, 4, modulated=True),
                  qwen_image_modulation_graph(QWEN_IMAGE)):
        counts.append(len(graph.parameters))
        sizes.append(sum(value.type.size for value in graph.parameters.values()))
    assert counts == [1687, 246]
    assert sizes == [20_430_401_088 - 6_826_094_592, 6_826_094_592]


def test_both_parts_compute_the_whole() -> None:
    whole = qwen_image_graph(TINY_QWEN_IMAGE, 2, 6, 4, 5)
    inputs, parameters = with_texts(whole, [5, 3])
    expected = evaluate(whole, inputs, parameters)["prediction"]
    made = evaluate(qwen_image_modulation_graph(TINY_QWEN_IMAGE, 2),
                    {"timesteps": inputs.pop("timesteps")}, parameters)
    assert made["modulation"].shape == (2, TINY_QWEN_IMAGE.modulations, 64)
    modulated = qwen_image_graph(TINY_QWEN_IMAGE, 2, 6, 4, 5, modulated=True)
    found = evaluate(modulated, {**inputs, **made}, parameters)["prediction"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("name", LEVELS)
def test_native_code_computes_it(name: str) -> None:
    check_graph(qwen_image_graph(TINY, 2, 6, 4, 40), name)


def test_the_program_computes_it() -> None:
    check_program(qwen_image_graph(TINY, 1, 8, 6, 9, modulated=True, control=(0,)))


def test_the_program_computes_a_block() -> None:
    check_program(qwen_image_block_graph(TINY, 64, 9))


def test_a_text_of_a_batch_is_read_as_if_it_were_alone() -> None:
    """What fills it up is not seen, whatever it is, and moves nothing."""
    def graph(rows: int, tokens: int) -> Graph:
        return qwen_image_graph(TINY, rows, 6, 4, tokens)

    counts = [7, 13]
    inputs, parameters = with_texts(graph(2, 13), counts)
    inputs["context"] += 1 - inputs["mask"][:, :, None]
    check_texts_alone(graph, counts, inputs, parameters)


def test_controls_are_added_behind_their_blocks() -> None:
    config = replace(TINY, blocks=3)
    graph = qwen_image_graph(config, 1, 4, 4, 3, control=(0, -1, 1))
    inputs, parameters = with_texts(graph, [3])
    assert inputs["control.1"].shape == (1, 4, 64)
    plain = {name: array for name, array in inputs.items() if not name.startswith("control")}
    expected = evaluate(qwen_image_graph(config, 1, 4, 4, 3), plain, parameters)["prediction"]
    nothing = {name: inputs[name] * 0 for name in inputs if name.startswith("control")}
    np.testing.assert_array_equal(
        evaluate(graph, {**plain, **nothing}, parameters)["prediction"], expected)
    assert relative_error(evaluate(graph, inputs, parameters)["prediction"], expected) > 0.01
    with pytest.raises(InputError, match="are given for 3 blocks"):
        qwen_image_graph(config, 1, 4, 4, 3, control=(0,))


def test_the_unit_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a power of two, and norms read what is in it."""
    found = []
    for unit in (1.0, qwen_image.STREAM_UNIT):
        monkeypatch.setattr(qwen_image, "STREAM_UNIT", unit)
        graph = qwen_image_graph(TINY, 1, 6, 4, 5)
        found.append(evaluate(graph, *with_texts(graph, [5]))["prediction"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-7)


def published(graph: Graph) -> tuple[Arrays, Arrays]:
    """Tokens, and parameters, of the size that those of published models have in their last blocks:
    what diffusers cuts off at 65504 in f16, and stable-diffusion.cpp computes in thirty-seconds."""
    inputs, parameters = arrays_for(graph)
    for name in ("img", "txt"):
        inputs[name] *= np.float32(3e5 * qwen_image.STREAM_UNIT)
    for name in parameters:
        if name.endswith(("to_v.weight", "add_v_proj.weight", "mlp.net.0.proj.weight")):
            parameters[name] *= np.float32(100)
        if name.endswith(("to_out.0.weight", "to_add_out.weight", "mlp.net.2.weight")):
            parameters[name] *= np.float32(1000)
    return inputs, parameters


@pytest.mark.sweep
def test_activations_of_the_size_of_published_ones_fit_f16(
        gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the unit they do not: this is why pictures of this model are black elsewhere."""
    graph = qwen_image_block_graph(WIDE, 192, 32)
    assert gpu_error(gpu, graph, "f16", *published(graph)) < ALLOWED["f16"]
    monkeypatch.setattr(qwen_image, "STREAM_UNIT", 1.0)
    plain = qwen_image_block_graph(WIDE, 192, 32)
    assert not gpu_error(gpu, plain, "f16", *published(plain)) < 1


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ALLOWED)
def test_gpus_compute_it(vulkan: Gpu, precision: str) -> None:
    graph = qwen_image_graph(WIDE, 1, 32, 16, 32)
    assert gpu_error(vulkan, graph, precision, *with_texts(graph, [30])) < ALLOWED[precision]


def test_bf16() -> None:
    graph = qwen_image_graph(WIDE, 1, 16, 16, 32)
    assert bf16_error(graph, *with_texts(graph, [30])) < ALLOWED["bf16"]


def test_what_no_model_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"7 x 8 \(height x width\)"):
        qwen_image_graph(TINY, 1, 7, 8, 5)
    with pytest.raises(InputError, match=r"axes of \(8, 12, 10\) channels do not make up .* 32"):
        qwen_image_graph(replace(TINY, axes=(8, 12, 10)), 1, 8, 8, 5)


# ---------------------------------------------------------------------- beside diffusers


@pytest.mark.peers
@pytest.mark.parametrize("counts", [(7,), (7, 12)])
@pytest.mark.parametrize("config", [TINY_QWEN_IMAGE, replace(
    TINY_QWEN_IMAGE, hidden_size=48, heads=3, mlp_size=192, blocks=1, axes=(4, 6, 6))])
def test_diffusers_computes_the_same(config: QwenImageConfig, counts: tuple[int, ...]) -> None:
    """An image of an odd number of rows and columns, and texts of a batch."""
    import torch

    height, width, length = 6, 10, max(counts)
    module = filled(qwen_image_module(config))
    names = set(module.state_dict())
    weights = {f"{PREFIX}.{name}": tensor.numpy() for name, tensor in module.state_dict().items()}
    assert not weights_of(module, {}, PREFIX, names)
    graph = qwen_image_graph(config, len(counts), height, width, length)
    assert {name: value.shape for name, value in graph.parameters.items()} == {
        name: array.shape for name, array in weights.items()}
    inputs, _ = with_texts(graph, list(counts))
    found = evaluate(graph, inputs, weights)["prediction"]
    with torch.no_grad():
        expected = module(
            packed(torch.tensor(inputs["latent"])), torch.tensor(inputs["context"]),
            torch.tensor(inputs["mask"]).bool(), torch.tensor(inputs["timesteps"] / 1000),
            img_shapes=[[(1, height // 2, width // 2)]] * len(counts), return_dict=False)[0]
    assert relative_error(packed(torch.tensor(found)).numpy(), expected.numpy()) <= 1e-4


@pytest.mark.peers
@pytest.mark.parametrize(("clean", "sizes"), [
    (False, ((6, 10),)), (True, ((6, 10),)), (False, ((4, 16), (2, 4))), (True, ((12, 4), (2, 2)))])
def test_other_pictures_are_read_as_diffusers_reads_them(
        clean: bool, sizes: tuple[tuple[int, int], ...]) -> None:
    """Their tokens stand behind those of the picture that is made; those of 2511 are modulated as
    at time 0."""
    import torch

    config, height, width = replace(TINY_QWEN_IMAGE, clean=clean), 6, 10
    module = filled(qwen_image_module(config))
    weights = {f"{PREFIX}.{name}": tensor.numpy() for name, tensor in module.state_dict().items()}
    graph = qwen_image_graph(config, 1, height, width, 7, referenced=sizes)
    inputs, _ = with_texts(graph, [7])
    if clean:
        inputs["clean"] = evaluate(qwen_image_modulation_graph(config), {
            "timesteps": np.zeros(1, np.float32)}, weights)["modulation"]
    found = evaluate(graph, inputs, weights)["prediction"]
    pictures = [packed(torch.tensor(inputs[name])) for name in (
        "latent", *(f"reference.{k}" for k in range(len(sizes))))]
    grids = [(1, rows // 2, columns // 2) for rows, columns in ((height, width), *sizes)]
    with torch.no_grad():
        expected = module(
            torch.cat(pictures, dim=1), torch.tensor(inputs["context"]), None,
            torch.tensor(inputs["timesteps"] / 1000), img_shapes=[grids],
            return_dict=False)[0][:, :15]
    assert relative_error(packed(torch.tensor(found)).numpy(), expected.numpy()) <= 1e-4


@pytest.mark.peers
def test_its_names_are_those_of_diffusers() -> None:
    import torch

    with torch.device("meta"):
        module = qwen_image_module(QWEN_IMAGE)
    assert {f"{PREFIX}.{name}": tuple(tensor.shape)
            for name, tensor in module.state_dict().items()} == {
        name: value.shape for name, value in qwen_image_graph(
            QWEN_IMAGE, 1, 8, 8, 4).parameters.items()}
