"""Every shape rule refuses what does not fit, and says what was given and what was expected."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx_operations import REFUSED as WIDE

from smalti.errors import InputError
from smalti.graph import OPERATIONS, Graph, evaluate

S3, S4 = (2, 3, 4), (1, 4, 8, 8)

# operation, shapes (a dtype may stand before the extents), attributes, words of the message
REFUSED = [
    ("add", [(2, 3), (4,)], {}, "shapes [(2, 3), (4,)] do not broadcast"),
    ("add", [(3,), ("i32", 3)], {}, "dtypes differ: ['f32', 'i32']"),
    ("add", [(3,)], {}, "add takes 2 inputs, got 1"),
    ("silu", [(3,)], {"beta": 1}, "silu has no attribute ['beta']"),
    ("mat_mul", [S3, (3, 4)], {}, "mat_mul of f32[2, 3, 4] and f32[3, 4]: [..., m, k]"),
    ("mat_mul", [(3,), (3, 4)], {}, "mat_mul of f32[3] and f32[3, 4]"),
    ("mat_mul", [S3, (3, 4, 5)], {}, "do not broadcast"),
    ("mat_mul_integer", [S3, (4, 5), (1,), (1,)], {}, "mat_mul_integer of f32[2, 3, 4] with"),
    ("mat_mul_integer", [("u8", 3, 4), ("i8", 4, 5), ("i8",), ("i8",)], {}, "zero point i8[]"),
    ("mat_mul_integer", [("u8", 3, 4), ("i8", 3, 5), ("u8",), ("i8",)], {}, "[..., m, k] and"),
    ("mat_mul_rounded", [S3, (4, 5), ("f32",)], {}, "u8, i8 or i16, f32 and one zero point"),
    ("mat_mul_rounded", [("u8", 3, 4), (4, 5), ("u8", 1)], {}, "zero point u8[1]"),
    ("mat_mul_rounded", [("u8", 3, 4), (2, 4, 5), ("u8",)], {}, "one matrix is expected"),
    ("conv_rounded", [("u8", *S4), (2, 3, 3, 3), ("u8",)], {}, "3 expected"),
    ("conv_integer", [("u8", *S4), ("i8", 2, 3, 3, 3), ("u8",), ("i8",)], {}, "3 expected"),
    ("conv", [(4, 8, 8), (2, 4, 3, 3)], {}, "conv of f32[4, 8, 8] with f32[2, 4, 3, 3]: [n, c, h"),
    ("conv", [S4, (2, 4, 3, 3)], {"strides": (0, 1)}, "strides [0, 1], dilations [1, 1]"),
    ("conv", [(1, 4, 8), (2, 4, 3)], {}, "pads [0, 0, 0, 0] in 1 groups"),
    ("conv", [S4, (2, 3, 3, 3)], {}, "4 channels given, 3 expected"),
    ("conv", [S4, (2, 2, 3, 3)], {"group": 3}, "4 channels given, 6 expected"),
    ("conv", [S4, (2, 4, 3, 3), (3,)], {}, "conv bias is f32[3], expected [2]"),
    ("conv", [S4, (2, 4, 9, 9)], {}, "the kernel is larger than the padded image"),
    ("attention", [S3, S3, S3], {"num_heads": 3}, "with 3 heads: [n, tokens, heads * d]"),
    ("attention", [S3, S3, S3], {"num_heads": 0}, "with 0 heads"),
    ("attention", [(2, 3, 12), (2, 5, 8), (2, 5, 8)], {"num_heads": 3}, "perhaps fewer heads"),
    ("attention", [(2, 3, 12), (2, 5, 6), (2, 5, 5)], {"num_heads": 4}, "f32[2, 5, 5]"),
    ("attention", [S3, (2, 3, 8), S3], {"num_heads": 2}, "f32[2, 3, 8]"),
    ("attention", [S3, (2, 5, 4), S3], {"num_heads": 2}, "f32[2, 5, 4]"),
    ("attention", [S3, S3, S3, (1, 2, 3, 4)], {"num_heads": 2}, "got f32[1, 2, 3, 4]"),
    ("attention", [S3, S3, S3], {}, "attention needs the attribute 'num_heads'"),
    ("softmax", [S3], {"axis": 3}, "softmax axis 3 does not exist in f32[2, 3, 4]"),
    ("layer_normalization", [S3, (3,), (4,)], {}, "scale and bias of [4] are expected"),
    ("layer_normalization", [S3, (4,), (4,)], {"axis": 5}, "axis 5 does not exist"),
    ("rms_normalization", [S3, (3,)], {}, "a scale of [4] is expected, got f32[3]"),
    ("rms_normalization", [S3, (4,)], {"axis": 3}, "axis 3 does not exist"),
    ("rotary_embedding", [S3, (2, 3, 2), (2, 3, 2)], {}, "with 0 heads: [n, tokens, heads * d]"),
    ("rotary_embedding", [S4, (1, 8, 4), (1, 8, 4)], {"num_heads": 4}, "with 4 heads: [n, tokens"),
    ("rotary_embedding", [S3, (2, 3, 1), (2, 3, 1)], {"num_heads": 4}, "an even d"),
    ("rotary_embedding", [S3, (2, 3, 2), (2, 3, 1)], {"num_heads": 1}, "of [2, 3, 2] are expected"),
    ("group_normalization", [S4, (4,), (4,)], {"num_groups": 3}, "in 3 groups"),
    ("group_normalization", [S4, (4,), (4,)], {"num_groups": 0}, "in 0 groups"),
    ("group_normalization", [(4,), (4,), (4,)], {"num_groups": 1}, "[n, c, ...]"),
    ("group_normalization", [S4, (4,), (8,)], {"num_groups": 2}, "scale and bias of [4]"),
    ("reduce_sum", [S3], {"axes": (3,)}, "axes [3] do not exist in f32[2, 3, 4]"),
    ("reshape", [S3], {"shape": (5, 5)}, "f32[2, 3, 4] cannot be reshaped to [5, 5]"),
    ("reshape", [S3], {"shape": (-1, -1)}, "cannot be reshaped"),
    ("reshape", [S3], {"shape": (-1, 7)}, "cannot be reshaped"),
    ("transpose", [S3], {"perm": (0, 1)}, "perm [0, 1] is no order of the axes"),
    ("transpose", [S3], {"perm": (0, 1, 1)}, "perm [0, 1, 1] is no order of the axes"),
    ("concat", [S3, (2, 4)], {"axis": 1}, "concat of ['f32[2, 3, 4]', 'f32[2, 4]'] along axis 1"),
    ("concat", [S3, ("i32", *S3)], {"axis": 1}, "i32[2, 3, 4]"),
    ("concat", [S3], {"axis": 3}, "concat axis 3 does not exist"),
    ("slice", [S3], {"axis": 2, "start": 2, "end": 5}, "slice [2:5] along axis 2 lies outside"),
    ("slice", [S3], {"axis": 2, "start": 2, "end": 2}, "slice [2:2]"),
    ("slice", [S3], {"axis": -1, "start": 0, "end": 1}, "along axis -1"),
    ("expand", [S3], {"shape": (2, 3, 5)}, "f32[2, 3, 4] cannot be expanded to [2, 3, 5]"),
    ("expand", [S3], {"shape": (4,)}, "cannot be expanded to [4]"),
    ("resize", [S4], {"scales": (2, 2)}, "one whole factor an axis"),
    ("resize", [S4], {"scales": (1, 1, 1.5, 2)}, "one whole factor an axis"),
    ("gather", [(4, 5), (3,)], {}, "rows of a matrix by integers"),
    ("gather", [(4, 5, 6), ("i32", 3)], {}, "rows of a matrix by integers"),
    ("pad", [S3], {"pads": (1, 1)}, "two counts an axis"),
    ("pad", [S3], {"pads": (-1, 0, 0, 0, 0, 0)}, "two counts an axis"),
    ("pad", [(0, 3)], {"pads": (1, 0, 0, 0), "mode": "edge"}, "nothing to repeat"),
    ("max_pool", [S4], {"kernel_shape": (9, 2), "strides": (1, 1), "pads": (0, 0, 0, 0),
                        "dilations": (1, 1)}, "windows of [9, 2] do not fit"),
    ("average_pool", [S3], {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0),
                            "dilations": (1, 1)}, "windows of [2, 2] do not fit"),
    ("cast", [S3], {"to": "f8"}, "cast to 'f8', which is none of"),
]


@pytest.mark.parametrize(("operation", "shapes", "attributes", "words"), REFUSED, ids=str)
def test_what_does_not_fit_is_refused(operation, shapes, attributes, words) -> None:
    g = Graph()
    values = []
    for number, shape in enumerate(shapes):
        dtype, extents = (shape[0], shape[1:]) if isinstance(shape[0], str) else ("f32", shape)
        values.append(g.input(f"x{number}", extents, dtype))
    with g.scope("block.3"), pytest.raises(InputError, match="^block.3: |needs|no attr") as caught:
        g.apply(operation, *values, **attributes)
    assert words in str(caught.value)
    assert not g.nodes


def test_every_operation_with_a_rule_of_its_own_refuses_something() -> None:
    pointwise = {name for name, operation in OPERATIONS.items() if operation.pointwise}
    tested = {case[0] for case in [*REFUSED, *WIDE]} | {
        f"reduce_{kind}" for kind in ("mean", "max", "min", "prod")}  # rule of reduce_sum
    assert set(OPERATIONS) - pointwise == tested - pointwise


def test_unknown_operations_are_refused() -> None:
    g = Graph()
    with pytest.raises(InputError, match="no operation is named 'frobnicate'"):
        g.apply("frobnicate", g.input("x", (3,)))


def test_names_are_taken_once() -> None:
    g = Graph("twice")
    x = g.input("x", (3,))
    g.output("y", x)
    with pytest.raises(InputError, match="graph twice has two inputs named 'x'"):
        g.input("x", (3,))
    with pytest.raises(InputError, match="graph twice has two outputs named 'y'"):
        g.output("y", x)


def test_a_parameter_is_known_by_its_full_name() -> None:
    g = Graph()
    with g.scope("a"), g.scope(0):
        w = g.parameter("w", (3,))
        assert g.parameter("w", (3,)) is w
        with pytest.raises(InputError, match=re.escape("a.0.w is f32[3], asked for as f32[4]")):
            g.parameter("w", (4,))
    assert list(g.parameters) == ["a.0.w"]


def test_constants_are_small_copied_and_of_known_types() -> None:
    g, data = Graph(), np.ones(3)
    constant = g.constant(data)
    data[:] = 2
    assert constant.type.dtype == "f32" and constant.data.sum() == 3
    with pytest.raises(ValueError, match="read-only"):
        constant.data[0] = 5
    with pytest.raises(InputError, match="numpy's dtype complex64"):
        g.constant(np.ones(3, np.complex64))
    with pytest.raises(InputError, match="make it a parameter"):
        g.constant(np.zeros(1 << 21, np.float32))


def test_operators_take_numbers_on_both_sides() -> None:
    g = Graph()
    x = g.input("x", (2,))
    for name, y in {"a": 1 - x, "b": 2 * x, "c": 1 + x, "d": x / 2, "e": x - x}.items():
        g.output(name, y)
    found = evaluate(g, {"x": np.array([3, 5], np.float32)}, {})
    assert {name: y.tolist() for name, y in found.items()} == {
        "a": [-2, -4], "b": [6, 10], "c": [4, 6], "d": [1.5, 2.5], "e": [0, 0]}


@pytest.mark.parametrize(("inputs", "parameters", "words"), [
    ({}, {"w": np.ones(3)}, "input 'x' f32[2, 3] is missing"),
    ({"x": np.ones((2, 3))}, {}, "parameter 'w' f32[3] is missing"),
    ({"x": np.ones((3, 2))}, {"w": np.ones(3)}, "input 'x' is (3, 2), expected (2, 3)"),
])
def test_the_interpreter_names_what_is_missing(inputs, parameters, words) -> None:
    g = Graph()
    g.output("y", g.input("x", (2, 3)) * g.parameter("w", (3,)))
    with pytest.raises(InputError, match=re.escape(words)):
        evaluate(g, inputs, parameters)
