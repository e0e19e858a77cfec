"""Random numbers: of the distribution that is asked for, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from smalti.errors import UnsupportedError
from smalti.frontend.onnx import load
from smalti.graph import evaluate


def drawn(node: str, **inputs: np.ndarray) -> np.ndarray:
    """The result of a node that draws 60 × 500 numbers."""
    types = ", ".join(f"float{list(array.shape)} {name}" for name, array in inputs.items())
    loaded = load(parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]>\n'
        f"m ({types}) => (float[60, 500] y) {{ y = {node} }}"))
    return evaluate(loaded.graph, inputs, loaded.parameters)["y"]


@pytest.mark.parametrize("node, mean, deviation", [
    ("RandomNormal<shape=[60, 500], mean=3.0, scale=2.0, seed=SEED>()", 3, 2),
    ("RandomUniform<shape=[60, 500], low=-1.0, high=5.0, seed=SEED>()", 2, 6 / 12 ** 0.5),
])
def test_numbers_are_of_the_distribution_and_the_seed(node, mean, deviation) -> None:
    first, again, other = (drawn(node.replace("SEED", seed)) for seed in ("1.0", "1.0", "2.0"))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert abs(first.mean() - mean) < 4 * deviation / first.size ** 0.5
    assert abs(first.std() - deviation) < 4 * deviation / first.size ** 0.5


def test_bernoulli_is_one_as_often_as_its_probability_says() -> None:
    probability = np.repeat(np.linspace(0, 1, 60, dtype=np.float32)[:, None], 500, axis=1)
    found = drawn("Bernoulli<seed=5.0>(x)", x=probability)
    assert np.isin(found, (0, 1)).all()
    assert (found[0] == 0).all() and (found[-1] == 1).all()
    bound = 4.5 * (probability[:, 0] * (1 - probability[:, 0]) / 500) ** 0.5
    assert (abs(found.mean(axis=1) - probability[:, 0]) <= bound + 1e-6).all()


def test_a_node_without_a_seed_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="it has no seed"):
        drawn("RandomNormal<shape=[60, 500]>()")
