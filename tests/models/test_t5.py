"""The T5 encoder: its parameters, its buckets, and what native code computes."""

from __future__ import annotations

import numpy as np
import pytest
from native_regions import EACH_LEVEL, check_graph
from transformer_graphs import check_program

from smalti.graph import evaluate, parse, show, verify
from smalti.models import T5_XXL, T5Config, t5_graph
from smalti.models.t5 import position_buckets

TINY = T5Config(64, hidden_size=40, mlp_size=64, layers=2, heads=4, head_dim=8)


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    graph = t5_graph(T5_XXL, 1, 8)
    verify(graph)
    assert show(parse(show(graph))) == show(graph)
    prefix = "text_encoders.t5xxl.transformer."
    shapes = {name.removeprefix(prefix): v.shape for name, v in graph.parameters.items()}
    block = {f"layer.0.SelfAttention.{name}.weight": (4096, 4096) for name in "qkvo"}
    block |= {"layer.1.DenseReluDense.wi_0.weight": (10240, 4096),
              "layer.1.DenseReluDense.wi_1.weight": (10240, 4096),
              "layer.1.DenseReluDense.wo.weight": (4096, 10240),
              "layer.0.layer_norm.weight": (4096,), "layer.1.layer_norm.weight": (4096,)}
    expected = {f"encoder.block.{i}.{name}": shape for i in range(24)
                for name, shape in block.items()}
    expected |= {"shared.weight": (32128, 4096), "encoder.final_layer_norm.weight": (4096,),
                 "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (32, 64)}
    assert shapes == expected


def test_buckets_grow_with_the_logarithm_of_the_distance() -> None:
    """Of 32: one each up to 7, then from 8 * 2^(k / 2) on, k = 0 to 7; 15 for all from 91 on."""
    after = position_buckets(200, 32, 128)[0]
    assert list(after[:8]) == [0, *range(17, 24)]
    firsts = [int(np.argmax(after == bucket)) for bucket in range(24, 32)]
    assert firsts == [8, 12, 16, 23, 32, 46, 64, 91] and after[-1] == 31
    assert (position_buckets(200, 32, 128)[:, 0] == np.where(after > 16, after - 16, 0)).all()


@pytest.mark.parametrize("masked", [False, True])
@EACH_LEVEL
def test_native_code_computes_it(name: str, masked: bool) -> None:
    check_graph(t5_graph(TINY, 2, 9, masked), name)


def test_the_program_computes_it() -> None:
    check_program(t5_graph(TINY, 2, 20, masked=True))


def test_nobody_sees_a_masked_token() -> None:
    graph, rng = t5_graph(TINY, 1, 6, masked=True), np.random.default_rng(0)
    weights = {n: rng.standard_normal(v.shape, np.float32) for n, v in graph.parameters.items()}
    mask = np.array([[1, 1, 1, 1, 0, 0]], np.float32)
    one, other = (evaluate(graph, {"tokens": np.array([[5, 3, 8, 1, *rest]], np.int32),
                                   "mask": mask}, weights)["context"]
                  for rest in ((0, 0), (40, 41)))
    np.testing.assert_array_equal(one[:, :4], other[:, :4])
    assert (one[:, 4:] != other[:, 4:]).any()
