"""Building blocks: which parameters they read, and what they compute, by other formulations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smalti import nn
from smalti.errors import InputError
from smalti.graph import Graph, Value, evaluate, verify


def run(graph: Graph, output: Value, **inputs: np.ndarray) -> tuple[np.ndarray, dict]:
    """The output on these inputs, and the random parameters that were used."""
    graph.output("y", output)
    verify(graph)
    rng = np.random.default_rng(2)
    parameters = {name: rng.standard_normal(v.shape, np.float32)
                  for name, v in graph.parameters.items()}
    return evaluate(graph, inputs, parameters)["y"], parameters


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


@pytest.mark.parametrize("shape", [(2, 6), (2, 5, 6), (1, 2, 3, 6)])
def test_linear(shape: tuple[int, ...]) -> None:
    g, x = Graph(), normal(*shape)
    with g.scope("block"):
        y, w = run(g, nn.linear(g.input("x", shape), "fc1", 4), x=x)
    assert list(w) == ["block.fc1.weight", "block.fc1.bias"]
    expected = np.einsum("...i,oi->...o", x, w["block.fc1.weight"]) + w["block.fc1.bias"]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_linear_without_bias() -> None:
    g = Graph()
    nn.linear(g.input("x", (2, 6)), "to_q", 4, bias=False)
    assert list(g.parameters) == ["to_q.weight"]


def test_conv2d_is_a_product_where_the_kernel_is_one_pixel() -> None:
    g, x = Graph(), normal(2, 3, 4, 5)
    y, w = run(g, nn.conv2d(g.input("x", x.shape), "skip", 6, 1), x=x)
    expected = np.einsum("nchw,oc->nohw", x, w["skip.weight"][:, :, 0, 0])
    np.testing.assert_allclose(y, expected + w["skip.bias"][:, None, None], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("options", "size"), [
    ({}, (8, 6)), ({"stride": 2}, (4, 3)), ({"stride": 2, "pads": (0, 0, 1, 1)}, (4, 3)),
    ({"pads": (0, 0, 0, 0)}, (6, 4)),
])
def test_conv2d_sizes(options: dict, size: tuple[int, int]) -> None:
    x = Graph().input("x", (1, 3, 8, 6))
    assert nn.conv2d(x, "conv", 5, 3, **options).shape == (1, 5, *size)


def test_norms_standardise() -> None:
    g, x = Graph(), 5 + 3 * normal(2, 8, 4, 5)
    y = nn.group_norm(g.input("x", x.shape), "norm", 4, 1e-6)
    g.output("y", y)
    unit = {"norm.weight": np.ones(8), "norm.bias": np.zeros(8)}
    groups = evaluate(g, {"x": x}, unit)["y"].reshape(2, 4, -1)
    np.testing.assert_allclose(groups.mean(2), 0, atol=1e-6)
    np.testing.assert_allclose(groups.std(2), 1, rtol=1e-5)


def test_batch_norm_takes_off_what_training_gathered() -> None:
    g, x = Graph(), 5 + 3 * normal(64, 4, 5, 6)
    g.output("y", nn.batch_norm(g.input("x", x.shape), "norm", 1e-6))
    weights = {"norm.weight": np.full(4, 2), "norm.bias": np.full(4, -1),
               "norm.running_mean": x.mean((0, 2, 3)), "norm.running_var": x.var((0, 2, 3))}
    y = evaluate(g, {"x": x}, {name: w.astype(np.float32) for name, w in weights.items()})["y"]
    np.testing.assert_allclose(y.mean((0, 2, 3)), -1, atol=1e-5)
    np.testing.assert_allclose(y.std((0, 2, 3)), 2, rtol=1e-5)


def test_groups_of_channels_do_not_mix() -> None:
    g, x = Graph(), normal(1, 6, 5, 4)
    y = nn.conv2d(g.input("x", x.shape), "conv", 3, 3, groups=3, bias=False)
    assert {name: v.shape for name, v in g.parameters.items()} == {"conv.weight": (3, 2, 3, 3)}
    g.output("y", y)
    weights = {"conv.weight": normal(3, 2, 3, 3)}
    before = evaluate(g, {"x": x}, weights)["y"]
    x[:, 2:4] += 1
    after = evaluate(g, {"x": x}, weights)["y"]
    np.testing.assert_array_equal(after[:, [0, 2]], before[:, [0, 2]])
    assert (after[:, 1] != before[:, 1]).all()


def test_relu6_is_flat_on_both_sides() -> None:
    g, x = Graph(), np.array([-2, 0, 3, 6, 9], np.float32)
    y, _ = run(g, nn.relu6(g.input("x", (5,))), x=x)
    np.testing.assert_array_equal(y, [0, 0, 3, 6, 6])


def test_layer_norm_is_over_the_last_axis() -> None:
    g, x = Graph(), 5 + 3 * normal(2, 7, 16)
    y, w = run(g, nn.layer_norm(g.input("x", x.shape), "norm1"), x=x)
    plain = (y - w["norm1.bias"]) / w["norm1.weight"]
    np.testing.assert_allclose(plain.mean(2), 0, atol=1e-5)
    np.testing.assert_allclose(plain.std(2), 1, rtol=1e-4)


def test_tokens_are_pixels_in_rows() -> None:
    g, x = Graph(), normal(2, 3, 4, 5)
    tokens = nn.to_tokens(g.input("x", x.shape))
    g.output("back", nn.from_tokens(tokens, 4, 5))
    y, _ = run(g, tokens, x=x)
    assert (y[1, 2 * 5 + 3] == x[1, :, 2, 3]).all()
    np.testing.assert_array_equal(evaluate(g, {"x": x}, {})["back"], x)


@pytest.mark.parametrize("pixels_first", [False, True])
def test_patches_are_squares_in_rows(pixels_first: bool) -> None:
    """Channel by channel, or pixel by pixel where that is asked for."""
    g, x = Graph(), normal(2, 3, 4, 6)
    tokens, _ = run(g, nn.patches(g.input("x", x.shape), 2), x=x)
    square = x[1, :, 2:4, 4:6]                                         # the last of 2 x 3
    np.testing.assert_array_equal(tokens[1, 5], square.reshape(-1))
    given = tokens.reshape(2, 6, 3, 4).swapaxes(2, 3).reshape(2, 6, 12) if pixels_first else tokens
    g = Graph()
    back, _ = run(g, nn.from_patches(g.input("x", given.shape), 2, 4, 6,
                                     pixels_first=pixels_first), x=given)
    np.testing.assert_array_equal(back, x)


def test_angles_grow_along_the_grid() -> None:
    """Tokens of the text stand still; the token at (1, 2) turns by 1 and 2 steps on its axes."""
    g = Graph()
    cos, sin = nn.grid_angles(g, (2, 3), 4, (4, 6, 8), base=100.0)
    g.output("sin", sin)
    cos, _ = run(g, cos)
    sin = evaluate(g, {}, {})["sin"]
    assert cos.shape == sin.shape == (1, 4 + 6, 9)
    assert (cos[0, :4] == 1).all() and (sin[0, :4] == 0).all()
    angles = [0, 0, *(100 ** (-2 * j / 6) for j in range(3)),
              *(2 * 100 ** (-2 * j / 8) for j in range(4))]
    np.testing.assert_allclose(cos[0, 4 + 1 * 3 + 2], np.cos(angles), rtol=1e-6)
    np.testing.assert_allclose(sin[0, 4 + 1 * 3 + 2], np.sin(angles), rtol=1e-6)


def test_angles_need_even_axes() -> None:
    with pytest.raises(InputError, match="pairs of channels turn"):
        nn.grid_angles(Graph(), (2, 3), 4, (4, 5, 7))


def test_modulations_are_runs_of_one_product() -> None:
    g, vec = Graph(), normal(2, 4)
    parts = nn.modulation(g.input("vec", vec.shape), "lin", 3)
    g.output("gate", parts[2])
    shift, w = run(g, parts[0], vec=vec)
    whole = vec / (1 + np.exp(-vec)) @ w["lin.weight"].T + w["lin.bias"]
    np.testing.assert_allclose(shift, whole[:, :4], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(evaluate(g, {"vec": vec}, w)["gate"], whole[:, 8:], rtol=1e-5,
                               atol=1e-5)


def test_upsampling_repeats_pixels() -> None:
    g, x = Graph(), normal(1, 2, 3, 4)
    y, _ = run(g, nn.upsample_nearest(g.input("x", x.shape)), x=x)
    np.testing.assert_array_equal(y, np.kron(x, np.ones((2, 2), np.float32)))


def test_timesteps_are_cosines_then_sines() -> None:
    g, t = Graph(), np.array([0, 1, 999], np.float32)
    y, _ = run(g, nn.timestep_embedding(g.input("timesteps", (3,)), 8), timesteps=t)
    angles = [[step * 10000 ** (-i / 4) for i in range(4)] for step in (0, 1, 999)]
    expected = [[f(a) for f in (math.cos, math.sin) for a in row] for row in angles]
    np.testing.assert_allclose(y, expected, atol=1e-4)


def test_timesteps_need_an_even_width() -> None:
    with pytest.raises(InputError, match="as many cosines as sines; 7 features is odd"):
        nn.timestep_embedding(Graph().input("timesteps", (1,)), 7)


def test_attention_to_one_token_is_its_value() -> None:
    """The weights sum to one, so what the query is does not matter."""
    g, x, context = Graph(), normal(2, 5, 8), normal(2, 1, 6)
    values = g.input("x", x.shape), g.input("context", context.shape)
    y, w = run(g, nn.cross_attention(*values, heads=2), x=x, context=context)
    assert list(w) == ["to_q.weight", "to_k.weight", "to_v.weight", "to_out.0.weight",
                       "to_out.0.bias"]
    expected = context @ w["to_v.weight"].T @ w["to_out.0.weight"].T + w["to_out.0.bias"]
    np.testing.assert_allclose(y, np.broadcast_to(expected, y.shape), rtol=1e-4, atol=1e-4)


def test_self_attention_does_not_know_the_order_of_tokens() -> None:
    g, x = Graph(), normal(1, 5, 8)
    value = g.input("x", x.shape)
    g.output("y", nn.cross_attention(value, value, heads=4))
    parameters = {name: normal(*v.shape) for name, v in g.parameters.items()}
    order = [3, 1, 4, 0, 2]
    y = evaluate(g, {"x": x}, parameters)["y"]
    np.testing.assert_allclose(evaluate(g, {"x": x[:, order]}, parameters)["y"], y[:, order],
                               rtol=1e-4, atol=1e-5)


def test_attention_needs_heads_that_divide_the_width() -> None:
    x = Graph().input("x", (1, 5, 8))
    with pytest.raises(InputError, match="with 3 heads"):
        nn.cross_attention(x, x, heads=3)


def test_feed_forward_gates_with_the_second_half() -> None:
    """A gate of a large number lets the first half through, one of minus that closes it."""
    g, x = Graph(), normal(1, 3, 4)
    g.output("y", nn.geglu_feed_forward(g.input("x", x.shape), multiple=2))
    shapes = {name: v.shape for name, v in g.parameters.items()}
    assert shapes == {"net.0.proj.weight": (16, 4), "net.0.proj.bias": (16,),
                      "net.2.weight": (4, 8), "net.2.bias": (4,)}
    weights = {name: normal(*shape) for name, shape in shapes.items()}
    weights["net.0.proj.weight"][8:] = 0
    hidden = x @ weights["net.0.proj.weight"][:8].T + weights["net.0.proj.bias"][:8]
    for gate in (50.0, -50.0):
        weights["net.0.proj.bias"][8:] = gate
        expected = hidden * max(gate, 0) @ weights["net.2.weight"].T + weights["net.2.bias"]
        np.testing.assert_allclose(evaluate(g, {"x": x}, weights)["y"], expected, rtol=1e-4,
                                   atol=1e-3)


def test_embedding_reads_rows() -> None:
    g, ids = Graph(), np.array([[2, 0, 2]], np.int32)
    y, w = run(g, nn.embedding(g.input("ids", (1, 3), "i32"), "words", 4, 5), ids=ids)
    np.testing.assert_array_equal(y[0], w["words.weight"][[2, 0, 2]])
