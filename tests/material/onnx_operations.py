"""Cases for operations of the wide rest of ONNX: what equals them there, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from smalti.graph import Graph

OPSET = 22
RNG = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def rows(limit: int, *shape: int) -> np.ndarray:
    """Indices of `limit` elements, from both ends."""
    return RNG.integers(-limit, limit, shape)


def distinct(limit: int, *shape: int) -> np.ndarray:
    """Different indices along the last axis."""
    return RNG.permuted(np.broadcast_to(np.arange(limit), (*shape[:-1], limit)), axis=-1)[
        ..., :shape[-1]]


@dataclass(frozen=True)
class Case:
    """A record on arrays, and the node of ONNX that means the same.

    `operands` are ONNX's where they differ; `result` picks ours from its results, `picked` is the
    part of ours that is compared.
    """

    operation: str
    arrays: tuple[np.ndarray, ...]
    attributes: dict[str, Any]
    operator: str
    fields: dict[str, Any] = field(default_factory=dict)
    operands: tuple[np.ndarray | None, ...] | None = None
    results: int = 1
    result: Callable[..., np.ndarray] = lambda *found: found[0]
    opset: int = OPSET
    picked: int | None = None

    def __str__(self) -> str:
        return f"{self.operation} {self.attributes}"

    def expected(self) -> np.ndarray:
        """What ONNX's reference makes of it."""
        arrays = self.arrays if self.operands is None else self.operands
        names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
        results = [f"y{i}" for i in range(self.results)]
        node = helper.make_node(self.operator, names, results, **self.fields)
        given = {name: a for name, a in zip(names, arrays, strict=True) if name}
        graph = helper.make_graph(
            [node], "g",
            [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
             for name, a in given.items()],
            [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in results])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        return self.result(*ReferenceEvaluator(model).run(None, given))


def graph_of(case: Case) -> tuple[Graph, dict[str, np.ndarray]]:
    g, inputs = Graph(case.operation), {}
    for i, array in enumerate(case.arrays):
        inputs[f"x{i}"] = array
        g.input(f"x{i}", array.shape, g.constant(array[..., :0]).dtype)
    g.output("y", g.apply(case.operation, *g.inputs.values(), **case.attributes))
    return g, inputs


X345, X44 = numbers(3, 4, 5), numbers(4, 4)
IMAGE = numbers(2, 4, 5, 6)
TIED = np.array([[1, 3, 3, 2, 1], [5, 5, 0, 1, 5]], np.float32)


def scatter(reduction: str) -> list[Case]:
    places, updates = distinct(4, 3, 2, 3).swapaxes(1, 2) - 4, numbers(3, 3, 2)
    spots = np.array([[0, 1], [2, -1], [2, 3]])
    fields = {"reduction": reduction}
    return [Case("scatter_elements", (X345, places, updates), {"axis": 1, **fields},
                 "ScatterElements", {"axis": 1, **fields}),
            Case("scatter_nd", (X345, spots, numbers(3, 5)), fields, "ScatterND", fields,
                 operands=None)]


def running(exclusive: int, reverse: int) -> list[Case]:
    fields = {"exclusive": exclusive, "reverse": reverse}
    return [Case(name, (X345,), {"axis": 1, **fields}, operator, fields,
                 operands=(X345, np.array(1)), opset=26)
            for name, operator in (("cum_sum", "CumSum"), ("cum_prod", "CumProd"))]


def extremes(last: int, keep: int) -> list[Case]:
    fields = {"axis": -1, "keepdims": keep, "select_last_index": last}
    return [Case("arg_max", (TIED,), fields, "ArgMax", fields),
            Case("arg_min", (TIED,), fields, "ArgMin", fields)]


def top(k: int, axis: int, largest: int) -> Case:
    return Case("top_k_indices", (X345,), {"k": k, "axis": axis, "largest": largest}, "TopK",
                {"axis": axis, "largest": largest}, operands=(X345, np.array([k])), results=2,
                result=lambda values, places: places)


def layer(name: str, gates: int, direction: str, activations: tuple[str, ...],
          **fields: Any) -> Case:
    """A recurrent layer of 4 steps of 2 sequences, 3 wide, 5 hidden."""
    d, h = 2 if direction == "bidirectional" else 1, 5
    arrays = [numbers(4, 2, 3), numbers(d, gates * h, 3), numbers(d, gates * h, h),
              numbers(d, 2 * gates * h), np.array([4, 4], np.int32), numbers(d, 2, h)]
    if name == "lstm":
        arrays += [numbers(d, 2, h), numbers(d, 3 * h)]
    attributes = {"direction": direction, "activations": activations * d,
                  "alphas": (0.0,) * d * len(activations), "betas": (0.0,) * d * len(activations)}
    return Case(name, tuple(arrays), {**attributes, **fields}, name.upper(),
                {"direction": direction, "hidden_size": h, **fields},
                operands=(*arrays[:4], None, *arrays[5:]), picked=0 if name == "lstm" else None)


def image_of(fields: dict[str, Any], *extra: np.ndarray) -> Case:
    x, w = numbers(2, 4, 3, 5), numbers(4, 3, 3, 2)
    return Case("conv_transpose", (x, w, *extra), fields, "ConvTranspose", fields)


GRID = RNG.uniform(-1.4, 1.4, (2, 3, 4, 2)).astype(np.float32)
CUBE = RNG.uniform(-1.4, 1.4, (2, 3, 2, 2, 3)).astype(np.float32)


def grid(mode: str, padding: str, align: int) -> Case:
    fields = {"mode": mode, "padding_mode": padding, "align_corners": align}
    return Case("grid_sample", (IMAGE, GRID), fields, "GridSample", fields)


REGIONS = np.array([[0, 0, 9, 9], [2, 3, 6, 5], [-3, 1, 4, 20]], np.float32)


def region(mode: str, half_pixel: int, samples: int) -> Case:
    fields = {"output_height": 2, "output_width": 3, "spatial_scale": 0.5,
              "sampling_ratio": samples, "mode": mode}
    corners = "half_pixel" if half_pixel else "output_half_pixel"
    return Case("roi_align", (numbers(2, 3, 6, 7), REGIONS, np.array([0, 1, 1])),
                {**fields, "half_pixel": half_pixel}, "RoiAlign",
                {**fields, "coordinate_transformation_mode": corners})


def deformed(group: int, offset_group: int, **fields: Any) -> Case:
    w = numbers(4, 4 // group, 2, 3)
    full = {"pads": (1, 0, 1, 0), "group": group, "offset_group": offset_group, **fields}
    strides, dilations = fields.get("strides", (1, 1)), fields.get("dilations", (1, 1))
    spatial = [(n + p - d * (k - 1) - 1) // s + 1 for n, p, k, s, d in
               zip((5, 6), (2, 0), (2, 3), strides, dilations, strict=True)]
    taps = offset_group * 6
    return Case("deform_conv",
                (IMAGE, w, numbers(2, 2 * taps, *spatial), numbers(4), numbers(2, taps, *spatial)),
                full, "DeformConv", full)


def transform(array: np.ndarray, axis: int, length: int, **fields: int) -> Case:
    return Case("dft", (array,), {"axis": axis, "length": length, **fields}, "DFT", fields,
                operands=(array, np.array(length), np.array(axis)))


COLUMNS = {"strides": (2, 1), "dilations": (1, 2), "pads": (1, 0, 1, 2)}
BLOCKS = numbers(2, 3 * 6, 3 * 5)

VOLUME = {"strides": (1, 2, 2), "pads": (1, 0, 1, 0, 1, 1), "dilations": (2, 1, 1), "group": 2}

CASES = [
    Case("conv", (numbers(2, 4, 5, 6, 7), numbers(6, 2, 2, 3, 3), numbers(6)), VOLUME, "Conv",
         VOLUME),
    Case("gather_elements", (X345, rows(4, 3, 2, 5)), {"axis": 1}, "GatherElements", {"axis": 1}),
    Case("gather_elements", (X345, rows(5, 3, 4, 7).astype(np.int32)), {"axis": -1},
         "GatherElements", {"axis": 2}),
    Case("gather_nd", (X345, rows(3, 2, 2)), {}, "GatherND"),
    Case("gather_nd", (X345, rows(4, 3, 6, 1)), {"batch_dims": 1}, "GatherND", {"batch_dims": 1}),
    *scatter("none"), *scatter("add"), *scatter("mul"), *scatter("max"), *scatter("min"),
    Case("reverse_sequence", (X345, np.array([1, 3, 0, 2])), {}, "ReverseSequence"),
    Case("reverse_sequence", (X345, np.array([4, 1, 2])), {"batch_axis": 0, "time_axis": 1},
         "ReverseSequence", {"batch_axis": 0, "time_axis": 1}),
    *running(0, 0), *running(1, 0), *running(0, 1), *running(1, 1),
    *extremes(0, 1), *extremes(1, 0), *extremes(1, 1),
    top(2, -1, 1), top(3, 0, 0), top(4, 1, 1),
    layer("rnn", 1, "forward", ("tanh",)),
    layer("gru", 3, "forward", ("sigmoid", "tanh")),
    layer("gru", 3, "forward", ("sigmoid", "tanh"), linear_before_reset=1),
    layer("lstm", 4, "forward", ("sigmoid", "tanh", "tanh")),
    image_of({}), image_of({"strides": (2, 3), "pads": (1, 0, 0, 1)}, numbers(3)),
    image_of({"dilations": (2, 1), "strides": (3, 1), "output_padding": (2, 0)}),
    Case("conv_transpose", (numbers(1, 2, 4), numbers(2, 3, 3)),
         {"strides": (2,), "pads": (1, 1), "dilations": (1,), "output_padding": (1,)},
         "ConvTranspose", {"strides": (2,), "pads": (1, 1), "output_padding": (1,)}),
    Case("col2im", (BLOCKS,), {"image_shape": (5, 7), "block_shape": (2, 3), **COLUMNS}, "Col2Im",
         COLUMNS, operands=(BLOCKS, np.array([5, 7]), np.array([2, 3]))),
    *(grid(mode, padding, align) for mode in ("nearest", "linear", "cubic")
      for padding in ("zeros", "border", "reflection") for align in (0, 1)
      if (mode, padding) != ("cubic", "border")),
    Case("grid_sample", (numbers(2, 3, 4, 3, 5), CUBE), {}, "GridSample"),
    *(region(mode, half, samples) for mode in ("avg", "max") for half in (0, 1)
      for samples in (0, 2)),
    deformed(1, 1), deformed(2, 2, strides=(2, 1), dilations=(1, 2)),
    Case("det", (numbers(2, 3, 4, 4),), {}, "Det"),
    transform(numbers(3, 6, 4, 1), 1, 6), transform(numbers(3, 6, 4, 2), 2, 7),
    transform(numbers(3, 6, 4, 1), -3, 5, onesided=1),
    transform(numbers(3, 6, 4, 2), 1, 6, inverse=1),
    transform(numbers(3, 4, 2), 1, 6, inverse=1, onesided=1),
]

S3, S4, I3 = (2, 3, 4), (1, 4, 8, 8), ("i64", 2, 3, 4)
ROWS = {"activations": ["tanh"], "alphas": [0.0], "betas": [0.0]}
RNN = [S3, (1, 5, 4), (1, 5, 5), (1, 10), ("i32", 3), (1, 3, 5)]
WINDOW = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
DEFORM = [S4, (2, 4, 3, 3), (1, 18, 6, 6), (2,), (1, 9, 6, 6)]
POOLED = {"output_height": 2, "output_width": 2}
HUGE = 1 << 40

# operation, shapes (a dtype may stand before the extents), attributes, words of the message
REFUSED = [
    ("gather_elements", [S3, S3], {"axis": 0}, "integers of the same rank"),
    ("gather_elements", [S3, ("i64", 2, 4, 4)], {"axis": 0}, "no larger along other axes"),
    ("gather_elements", [S3, I3], {"axis": 3}, "gather_elements axis 3 does not exist"),
    ("scatter_elements", [S3, I3, (2, 3, 5)], {"axis": 0}, "updates of one shape"),
    ("scatter_elements", [S3, I3, S3], {"axis": 0, "reduction": "mean"}, "no reduction 'mean'"),
    ("gather_nd", [S3, ("i64", 2, 4)], {}, "d axes to pick from"),
    ("gather_nd", [S3, ("i64", 3, 1)], {"batch_dims": 1}, "1 batch dimensions"),
    ("gather_nd", [S3, ("i64", 2, 1)], {"batch_dims": -1}, "-1 batch dimensions"),
    ("scatter_nd", [S3, ("i64", 2, 1), (2, 3, 5)], {}, "an update for each"),
    ("scatter_nd", [S3, ("i64", 2, 4), (2,)], {}, "an update for each"),
    ("reverse_sequence", [S3, ("i64", 4)], {}, "one length a sequence"),
    ("reverse_sequence", [S3, ("i64", 2)], {"batch_axis": 0, "time_axis": 2}, "the axes 0 and 1"),
    ("cum_sum", [S3], {"axis": 3}, "cum_sum axis 3 does not exist"),
    ("cum_prod", [S3], {"axis": -4}, "cum_prod axis -4 does not exist"),
    ("arg_max", [S3], {"axis": 3}, "arg_max axis 3 does not exist"),
    ("arg_min", [(2, 0)], {"axis": 1}, "along the empty axis 1"),
    ("top_k_indices", [S3], {"k": 5}, "5 of 4 along axis 2"),
    ("top_k_indices", [S3], {"k": -1}, "-1 of 4"),
    ("rnn", RNN, {**ROWS, "activations": ["step"]}, "1 of the activations"),
    ("rnn", RNN, {**ROWS, "direction": "back"}, "a direction of"),
    ("rnn", [S3, (1, 4, 4), *RNN[2:]], ROWS, "[[1, 5, 4], [1, 5, 5], [1, 10], [3], [1, 3, 5]]"),
    ("gru", RNN, {**ROWS, "activations": ["tanh"] * 2, "alphas": [0, 0], "betas": [0, 0]},
     "gru of f32[2, 3, 4] with"),
    ("lstm", [*RNN, (1, 3, 5), (1, 15)], {**ROWS}, "3 of the activations"),
    ("resample", [S3, ("i64", 5, 2), (5, 3)], {"axis": 0}, "places and weights [extent, taps]"),
    ("grid_sample", [S4, (1, 2, 2, 3)], {}, "as many coordinates"),
    ("grid_sample", [S4, (1, 2, 2, 2)], {"mode": "area"}, "one of each of"),
    ("deform_conv", [*DEFORM[:2], (1, 9, 6, 6), *DEFORM[3:]], {}, "offset, bias and mask"),
    ("deform_conv", DEFORM, {"strides": (0, 1)}, "[n, c, h, w] and [o, c / group, r, s]"),
    ("roi_align", [S4, (2, 4), ("i64", 3)], POOLED, "[regions, 4] are expected"),
    ("max_roi_pool", [S4, (2, 4)], POOLED, "[regions, 5] are expected"),
    ("conv_transpose", [S4, (3, 2, 3, 3)], {}, "[c, o / group, …] are expected"),
    ("conv_transpose", [S4, (4, 2, 3, 3)], {"pads": (9, 9, 9, 9)}, "larger than the image"),
    ("conv_transpose", [S4, (4, 2, 3, 3)], {"strides": (1, -1)}, "2 positive numbers"),
    ("conv_transpose", [S4, (4, 2, 3, 3)], {"output_padding": (1, -1)}, "output_padding of 2"),
    ("conv_transpose", [S4, (4, 2, 3, 3), (3,)], {}, "bias is f32[3], expected [2]"),
    ("col2im", [(1, 5, 4)], {"image_shape": (3, 3), "block_shape": (2, 2), **WINDOW},
     "[n, c * 4, 4] is expected"),
    ("col2im", [(1, 4, 4)], {"image_shape": (HUGE, HUGE), "block_shape": (2, 2), **WINDOW},
     "is expected"),
    ("det", [S3], {}, "square matrices [..., n, n] are expected"),
    ("bit_cast", [S3], {"to": "f64"}, "numbers of as many bits"),
    ("bit_cast", [("u8", 3)], {"to": "bool"}, "numbers of as many bits"),
    ("cast", [S3], {"to": "f8e8m0", "round_mode": "odd"}, "up, down or nearest is expected"),
    ("max_pool_indices", [S4], {**WINDOW, "kernel_shape": (9, 9)}, "do not fit"),
    ("dft", [S3], {"axis": 1, "length": 4}, "[n, …, 1] or complex"),
    ("dft", [(2, 3, 2)], {"axis": 1, "length": 3, "onesided": 1}, "one-sided transform of a"),
    ("dft", [(2, 3, 2)], {"axis": 1, "length": 0}, "length 0"),
]
