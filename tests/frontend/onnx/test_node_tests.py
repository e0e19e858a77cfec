"""The node tests of ONNX itself: every one is compiled and right, or refused with its nodes listed.

`onnx.backend.test` makes a model, inputs and expected outputs for each, in all domains of the
standard. What is refused is named in `docs/onnx.md`, with the reason.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from smalti.compiler.module import HostCall
from smalti.errors import SmaltiError, UnsupportedError, UnsupportedNode
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.models import compile_model

DOCUMENTED = Path(__file__).resolve().parents[3] / "docs" / "onnx.md"
REFUSED = frozenset({
    "Adagrad", "Adam", "ArrayFeatureExtractor", "Bernoulli", "Binarizer", "Dropout", "LabelEncoder",
    "Momentum", "RandomUniformLike", "RegexFullMatch", "Scan", "TreeEnsemble"})
"""Operators of the nodes that are refused, some of them in certain tests only."""
PASSED_MIN = 0.98
pytestmark = pytest.mark.sweep  # 1,720 models, half a minute
# The tests themselves say that other implementations may draw other numbers for the same seed.
DRAWN = frozenset({"test_bernoulli_seed", "test_bernoulli_seed_expanded"})


@dataclass
class Outcome:
    """What became of a test: how it ran, or which nodes were refused, or what went wrong."""

    name: str
    ran: str = ""
    refused: tuple[UnsupportedNode, ...] = ()
    fault: str = ""


def plain(value: Any) -> Any:
    """An array of a test, which may be given as a TensorProto."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def difference(found: Any, expected: Any, rtol: float, atol: float) -> str:
    """In what way a result is not the expected one, "" where it is."""
    if expected is None or isinstance(expected, list):
        if expected is None or found is None or len(found) != len(expected):
            return "" if found is expected else f"{found} is not {expected}"
        return next(filter(None, (difference(a, b, rtol, atol)
                                  for a, b in zip(found, expected, strict=True))), "")
    found, expected = np.asarray(found), np.asarray(plain(expected))
    if expected.dtype.kind in "OU":
        return "" if found.shape == expected.shape and (found == expected).all() else "strings"
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype}{found.shape} is not {expected.dtype}{expected.shape}"
    if found.dtype in (np.float16, ml_dtypes.bfloat16):  # the reference rounds at each step
        rtol = max(rtol, 2 * float(ml_dtypes.finfo(found.dtype).eps))
    close = np.isclose(found.astype(np.float64), expected.astype(np.float64), rtol, atol,
                       equal_nan=True)
    return "" if close.all() else f"{np.sum(~close)} of {close.size} elements differ"


def unlike_a_draw(found: Any, expected: Any) -> str:
    """In what way a result is not as many zeros and ones of the dtype that is expected."""
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype}{found.shape} is not {expected.dtype}{expected.shape}"
    return "" if np.isin(found, (0, 1)).all() else f"{found} holds more than zeros and ones"


def outcome_of(case: Any) -> Outcome:
    """Compile and run one test."""
    names = [value.name for value in case.model.graph.input]
    outcome = Outcome(case.name)
    for inputs, expected in case.data_sets:
        given = {name: plain(value) for name, value in zip(names, inputs)}
        shapes = {name: array.shape for name, array in given.items()
                  if isinstance(array, np.ndarray)}
        try:
            program = compile_model(case.model, shapes=shapes, threads=1, interpreted_max=0)
            results = list(program.run(given).values())
        except UnsupportedError as error:
            outcome.refused = error.nodes
            outcome.fault = "" if error.nodes else f"no nodes are listed: {error}"
            return outcome
        except SmaltiError as error:
            outcome.fault = f"{type(error).__name__}: {error}"
            return outcome
        if isinstance(program, NativeProgram):
            hosted = any(isinstance(x, HostCall) for x in program.module.launches)
            outcome.ran = "with host calls" if hosted else "native"
        else:
            outcome.ran = "in stages"
        for found, wanted in zip(results, expected, strict=True):
            outcome.fault += (unlike_a_draw(found, wanted) if case.name in DRAWN else
                              difference(found, wanted, case.rtol, case.atol))
    return outcome


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
        assert len(cases) > 1500
        return [outcome_of(case) for case in cases]


def test_every_node_test_is_right_or_refused(outcomes: list[Outcome]) -> None:
    wrong = [f"{outcome.name}: {outcome.fault}" for outcome in outcomes if outcome.fault]
    assert not wrong, "\n".join([f"{len(wrong)} node tests fail:", *wrong])


def test_what_is_refused_is_documented(outcomes: list[Outcome]) -> None:
    operators = {node.operator for outcome in outcomes for node in outcome.refused}
    assert operators <= REFUSED
    text = DOCUMENTED.read_text(encoding="utf-8")
    assert not [operator for operator in REFUSED if f"`{operator}`" not in text]


def test_most_node_tests_pass(outcomes: list[Outcome]) -> None:
    passed = Counter(outcome.ran for outcome in outcomes if not outcome.refused)
    share = passed.total() / len(outcomes)
    print(f"\n{passed.total()} of {len(outcomes)} node tests pass ({share:.1%}): "
          + ", ".join(f"{count} {ran}" for ran, count in passed.most_common()))
    assert share >= PASSED_MIN
