"""Einstein sums against numpy's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from smalti.errors import InputError
from smalti.frontend.onnx import load
from smalti.graph import evaluate, verify


def model(equation: str, *shapes: tuple[int, ...]) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(shapes))]
    graph = helper.make_graph(
        [helper.make_node("Einsum", names, ["y"], equation=equation)], "m",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
         for name, shape in zip(names, shapes, strict=True)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize(("equation", "shapes"), [
    ("ij->ji", [(2, 3)]), ("ij->i", [(2, 3)]), ("ij->", [(2, 3)]), ("ii->i", [(3, 3)]),
    ("iji->j", [(3, 2, 3)]), ("...ii->...i", [(2, 3, 3)]), ("ij", [(2, 3)]), ("ba", [(2, 3)]),
    ("ij,jk->ik", [(2, 3), (3, 4)]), ("ij,jk", [(2, 3), (3, 4)]), ("i,i", [(3,), (3,)]),
    ("i,j->ij", [(2,), (3,)]), ("i,j->ji", [(2,), (3,)]), ("ij,ij->ij", [(2, 3), (2, 3)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("bhqk,bkhd->bqhd", [(2, 3, 4, 5), (2, 5, 3, 6)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 6)]), ("b i d, b j d -> b i j",
                                                        [(2, 3, 4), (2, 5, 4)]),
    ("ij,k->i", [(2, 3), (4,)]), ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
    ("abc,cb,bd->ad", [(2, 3, 4), (4, 3), (3, 5)]),
])
def test_sums_are_those_of_numpy(equation: str, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    graph = load(model(equation, *shapes)).graph
    verify(graph)
    found = evaluate(graph, {f"x{i}": array for i, array in enumerate(arrays)}, {})["y"]
    expected = np.einsum(equation.replace(" ", ""), *arrays)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("equation", "shapes"), [
    ("ij->ik", [(2, 3)]), ("ij,jk->ik", [(2, 3)]), ("ij->ii", [(2, 3)]), ("ij", [(2, 3, 4)]),
    ("ii->i", [(2, 3)]), ("ij,jk->ik", [(2, 3), (4, 5)]), ("i-j", [(2,)]), ("", [(2,)]),
])
def test_equations_that_do_not_fit_are_refused(equation: str, shapes: list) -> None:
    with pytest.raises(InputError, match="Einsum"):
        load(model(equation, *shapes))
