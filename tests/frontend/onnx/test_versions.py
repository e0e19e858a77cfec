"""Operators that are spelled in another way in each version: all spellings mean the same.

A spelling is a version of the operators, the operands and the attributes; what they mean is said
once, with numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from smalti.frontend.onnx import load
from smalti.graph import evaluate

NEWEST = onnx.defs.onnx_opset_version()
RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 3, 4, 5), dtype=np.float32)
ROWS = RNG.standard_normal((4, 7), dtype=np.float32)
FLAT = RNG.standard_normal((1, 3, 1, 4), dtype=np.float32)
SCALE, BIAS, MEAN = (RNG.standard_normal(3, dtype=np.float32) for _ in range(3))
VARIANCE = RNG.random(3, dtype=np.float32) + 0.5
SIX = RNG.standard_normal((2, 6, 3, 3), dtype=np.float32)
DEEP = np.arange(1 * 8 * 2 * 3, dtype=np.float32).reshape(1, 8, 2, 3)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def floats(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


class Spelling(NamedTuple):
    """A node; the first operand is an input of the model, the others are known."""

    operator: str
    opset: int
    operands: Sequence[np.ndarray | None]
    fields: dict[str, Any] = {}
    results: int = 1

    @property
    def model(self) -> onnx.ModelProto:
        """The model of this node alone."""
        names = ["" if array is None else f"x{i}" for i, array in enumerate(self.operands)]
        x = helper.make_tensor_value_info(
            "x0", helper.np_dtype_to_tensor_dtype(self.operands[0].dtype), self.operands[0].shape)
        outputs = [onnx.ValueInfoProto(name=f"y{i}") for i in range(self.results)]
        node = helper.make_node(self.operator, names, [o.name for o in outputs], **self.fields)
        known = [numpy_helper.from_array(array, name)
                 for array, name in zip(self.operands[1:], names[1:]) if array is not None]
        graph = helper.make_graph([node], "m", [x], outputs, known)
        return helper.make_model(graph, ir_version=10, opset_imports=[
            helper.make_opsetid("", self.opset)])


def softmax(x: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def hardmax(x: np.ndarray, axis: int) -> np.ndarray:
    best = np.expand_dims(x.argmax(axis), axis)
    return (np.arange(x.shape[axis]) == np.moveaxis(best, axis, -1)).astype(np.float32)


def per_channel(scale: np.ndarray) -> np.ndarray:
    return scale.reshape(-1, 1, 1)


NORMALIZED = ((X - per_channel(MEAN)) / np.sqrt(per_channel(VARIANCE) + 1e-5)
              * per_channel(SCALE) + per_channel(BIAS))
STATISTICS = [X, SCALE, BIAS, MEAN, VARIANCE]
GROUPS = SIX.reshape(2, 2, -1)
GROUPED = ((GROUPS - GROUPS.mean(2, keepdims=True))
           / np.sqrt(GROUPS.var(2, keepdims=True) + 1e-5)).reshape(SIX.shape)
TWO = floats(2, -1)
ORDER = np.argsort(-ROWS, axis=1, kind="stable")[:, :3]
PADDED = np.pad(ROWS, ((1, 0), (0, 2)), constant_values=1.5)
NEAREST = X.repeat(2, 2).repeat(3, 3)
CUT = X[:, 1:3, :, 1:4]
REDUCTIONS = {
    "ReduceMean": lambda x, axes: x.mean(axes), "ReduceMax": lambda x, axes: x.max(axes),
    "ReduceMin": lambda x, axes: x.min(axes), "ReduceProd": lambda x, axes: x.prod(axes),
    "ReduceL1": lambda x, axes: abs(x).sum(axes), "ReduceSumSquare": lambda x, axes:
    (x * x).sum(axes), "ReduceL2": lambda x, axes: np.sqrt((x * x).sum(axes)),
    "ReduceLogSum": lambda x, axes: np.log(x.sum(axes)),
    "ReduceLogSumExp": lambda x, axes: np.log(np.exp(x).sum(axes)),
}

CASES: list[tuple[list[np.ndarray], list[Spelling]]] = [
    ([FLAT[0, :, 0]], [
        Spelling("Squeeze", 1, [FLAT], {"axes": [0, 2]}),
        Spelling("Squeeze", 11, [FLAT], {"axes": [0, -2]}), Spelling("Squeeze", 11, [FLAT]),
        *(Spelling("Squeeze", v, [FLAT, ints(0, -2)]) for v in (13, 21, NEWEST)),
        Spelling("Squeeze", 13, [FLAT])]),
    ([X[:, None, ..., None]], [
        Spelling("Unsqueeze", 1, [X], {"axes": [1, 5]}),
        Spelling("Unsqueeze", 11, [X], {"axes": [-1, 1]}),
        *(Spelling("Unsqueeze", v, [X, ints(-1, 1)]) for v in (13, 21, NEWEST))]),
    ([X.clip(-0.5, 0.75)], [
        Spelling("Clip", 6, [X], {"min": -0.5, "max": 0.75}),
        *(Spelling("Clip", v, [X, np.float32(-0.5), np.float32(0.75)])
          for v in (11, 12, 13, NEWEST))]),
    ([X.clip(None, 0.75)], [
        Spelling("Clip", 6, [X], {"max": 0.75}),
        *(Spelling("Clip", v, [X, None, np.float32(0.75)]) for v in (11, 13, NEWEST))]),
    ([PADDED], [
        Spelling("Pad", 2, [ROWS], {"pads": [1, 0, 0, 2], "value": 1.5}),
        *(Spelling("Pad", v, [ROWS, ints(1, 0, 0, 2), np.float32(1.5)])
          for v in (11, 13, 18, 21, NEWEST)),
        Spelling("Pad", 18, [ROWS, ints(0, 1, 2, 0), np.float32(1.5), ints(-1, 0)])]),
    ([np.pad(ROWS, ((1, 1), (2, 0)), mode="reflect")], [
        Spelling("Pad", 2, [ROWS], {"pads": [1, 2, 1, 0], "mode": "reflect"}),
        Spelling("Pad", 11, [ROWS, ints(1, 2, 1, 0)], {"mode": "reflect"}),
        Spelling("Pad", NEWEST, [ROWS, ints(1, 2, 1, 0)], {"mode": "reflect"})]),
    ([np.pad(ROWS, ((1, 1), (2, 0)), mode="wrap")], [
        Spelling("Pad", 19, [ROWS, ints(1, 2, 1, 0)], {"mode": "wrap"})]),
    ([X.sum((1, 3))], [
        Spelling("ReduceSum", 1, [X], {"axes": [1, 3], "keepdims": 0}),
        Spelling("ReduceSum", 11, [X], {"axes": [1, -1], "keepdims": 0}),
        *(Spelling("ReduceSum", v, [X, ints(1, -1)], {"keepdims": 0}) for v in (13, NEWEST))]),
    ([X.sum(keepdims=True)], [
        Spelling("ReduceSum", 11, [X]), Spelling("ReduceSum", 13, [X]),
        Spelling("ReduceSum", 13, [X, ints()])]),
    ([X], [Spelling("ReduceSum", 13, [X, ints()], {"noop_with_empty_axes": 1}),
           Spelling("ReduceMax", 18, [X], {"noop_with_empty_axes": 1}),
           *(Spelling("Dropout", v, [X]) for v in (7, 10, 12, 13, 22)),
           Spelling("Dropout", 7, [X], {"ratio": 0.9}),
           Spelling("Dropout", 12, [X, np.float32(0.9), np.array(False)])]),
    ([X, np.ones(X.shape, bool)], [
        Spelling("Dropout", v, [X], {}, 2) for v in (12, 13, 22)]),
    *(([form(abs(X), (0, 2))], [
        Spelling(name, 11, [abs(X)], {"axes": [0, -2], "keepdims": 0}),
        Spelling(name, 13, [abs(X)], {"axes": [0, 2], "keepdims": 0}),
        *(Spelling(name, v, [abs(X), ints(0, -2)], {"keepdims": 0}) for v in (18, NEWEST))])
      for name, form in REDUCTIONS.items()),
    ([ROWS[:, :3], ROWS[:, 3:4], ROWS[:, 4:]], [
        Spelling("Split", 2, [ROWS], {"axis": 1, "split": [3, 1, 3]}, 3),
        Spelling("Split", 11, [ROWS], {"axis": -1, "split": [3, 1, 3]}, 3),
        *(Spelling("Split", v, [ROWS, ints(3, 1, 3)], {"axis": -1}, 3) for v in (13, 18, NEWEST))]),
    ([ROWS[:2], ROWS[2:]], [
        *(Spelling("Split", v, [ROWS], {}, 2) for v in (2, 11, 13)),
        Spelling("Split", 18, [ROWS], {"num_outputs": 2}, 2)]),
    ([ROWS[:, :3], ROWS[:, 3:6], ROWS[:, 6:]], [
        Spelling("Split", 18, [ROWS], {"num_outputs": 3, "axis": 1}, 3)]),
    ([softmax(X, (1, 2, 3))], [Spelling("Softmax", 1, [X]), Spelling("Softmax", 11, [X])]),
    ([softmax(X, (2, 3))], [Spelling("Softmax", 11, [X], {"axis": -2})]),
    ([softmax(X, -1)], [Spelling("Softmax", v, [X]) for v in (13, NEWEST)]),
    ([softmax(X, 1)], [Spelling("Softmax", 13, [X], {"axis": 1})]),
    ([np.log(softmax(X, (1, 2, 3)))], [Spelling("LogSoftmax", 11, [X])]),
    ([floats([-200, 0])], [Spelling("LogSoftmax", v, [floats([-200, 0])]) for v in (11, 13)]),
    ([np.log(softmax(X, -1))], [Spelling("LogSoftmax", 13, [X])]),
    ([hardmax(X.reshape(2, -1), 1).reshape(X.shape)], [Spelling("Hardmax", 11, [X])]),
    ([hardmax(X, 3)], [Spelling("Hardmax", 13, [X])]),
    ([NEAREST], [
        Spelling("Upsample", 7, [X], {"scales": [1.0, 1.0, 2.0, 3.0]}),
        Spelling("Upsample", 9, [X, floats(1, 1, 2, 3)]),
        Spelling("Resize", 10, [X, floats(1, 1, 2, 3)]),
        Spelling("Resize", 11, [X, floats(), floats(1, 1, 2, 3)]),
        *(Spelling("Resize", v, [X, None, floats(1, 1, 2, 3)]) for v in (13, 18, NEWEST)),
        Spelling("Resize", 11, [X, floats(), floats(), ints(2, 3, 8, 15)]),
        Spelling("Resize", 13, [X, None, None, ints(2, 3, 8, 15)]),
        Spelling("Resize", 18, [X, None, floats(3, 2)], {"axes": [3, 2]}),
        Spelling("Resize", 19, [X, None, None, ints(8, 15)], {"axes": [2, 3]})]),
    ([X[:, :, ::2]], [
        Spelling("Resize", 10, [X, floats(1, 1, 0.5, 1)]),
        Spelling("Resize", 11, [X, floats(), floats(1, 1, 0.5, 1)], {
            "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"})]),
    ([NORMALIZED], [
        *(Spelling("BatchNormalization", v, STATISTICS) for v in (7, 9, 14, 15, NEWEST)),
        Spelling("BatchNormalization", 14, STATISTICS, {"training_mode": 0})]),
    ([GROUPED * TWO.repeat(3).reshape(-1, 1, 1) + 0.5], [
        Spelling("GroupNormalization", 18, [SIX, TWO, floats(0.5, 0.5)], {"num_groups": 2}),
        Spelling("GroupNormalization", 21, [SIX, TWO.repeat(3), floats(*[0.5] * 6)],
                 {"num_groups": 2})]),
    ([np.take_along_axis(ROWS, ORDER, 1), ORDER], [
        Spelling("TopK", 1, [ROWS], {"k": 3}, 2), Spelling("TopK", 10, [ROWS, ints(3)], {}, 2),
        *(Spelling("TopK", v, [ROWS, ints(3)], {"largest": 1}, 2) for v in (11, 24))]),
    ([np.sort(ROWS, 0)[:2], ROWS.argsort(0)[:2]], [
        Spelling("TopK", 11, [ROWS, ints(2)], {"largest": 0, "axis": 0}, 2)]),
    ([CUT], [
        Spelling("Slice", 1, [X], {"starts": [1, 1], "ends": [3, -1], "axes": [1, 3]}),
        *(Spelling("Slice", v, [X, ints(1, 1), ints(3, -1), ints(1, 3)])
          for v in (10, 11, 13, NEWEST)),
        Spelling("Slice", 13, [X, ints(0, 1, 0, 1), ints(9, 3, 1 << 62, -1)])]),
    ([X[:, :, ::-2]], [
        Spelling("Slice", v, [X, ints(-1), ints(-(1 << 62)), ints(2), ints(-2)])
        for v in (10, 11, 13)]),
    ([X.reshape(2, 12, 5)], [
        *(Spelling("Reshape", v, [X, ints(0, -1, 5)]) for v in (5, 13, 14, NEWEST)),
        Spelling("Reshape", 1, [X], {"shape": [0, -1, 5]})]),
    ([X.reshape(24, 5)], [
        Spelling("Flatten", 9, [X], {"axis": 3}), Spelling("Flatten", 11, [X], {"axis": -1}),
        Spelling("Flatten", NEWEST, [X], {"axis": 3})]),
    ([ROWS @ ROWS.T], [
        Spelling("Gemm", 7, [ROWS, ROWS, floats(0)], {"transB": 1}),
        *(Spelling("Gemm", v, [ROWS, ROWS], {"transB": 1}) for v in (11, 13))]),
    ([DEEP.reshape(1, 2, 2, 2, 2, 3).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 6)], [
        Spelling("DepthToSpace", 1, [DEEP], {"blocksize": 2}),
        Spelling("DepthToSpace", 11, [DEEP], {"blocksize": 2}),
        Spelling("DepthToSpace", NEWEST, [DEEP], {"blocksize": 2, "mode": "DCR"})]),
    ([np.where(np.arange(7) == 2, np.float32(9), ROWS)], [
        Spelling(name, v, [ROWS, ints(2, 2, 2, 2)[:, None], floats(9, 9, 9, 9)[:, None]],
                 {"axis": 1})
        for name, v in (("Scatter", 9), ("ScatterElements", 11), ("ScatterElements", 18))]),
    ([ROWS.argmax(1)], [
        Spelling("ArgMax", v, [ROWS], {"axis": axis, "keepdims": 0})
        for v, axis in ((1, 1), (11, -1), (12, -1), (13, 1))]),
    ([ROWS ** 2], [
        Spelling("Pow", 7, [ROWS, np.float32(2)]), Spelling("Pow", 12, [ROWS, np.int64(2)]),
        Spelling("Pow", 15, [ROWS, np.int32(2)])]),
    ([ROWS.cumsum(1)], [Spelling("CumSum", v, [ROWS, np.int64(1)]) for v in (11, 14)]),
]
SPELLINGS = [(spelling, expected) for expected, spellings in CASES for spelling in spellings]
NAMES = [f"{s.operator}-{s.opset}-{i}" for i, (s, _) in enumerate(SPELLINGS)]


@pytest.mark.parametrize(("spelling", "expected"), SPELLINGS, ids=NAMES)
def test_every_version_means_what_it_says(spelling: Spelling, expected: list[np.ndarray]) -> None:
    loaded = load(spelling.model)
    found = evaluate(loaded.graph, {"x0": spelling.operands[0]}, loaded.parameters)
    for array, wanted in zip(found.values(), expected):
        assert array.shape == wanted.shape and array.dtype == wanted.dtype
        np.testing.assert_allclose(array, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.peers
@pytest.mark.parametrize(("spelling", "expected"), [
    pair for pair in SPELLINGS if 7 <= pair[0].opset <= 22])
def test_onnx_runtime_reads_the_same(spelling: Spelling, expected: list[np.ndarray]) -> None:
    import onnxruntime

    model = spelling.model
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=["CPUExecutionProvider"])
    for array, wanted in zip(session.run(None, {"x0": spelling.operands[0]}), expected):
        np.testing.assert_allclose(array, wanted, rtol=2e-5, atol=2e-6)
