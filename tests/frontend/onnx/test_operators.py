"""Operators that the node tests of ONNX leave out, or test in one form only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, defs, helper, numpy_helper

from smalti.errors import InputError, UnsupportedError
from smalti.frontend.onnx import load
from smalti.frontend.onnx.registry import HOST_RULES, RULES
from smalti.graph import Graph, evaluate

RNG = np.random.default_rng(7)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def graph_of(operator: str, arrays: list[np.ndarray | None], results: int = 1, opset: int = 22,
             known: tuple[int, ...] = (), **fields: Any) -> Graph:
    """A model of one node; operands at the places `known` are initializers."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    inputs, initializers = [], []
    for i, array in enumerate(arrays):
        if array is None:
            continue
        if i in known:
            initializers.append(numpy_helper.from_array(array, names[i]))
        else:
            inputs.append(helper.make_tensor_value_info(
                names[i], helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.UNDEFINED, None)
               for i in range(results)]
    for output in outputs:
        output.ClearField("type")
    node = helper.make_node(operator, names, [o.name for o in outputs], **fields)
    graph = helper.make_graph([node], "g", inputs, outputs, initializers)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])).graph


def results_of(operator: str, arrays: list[np.ndarray | None], *, results: int = 1,
               known: tuple[int, ...] = (), **fields: Any) -> list[np.ndarray]:
    graph = graph_of(operator, arrays, results, known=known, **fields)
    given = {f"x{i}": a for i, a in enumerate(arrays) if a is not None and i not in known}
    return list(evaluate(graph, given, {}).values())


def operations(graph: Graph) -> list[str]:
    return [node.operation.name for node in graph.nodes]


def test_norms_of_whole_images() -> None:
    x = numbers(2, 3, 4, 5)
    for p in (1, 2, 3):
        (found,) = results_of("GlobalLpPool", [x], p=p)
        expected = (np.abs(x) ** p).sum((2, 3), keepdims=True) ** (1 / p)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_regions_by_maxima() -> None:
    x, regions = numbers(2, 3, 8, 9), np.array([[1, 2, 2, 9, 13], [0, 0, 0, 3, 3]], np.float32)
    (found,) = results_of("MaxRoiPool", [x, regions], pooled_shape=[1, 1], spatial_scale=0.5)
    np.testing.assert_array_equal(found[0, :, 0, 0], x[1, :, 1:8, 1:6].max((1, 2)))
    np.testing.assert_array_equal(found[1, :, 0, 0], x[0, :, :3, :3].max((1, 2)))


@pytest.mark.parametrize("operator", ["RandomNormal", "RandomUniform"])
def test_random_numbers_come_from_the_seed(operator: str) -> None:
    fields = {"shape": [100, 50], "seed": 3.5}
    (first,), (second,) = results_of(operator, [], **fields), results_of(operator, [], **fields)
    assert np.array_equal(first, second) and first.dtype == np.float32
    (other,) = results_of(operator, [], **{**fields, "seed": 4.0})
    assert not np.array_equal(first, other)
    (like,) = results_of(f"{operator}Like", [np.zeros((100, 50), np.float16)], seed=3.5)
    assert like.dtype == np.float16
    np.testing.assert_allclose(like, first, rtol=1e-3, atol=1e-6)
    mean, low = (0, -4) if operator == "RandomNormal" else (0.5, 0)
    assert abs(first.mean() - mean) < 0.05 and first.min() > low - 1
    with pytest.raises(UnsupportedError, match="it has no seed"):
        results_of(operator, [], shape=[3])


def test_samples_follow_their_weights() -> None:
    weights = np.log(np.array([[0.1, 0.2, 0.7], [1, 1e-9, 1e-9]], np.float32))
    (found,) = results_of("Multinomial", [weights], sample_size=4000, seed=1.0)
    assert found.dtype == np.int32 and found.shape == (2, 4000) and not found[1].any()
    np.testing.assert_allclose(np.bincount(found[0]) / 4000, [0.1, 0.2, 0.7], atol=0.03)


def recurrent(name: str, gates: int, **fields: Any) -> list[np.ndarray]:
    """Results of a bidirectional layer on 4 steps of 3 sequences, 2 wide, 5 hidden."""
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape, np.float32) for shape in
              ((4, 3, 2), (2, gates * 5, 2), (2, gates * 5, 5), (2, 2 * gates * 5))]
    if fields.get("layout"):
        arrays[0] = arrays[0].swapaxes(0, 1)
    lengths = np.array([4, 1, 3], np.int32)
    return results_of(name, [*arrays, lengths], results=3 if name == "LSTM" else 2,
                      direction="bidirectional", hidden_size=5, **fields)


@pytest.mark.parametrize(("name", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_last_states_are_those_of_the_last_step(name: str, gates: int) -> None:
    y, last, *_ = recurrent(name, gates)
    assert y.shape == (4, 2, 3, 5)
    for sequence, length in enumerate((4, 1, 3)):
        np.testing.assert_array_equal(last[0, sequence], y[length - 1, 0, sequence])
        np.testing.assert_array_equal(last[1, sequence], y[0, 1, sequence])
        assert not y[length:, :, sequence].any()
    turned = recurrent(name, gates, layout=1)
    np.testing.assert_array_equal(turned[0], y.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(turned[1], last.transpose(1, 0, 2))


def test_numbers_of_activations_are_used_up_in_turn() -> None:
    shared = [numbers(1, 2, 3), numbers(1, 15, 3), numbers(1, 15, 5)]
    names = ["HardSigmoid", "LeakyRelu"]
    usual = results_of("GRU", shared, activations=names, hidden_size=5)
    same = results_of("GRU", shared, activations=names, hidden_size=5,
                      activation_alpha=[0.2, 0.01], activation_beta=[0.5])
    np.testing.assert_array_equal(usual[0], same[0])
    other = results_of("GRU", shared, activations=names, hidden_size=5,
                       activation_alpha=[0.2, 0.9])
    assert not np.array_equal(usual[0], other[0])


def test_attention_is_one_operation() -> None:
    q, k = numbers(2, 3, 8), numbers(2, 5, 4)
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    graph = graph_of("Attention", [q, k, k], opset=23, **heads)
    assert operations(graph).count("attention") == 1 and "softmax" not in operations(graph)
    (found,) = results_of("Attention", [q, k, k], opset=23, **heads)
    spread = np.repeat(k.reshape(2, 5, 2, 2), 2, axis=2).reshape(2, 5, 8)
    (expected,) = results_of("Attention", [q, spread, spread], opset=23, q_num_heads=4,
                             kv_num_heads=4)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    capped = graph_of("Attention", [q, k, k], opset=23, softcap=2.0, **heads)
    assert "attention" not in operations(capped)


def test_part_of_the_channels_is_turned() -> None:
    x, angles = numbers(2, 4, 3, 8), numbers(2, 3, 2)
    cos, sin = np.cos(angles), np.sin(angles)
    (found,) = results_of("RotaryEmbedding", [x, cos, sin], opset=23, rotary_embedding_dim=4)
    (turned,) = results_of("RotaryEmbedding", [np.ascontiguousarray(x[..., :4]), cos, sin],
                           opset=23)
    np.testing.assert_array_equal(found, np.concatenate([turned, x[..., 4:]], -1))


@pytest.mark.parametrize("depth", [40, 2000, 40_000])
def test_products_of_integers_are_exact(depth: int) -> None:
    a = RNG.integers(0, 256, (3, depth)).astype(np.uint8)
    b = RNG.integers(-128, 128, (depth, 4)).astype(np.int8)
    zero = np.array(250, np.uint8)
    graph = graph_of("MatMulInteger", [a, b, zero], known=(2,))
    assert operations(graph) == ["mat_mul_integer"]
    (found,) = results_of("MatMulInteger", [a, b, zero], known=(2,))
    assert np.array_equal(found, (a.astype(np.int64) - 250) @ b.astype(np.int64))


@pytest.mark.parametrize("channels, group", [(4, 1), (70, 1), (70, 35), (140, 2)])
def test_convolutions_of_integers_are_exact(channels: int, group: int) -> None:
    x = RNG.integers(0, 256, (1, channels, 5, 4)).astype(np.uint8)
    w = RNG.integers(-128, 128, (channels, channels // group, 3, 3)).astype(np.int8)
    (found,) = results_of("ConvInteger", [x, w, np.array(3, np.uint8)], group=group)
    image, out = x.astype(np.int64) - 3, channels // group
    for o in (0, channels - 1):
        first = o // out * out
        expected = (image[0, first:first + out, 1:4, 0:3] * w[o]).sum()
        assert found[0, o, 1, 0] == expected


@pytest.mark.parametrize("depth", [50, 3000])
def test_quantised_products_are_rounded_as_onnx_runtime_does(depth: int) -> None:
    a = RNG.integers(0, 256, (4, depth)).astype(np.uint8)
    b = RNG.integers(0, 256, (depth, 5)).astype(np.uint8)
    scales = [np.array(value, np.float32) for value in (0.02, 0.03, 4.0)]
    zeros = [np.array(value, np.uint8) for value in (120, 131, 128)]
    (found,) = results_of("QLinearMatMul", [a, scales[0], zeros[0], b, scales[1], zeros[1],
                                            scales[2], zeros[2]])
    sums = ((a.astype(np.int64) - 120) @ (b.astype(np.int64) - 131)).astype(np.float32)
    expected = np.rint(sums * (scales[0] * scales[1] / scales[2])) + 128
    assert np.array_equal(found, np.clip(expected, 0, 255))


def test_blocks_of_scales() -> None:
    x, scale = numbers(2, 7), np.array([[0.5, 0.1, 2], [1, 0.2, 3]], np.float32)
    zero = np.array([[100, 0, 128], [1, 2, 3]], np.uint8)
    fields = {"axis": 1, "block_size": 3}
    (found,) = results_of("QuantizeLinear", [x, scale, zero], **fields)
    each, points = scale.repeat(3, 1)[:, :7], zero.repeat(3, 1)[:, :7].astype(np.float32)
    assert np.array_equal(found, np.clip(np.rint(x / each) + points, 0, 255))
    (back,) = results_of("DequantizeLinear", [found, scale, zero], **fields)
    np.testing.assert_allclose(back, (found - points) * each, rtol=1e-6)


def test_sizes_of_an_image_are_bounded() -> None:
    with pytest.raises(InputError, match="along axes"):
        graph_of("Resize", [numbers(1, 1, 2, 2), None, np.array([1, 1, 1e9, 1], np.float32)],
                 known=(2,))
    with pytest.raises(InputError, match="along axes"):
        graph_of("Resize", [numbers(1, 1, 2, 2), None, np.array([1, 1, -1, 1], np.float32)],
                 known=(2,))


def test_whole_factors_are_an_enlargement() -> None:
    scales = np.array([1, 1, 2, 3], np.float32)
    graph = graph_of("Resize", [numbers(1, 2, 3, 4), None, scales], known=(2,), mode="nearest",
                     coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    assert operations(graph) == ["resize"]


@pytest.mark.parametrize(("operator", "arrays", "known", "fields", "words"), [
    ("OneHot", [np.array([1]), np.array(-1), numbers(2)], (1,), {}, "-1"),
    ("TopK", [numbers(3), np.array([4])], (1,), {}, "4 of 3 along axis 0"),
    ("CumSum", [numbers(3), np.array(2)], (1,), {}, "axis 2 does not exist"),
    ("Col2Im", [numbers(1, 4, 4), np.array([3, 3]), np.array([2, 0])], (1, 2), {}, "kernel"),
    ("DFT", [numbers(1, 4, 1), np.array(0)], (1,), {}, "length 0"),
    ("STFT", [numbers(1, 8, 1), np.array(0)], (1,), {}, "frames of 8 every 0"),
    ("GridSample", [numbers(1, 1, 2, 2), numbers(1, 2, 2, 2)], (), {"mode": "area"}, "one of each"),
    ("LRN", [numbers(1, 2, 3)], (), {"size": 0}, "0 neighbouring channels"),
    ("LpPool", [numbers(1, 2, 3)], (), {"kernel_shape": [2], "p": 0}, "the 0-norm"),
    ("ConvTranspose", [numbers(1, 2, 3), numbers(2, 1, 2)], (), {"output_padding": [-1]},
     "output_padding"),
    ("MaxUnpool", [numbers(1, 1, 2), np.zeros((1, 1, 3), np.int64)], (), {"kernel_shape": [2]},
     "in windows of"),
    ("QuantizeLinear", [numbers(2, 3), numbers(4)], (), {}, "no scales of"),
    ("RNN", [numbers(2, 1, 3), numbers(1, 4, 3), numbers(1, 4, 5)], (), {}, "recurrent weights"),
    ("MaxRoiPool", [numbers(1, 1, 2, 2), numbers(1, 5)], (), {"pooled_shape": [1]}, "height"),
])
def test_what_does_not_fit_is_refused(operator, arrays, known, fields, words) -> None:
    with pytest.raises(InputError, match=words):
        graph_of(operator, arrays, known=known, **fields)


def test_documentation_names_every_standard_operator_without_a_rule() -> None:
    schemas = {s.name: s for s in defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    lacking = [name for name, schema in sorted(schemas.items())
               if ("", name) not in RULES and ("", name) not in HOST_RULES
               and not schema.has_function and not schema.has_context_dependent_function]
    text = (Path(__file__).parents[3] / "docs" / "onnx.md").read_text(encoding="utf-8")
    assert f"{len(schemas) - len(lacking)} of the {len(schemas)} of the standard domain" in text
    assert f"| {', '.join(f'`{name}`' for name in lacking)} |" in text
