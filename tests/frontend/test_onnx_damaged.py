"""Damaged models are refused in Smalti's own words, or run; `bench/fuzz.py` tries for longer."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from bench import fuzz
from smalti.errors import InputError, SmaltiError
from smalti.frontend.onnx import load
from smalti.runtime.models import compile_model

TRIALS = 400


def test_damaged_models_are_refused_or_run(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    path, (models,) = tmp_path / "model.onnx", fuzz.seeds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(TRIALS):
            rng = random.Random(number)
            data = fuzz.damaged(rng.choice(models), rng)
            if data is not None:
                path.write_bytes(data)
                outcomes[fuzz.trial(path, rng, fuzz.no_limits)] += 1
    refused = {error.__name__ for error in _all(SmaltiError)}
    assert set(outcomes) <= {"runs", fuzz.TOO_MUCH} | refused
    assert outcomes["runs"] > TRIALS // 10 and outcomes["InputError"] > TRIALS // 10


def _all(error: type[SmaltiError]) -> list[type[SmaltiError]]:
    return [error, *(kind for inner in error.__subclasses__() for kind in _all(inner))]


def one_node(operator: str, shape: list[int], **attributes: object) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], **attributes)], "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize("shape", [[1 << 62], [1 << 31, 1 << 31], [1] * 40, [-1], [1 << 20] * 8])
def test_sizes_that_no_computer_has_are_refused(shape: list[int]) -> None:
    with pytest.raises(InputError):
        load(one_node("Relu", shape))


def test_attributes_of_another_type_are_refused() -> None:
    for attributes in ({"axis": "one"}, {"axis": 1.5}, {"axis": [1]}):
        with pytest.raises(InputError, match=r"Softmax.*'axis' is of type"):
            load(one_node("Softmax", [2, 3], **attributes))
    with pytest.raises(InputError, match="'perm' is of type"):
        load(one_node("Transpose", [2, 3], perm=1))


def test_names_that_are_no_text_are_refused() -> None:
    data = one_node("Relu", [2]).SerializeToString().replace(b"\n\x01x", b"\n\x01\xff")
    with pytest.raises(InputError, match="no text"):
        load(onnx.ModelProto.FromString(data))


def test_a_shape_of_a_trillion_elements_costs_nothing_to_refuse() -> None:
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["s"], ["y"])], "m", [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("s", TensorProto.INT64, [2], [1 << 21, 1 << 21])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    with pytest.raises(SmaltiError, match="larger than any memory"):
        compile_model(model, threads=1)
