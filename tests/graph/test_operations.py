"""Every operation against a formulation of its own: plain loops, `math`, another way of counting.

`CASES` has at least one case for each operation; that is itself tested.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx_operations import CASES as WIDE

from smalti.graph import OPERATIONS, Graph, evaluate, verify
from smalti.graph.operation import DTYPES, Type

Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """An operation on arrays of these shapes, and what it should give.

    `expected(*arrays, **attributes)` takes float64 arrays; with `each` it takes numbers instead.
    """

    operation: str
    shapes: tuple[tuple[int, ...], ...]
    expected: Function
    attributes: dict[str, Any] = field(default_factory=dict)
    each: bool = False
    dtypes: tuple[str, ...] = ()
    positive: bool = False
    result: str = "f32"

    def __str__(self) -> str:
        shapes = " ".join(str(list(s)) for s in self.shapes)
        return f"{self.operation} {shapes} {self.attributes or ''}"

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(3)
        arrays = []
        for position, shape in enumerate(self.shapes):
            if self.dtypes and self.dtypes[position] != "f32":
                numbers = rng.integers(0, 4, shape, np.int32)
                arrays.append(numbers.astype(DTYPES[self.dtypes[position]]))
            else:
                array = 2 * rng.standard_normal(shape, np.float32)
                arrays.append(np.abs(array) + np.float32(0.1) if self.positive else array)
        return arrays


def places(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(n) for n in shape))


def gaussian_integral(x: float) -> float:
    """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x, by Simpson's rule."""
    steps = 400
    h = x / steps
    weights = [1, *([4, 2] * steps)[:steps - 1], 1]
    total = sum(w * math.exp(-(i * h) ** 2) for i, w in enumerate(weights))
    return 2 / math.sqrt(math.pi) * total * h / 3


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def one(name: str, function: Function, **options: Any) -> Case:
    return Case(name, ((3, 4),), function, each=True, **options)


def two(name: str, function: Function, **options: Any) -> Case:
    return Case(name, ((2, 1, 4), (3, 1)), function, each=True, **options)


# ---------------------------------------------------------------- plain formulations


def loop_mat_mul(a, b):
    a, b = (np.broadcast_to(m, (2, *m.shape[-2:])) for m in (a, b))
    return np.array([[[sum(a[n, i, k] * b[n, k, j] for k in range(a.shape[2]))
                       for j in range(b.shape[2])] for i in range(a.shape[1])] for n in range(2)])


def loop_conv(x, w, bias=None, *, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=1):
    top, left, bottom, right = pads
    height = (x.shape[2] + top + bottom - dilations[0] * (w.shape[2] - 1) - 1) // strides[0] + 1
    width = (x.shape[3] + left + right - dilations[1] * (w.shape[3] - 1) - 1) // strides[1] + 1
    y = np.zeros((x.shape[0], w.shape[0], height, width))
    for n, o, i, j in places(y.shape):
        first = o // (w.shape[0] // group) * w.shape[1]
        for c, r, s in places(w.shape[1:]):
            row = i * strides[0] + r * dilations[0] - top
            column = j * strides[1] + s * dilations[1] - left
            if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                y[n, o, i, j] += x[n, first + c, row, column] * w[o, c, r, s]
        y[n, o, i, j] += 0 if bias is None else bias[o]
    return y


def loop_integers(product):
    """A product of integers: of the factors less their zero points."""
    return lambda a, b, a_zero, b_zero, **attributes: product(a - a_zero, b - b_zero, **attributes)


def loop_rounded(product, channel: int):
    """A product of integers less their zero point, and of weights that each output channel, those
    along `channel`, rounds to 127 steps of its own."""
    def meaning(x, w, zero, **attributes):
        near = np.zeros(w.shape)
        for k in range(w.shape[channel]):
            own = tuple(k if axis == channel else slice(None) for axis in range(w.ndim))
            step = max(abs(float(value)) for value in w[own].flat) / 127
            near[own] = np.reshape([round(float(value) / step) * step for value in w[own].flat],
                                   w[own].shape)
        return product(x - zero, near, **attributes)

    return meaning


def loop_attention(q, k, v, mask=None, *, num_heads, is_causal=0, scale=None):
    scores = (len(q), num_heads, q.shape[1], k.shape[1])
    mask = np.broadcast_to(np.zeros(1) if mask is None else mask, scores)
    width = q.shape[2] // num_heads
    shared = k.shape[2] // width
    wide = v.shape[2] // shared
    y = np.zeros((*q.shape[:2], num_heads * wide))
    for n, t, h in places((*q.shape[:2], num_heads)):
        row, own = q[n, t, h * width:(h + 1) * width], h * shared // num_heads
        seen = [s for s in range(k.shape[1]) if not is_causal or s <= t]
        weights = [math.exp(float(row @ k[n, s, own * width:(own + 1) * width])
                            * (scale or width ** -0.5) + mask[n, h, t, s]) for s in seen]
        part = v[n, seen, own * wide:(own + 1) * wide]
        y[n, t, h * wide:(h + 1) * wide] = np.array(weights) @ part / math.fsum(weights)
    return y


def standardized(x, epsilon):
    return (x - x.mean()) / math.sqrt(x.var() + epsilon)


def loop_group_norm(x, scale, bias, *, num_groups, epsilon):
    y, size = np.empty_like(x), x.shape[1] // num_groups
    for n, group in places((x.shape[0], num_groups)):
        part = slice(group * size, (group + 1) * size)
        y[n, part] = standardized(x[n, part], epsilon)
    for c in range(x.shape[1]):
        y[:, c] = y[:, c] * scale[c] + bias[c]
    return y


def loop_layer_norm(x, scale, bias, *, axis=-1, epsilon=1e-5):
    y = np.empty_like(x)
    for place in places(x.shape[:axis]):
        y[place] = standardized(x[place], epsilon) * scale + bias
    return y


def loop_rms_norm(x, scale, *, axis=-1, epsilon=1e-5):
    y = np.empty_like(x)
    for place in places(x.shape[:axis]):
        y[place] = x[place] * scale / math.sqrt(mean((x[place] ** 2).ravel().tolist()) + epsilon)
    return y


def loop_rotary(x, cos, sin, *, interleaved=0, num_heads=0):
    """Each channel beside its other one, with the angles of both where there is one a channel."""
    y, half = np.empty_like(x), x.shape[2 if num_heads else 3] // (num_heads or 1) // 2
    for n, t, pair in places((len(x), cos.shape[1], half)):
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, half + pair)
        at = (pair, pair) if cos.shape[2] == half else (first, second)
        (c, d), (s, r) = ([table[n % len(table), t, i] for i in at] for table in (cos, sin))
        for h in range(num_heads or x.shape[1]):
            a, b = (((n, t, 2 * h * half + i) if num_heads else (n, h, t, i))
                    for i in (first, second))
            y[a], y[b] = x[a] * c - x[b] * s, x[b] * d + x[a] * r
    return y


def loop_softmax(x, *, axis):
    def one_row(row):
        powers = [math.exp(value) for value in row]
        return [p / math.fsum(powers) for p in powers]
    return np.apply_along_axis(one_row, axis, x)


def loop_expand(x, *, shape):
    y, lead = np.empty(shape), len(shape) - x.ndim
    for place in places(shape):
        y[place] = x[tuple(i if n > 1 else 0 for i, n in zip(place[lead:], x.shape, strict=True))]
    return y


def loop_resize(x, *, scales):
    y = np.empty([n * s for n, s in zip(x.shape, scales, strict=True)])
    for place in places(y.shape):
        y[place] = x[tuple(i // s for i, s in zip(place, scales, strict=True))]
    return y


def loop_reduction(function: Function) -> Function:
    def reduce(x, *, axes, keepdims=1):
        kept = [i for i in range(x.ndim) if i not in {a % x.ndim for a in axes}]
        y = np.empty([x.shape[i] for i in kept])
        for place in places(y.shape):
            index: list = [slice(None)] * x.ndim
            for i, p in zip(kept, place, strict=True):
                index[i] = p
            y[place] = function(x[tuple(index)].ravel().tolist())
        return y.reshape([n if i in kept else 1 for i, n in enumerate(x.shape)]) if keepdims else y
    return reduce


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


CASES = [
    one("neg", lambda x: -x), one("abs", math.fabs), one("exp", math.exp), one("sin", math.sin),
    one("cos", math.cos), one("sqrt", math.sqrt, positive=True), one("tanh", math.tanh),
    one("reciprocal", lambda x: 1 / x, positive=True), one("erf", gaussian_integral),
    one("sigmoid", logistic), one("relu", lambda x: x if x > 0 else 0.0),
    one("silu", lambda x: x * logistic(x)), one("quick_gelu", lambda x: x * logistic(1.702 * x)),
    one("gelu", lambda x: x * (1 + gaussian_integral(x / math.sqrt(2))) / 2),
    one("gelu_tanh", lambda x: x * logistic(math.sqrt(8 / math.pi) * (x + 0.044715 * x ** 3))),
    two("add", lambda x, y: x + y), two("sub", lambda x, y: x - y), two("mul", lambda x, y: x * y),
    two("div", lambda x, y: x / y, positive=True),
    two("max", lambda x, y: x if x > y else y), two("min", lambda x, y: x if x < y else y),
    Case("mat_mul", ((2, 3, 4), (4, 5)), loop_mat_mul),
    Case("mat_mul", ((1, 3, 4), (2, 4, 5)), loop_mat_mul),
    Case("mat_mul_integer", ((2, 3, 4), (4, 5), (), (5,)), loop_integers(loop_mat_mul),
         dtypes=("u8", "i8", "u8", "i8"), result="i32"),
    Case("conv_integer", ((2, 4, 5, 4), (4, 2, 3, 3), (), (4, 1, 1, 1)), loop_integers(loop_conv),
         {"pads": (1, 0, 1, 1), "strides": (2, 1), "group": 2}, dtypes=("i8", "u8", "i8", "u8"),
         result="i32"),
    Case("mat_mul_rounded", ((2, 3, 4), (4, 5), ()), loop_rounded(loop_mat_mul, 1),
         dtypes=("i8", "f32", "i8"), result="f32"),
    Case("conv_rounded", ((2, 4, 5, 4), (4, 2, 3, 3), ()), loop_rounded(loop_conv, 0),
         {"pads": (1, 0, 1, 1), "strides": (2, 1), "group": 2}, dtypes=("u8", "f32", "u8"),
         result="f32"),
    Case("conv", ((2, 3, 5, 4), (4, 3, 3, 3), (4,)), loop_conv, {"pads": (1, 1, 1, 1)}),
    Case("conv", ((1, 3, 6, 8), (2, 3, 3, 3)), loop_conv,
         {"strides": (2, 2), "pads": (0, 0, 1, 1)}),
    Case("conv", ((1, 4, 7, 6), (6, 2, 3, 2), (6,)), loop_conv,
         {"group": 2, "dilations": (2, 3), "strides": (1, 2), "pads": (2, 0, 1, 3)}),
    Case("attention", ((2, 5, 6), (2, 7, 6), (2, 7, 4)), loop_attention, {"num_heads": 2}),
    Case("attention", ((2, 5, 12), (2, 7, 6), (2, 7, 4)), loop_attention, {"num_heads": 4}),
    Case("attention", ((1, 5, 6), (1, 5, 6), (1, 5, 6)), loop_attention,
         {"num_heads": 3, "is_causal": 1, "scale": 0.3}),
    Case("attention", ((1, 3, 4), (1, 5, 4), (1, 5, 4)), loop_attention,
         {"num_heads": 1, "is_causal": 1}),
    Case("attention", ((2, 5, 6), (2, 7, 6), (2, 7, 4), (2, 1, 5, 7)), loop_attention,
         {"num_heads": 2}),
    Case("attention", ((2, 5, 6), (2, 5, 6), (2, 5, 6), (1, 3, 1, 5)), loop_attention,
         {"num_heads": 3, "is_causal": 1}),
    Case("softmax", ((3, 4, 2),), loop_softmax, {"axis": 1}),
    Case("softmax", ((3, 4, 2),), loop_softmax, {"axis": -1}),
    Case("layer_normalization", ((2, 3, 8), (8,), (8,)), loop_layer_norm),
    Case("layer_normalization", ((2, 3, 8), (3, 8), (3, 8)), loop_layer_norm,
         {"axis": 1, "epsilon": 0.5}),
    Case("rms_normalization", ((2, 3, 8), (8,)), loop_rms_norm),
    Case("rms_normalization", ((2, 3, 8), (3, 8)), loop_rms_norm, {"axis": 1, "epsilon": 0.5}),
    Case("rotary_embedding", ((2, 3, 12), (2, 3, 2), (2, 3, 2)), loop_rotary, {"num_heads": 3}),
    Case("rotary_embedding", ((2, 3, 12), (1, 3, 3), (1, 3, 3)), loop_rotary,
         {"num_heads": 2, "interleaved": 1}),
    Case("rotary_embedding", ((2, 3, 12), (1, 3, 6), (1, 3, 6)), loop_rotary,
         {"num_heads": 2, "interleaved": 1}),
    Case("rotary_embedding", ((2, 3, 12), (2, 3, 4), (2, 3, 4)), loop_rotary, {"num_heads": 3}),
    Case("rotary_embedding", ((2, 3, 4, 6), (2, 4, 3), (2, 4, 3)), loop_rotary),
    Case("rotary_embedding", ((2, 3, 4, 6), (1, 4, 3), (1, 4, 3)), loop_rotary,
         {"interleaved": 1}),
    Case("group_normalization", ((2, 6, 3, 4), (6,), (6,)), loop_group_norm,
         {"num_groups": 2, "epsilon": 0.1}),
    Case("group_normalization", ((2, 4, 5), (4,), (4,)), loop_group_norm,
         {"num_groups": 4, "epsilon": 1e-6}),
    Case("reduce_sum", ((2, 3, 4),), loop_reduction(math.fsum), {"axes": (0, -1)}),
    Case("reduce_mean", ((2, 3, 4),), loop_reduction(mean), {"axes": (1,), "keepdims": 0}),
    Case("reduce_max", ((2, 3, 4),), loop_reduction(max), {"axes": (2,)}),
    Case("reshape", ((2, 3, 4),), lambda x, shape: np.array(list(x.flat)).reshape(6, 4),
         {"shape": (6, -1)}),
    Case("transpose", ((2, 3, 4),), lambda x, perm: np.einsum("abc->cab", x), {"perm": (2, 0, 1)}),
    Case("concat", ((2, 3), (2, 1), (2, 2)),
         lambda *parts, axis: np.array([sum((p[i].tolist() for p in parts), []) for i in range(2)]),
         {"axis": -1}),
    Case("slice", ((3, 5),), lambda x, axis, start, end: x[:, 1:4],
         {"axis": 1, "start": 1, "end": 4}),
    Case("expand", ((3, 1),), loop_expand, {"shape": (2, 3, 4)}),
    Case("resize", ((1, 2, 2, 3),), loop_resize, {"scales": (1, 1, 2, 3)}),
    Case("gather", ((4, 5), (2, 3)), lambda table, rows: np.eye(4)[rows.astype(int)] @ table,
         dtypes=("f32", "i32")),
    Case("cast", ((3, 4),), lambda x, to: np.array([[math.trunc(v) for v in row] for row in x]),
         {"to": "i32"}),
]


ONE_NUMBER = {
    "log": math.log, "floor": math.floor, "ceil": math.ceil, "round": round, "tan": math.tan,
    "trunc": math.trunc,
    "sign": lambda x: (x > 0) - (x < 0), "sinh": math.sinh, "cosh": math.cosh,
    "atan": math.atan, "asinh": math.asinh,
    }
TWO_NUMBERS = {"pow": math.pow, "mod": lambda x, y: x - y * math.floor(x / y), "fmod": math.fmod}
QUESTIONS = {"equal": lambda x, y: x == y, "less": lambda x, y: x < y,
             "less_or_equal": lambda x, y: x <= y, "greater": lambda x, y: x > y,
             "greater_or_equal": lambda x, y: x >= y}
LOGIC = {"and": lambda x, y: bool(x) and bool(y), "or": lambda x, y: bool(x) or bool(y),
         "xor": lambda x, y: bool(x) != bool(y)}
BITS = {"bitwise_and": lambda x, y: int(x) & int(y), "bitwise_or": lambda x, y: int(x) | int(y),
        "bitwise_xor": lambda x, y: int(x) ^ int(y)}
I32 = {"dtypes": ("i32", "i32"), "result": "i32", "each": True}
WINDOW = {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), "dilations": (1,)}


def loop_pool(kind: Function) -> Function:
    def pooled(x: np.ndarray, **_: Any) -> np.ndarray:
        """Windows of 3 in steps of 2 with a border of 1 over x [n, c, 7]."""
        starts = range(-1, 6, 2)
        return np.array([[[kind(row[max(0, i):i + 3].tolist()) for i in starts] for row in image]
                         for image in x])
    return pooled


CASES += [
    *(Case(name, ((3, 4),), function, each=True, positive=name == "log")
      for name, function in ONE_NUMBER.items()),
    Case("is_nan", ((3, 4),), math.isnan, each=True, result="bool"),
    Case("is_inf", ((3, 4),), math.isinf, each=True, result="bool"),
    Case("not", ((3, 4),), lambda x: not x, each=True, dtypes=("bool",), result="bool"),
    *(Case(name, ((3, 4), (4,)), function, each=True, positive=True)
      for name, function in TWO_NUMBERS.items()),
    *(Case(name, ((3, 4), (4,)), function, each=True, result="bool", dtypes=("i32", "i32"))
      for name, function in QUESTIONS.items()),
    *(Case(name, ((3, 4), (4,)), function, each=True, result="bool", dtypes=("bool", "bool"))
      for name, function in LOGIC.items()),
    *(Case(name, ((3, 4), (4,)), function, **I32) for name, function in BITS.items()),
    Case("bitwise_not", ((3, 4),), lambda x: -int(x) - 1, each=True, dtypes=("i32",),
         result="i32"),
    Case("where", ((3, 4), (4,), (3, 1)), lambda c, x, y: x if c else y, each=True,
         dtypes=("bool", "f32", "f32")),
    Case("div", ((3, 4), (1,)), lambda x, y: int(x / y) if y else 0, **I32),
    Case("reduce_min", ((2, 3, 4),), loop_reduction(min), {"axes": (2,)}),
    Case("reduce_prod", ((2, 3, 4),), loop_reduction(math.prod), {"axes": (0,)}),
    Case("max_pool", ((2, 3, 7),), loop_pool(max), WINDOW),
    Case("average_pool", ((2, 3, 7),), loop_pool(mean), WINDOW),
    Case("pad", ((2, 3),), lambda x, **_: np.array(
        [[7.0] * 5, [7.0, *x[0], 7.0], [7.0, *x[1], 7.0]]),
        {"pads": (1, 1, 0, 1), "value": 7.0}),
    Case("pad", ((1, 3),), lambda x, **_: np.array([[*x[0, 2:0:-1], *x[0], x[0, 1]]]),
         {"pads": (0, 2, 0, 1), "mode": "reflect"}),
]


def test_inverse_functions_undo_theirs() -> None:
    for name, inverse, numbers in (("sin", "asin", (-0.9, 0.2)), ("cos", "acos", (0.1, 0.9)),
                                   ("cosh", "acosh", (0.1, 3)), ("tanh", "atanh", (-0.5, 0.7))):
        there = np.array(numbers, np.float32)
        back = OPERATIONS[inverse].meaning(OPERATIONS[name].meaning(there))
        np.testing.assert_allclose(back, there, rtol=1e-4)


def test_a_shift_by_all_bits_leaves_the_sign() -> None:
    x = np.array([-8, 8, 3], np.int32)
    by = np.array([40, 40, 1], np.int32)
    shift = OPERATIONS["bit_shift"].meaning
    assert shift(x, by, direction="RIGHT").tolist() == [-1, 0, 1]
    assert shift(x, by, direction="LEFT").tolist() == [0, 0, 6]


def graph_of(case: Case) -> tuple[Graph, dict[str, np.ndarray]]:
    g, arrays = Graph(case.operation), case.arrays()
    dtypes = case.dtypes or ("f32",) * len(arrays)
    values = [g.input(f"x{i}", array.shape, dtypes[i]) for i, array in enumerate(arrays)]
    g.output("y", g.apply(case.operation, *values, **case.attributes))
    return g, {f"x{i}": a for i, a in enumerate(arrays)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meaning(case: Case) -> None:
    g, inputs = graph_of(case)
    verify(g)
    found = evaluate(g, inputs, {})["y"]
    exact = [a.astype(np.float64) for a in inputs.values()]
    if case.each:
        shape = np.broadcast_shapes(*case.shapes)
        spread = [np.broadcast_to(a, shape) for a in exact]
        expected = np.empty(shape)
        for place in places(shape):
            expected[place] = case.expected(*(float(a[place]) for a in spread))
    else:
        expected = case.expected(*exact, **case.attributes)
    assert found.shape == expected.shape == g.outputs["y"].shape
    assert g.outputs["y"].type == Type(found.shape, case.attributes.get("to", case.result))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_every_operation_has_a_case() -> None:
    elsewhere = {"asin", "acos", "acosh", "atanh", "bit_shift", "resample", "max_roi_pool",
                 "bit_cast", "max_pool_indices"} \
        | {case.operation for case in WIDE}
    assert {case.operation for case in CASES} | elsewhere == set(OPERATIONS)


COMPOSITES = [case for case in CASES if OPERATIONS[case.operation].decompose]


@pytest.mark.parametrize("case", COMPOSITES, ids=str)
def test_a_composite_equals_its_decomposition(case: Case) -> None:
    g, inputs = graph_of(case)
    node = g.nodes[0]
    parts = node.operation.decompose(g, *node.inputs, **node.attributes)
    assert all(n.operation is not node.operation for n in g.nodes[1:])
    g.output("parts", parts)
    verify(g)
    found = evaluate(g, inputs, {})
    assert parts.type == node.output.type
    np.testing.assert_allclose(found["parts"], found["y"], rtol=1e-5, atol=1e-6)


def test_the_composites_are_these() -> None:
    assert {case.operation for case in COMPOSITES} == {
        "attention", "gelu", "gelu_tanh", "group_normalization", "layer_normalization",
        "quick_gelu", "rms_normalization", "rotary_embedding", "silu", "softmax"}


def value_of(name: str, *numbers: float) -> np.ndarray:
    g = Graph()
    g.output("y", g.apply(name, g.constant(np.array(numbers, np.float32))))
    return evaluate(g, {}, {})["y"]


@pytest.mark.parametrize(("name", "numbers", "expected"), [
    ("sigmoid", (-1000, -20, 0, 1000), (0, 2.0611536e-9, 0.5, 1)),
    ("silu", (-1000, -20, 1000), (0, -4.1223073e-8, 1000)),
    ("gelu", (-1000, 0, 1000), (0, 0, 1000)),
    ("softmax", (-1000, 1000, 1000), (0, 0.5, 0.5)),
])
def test_large_numbers_do_not_overflow(name, numbers, expected) -> None:
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_allclose(value_of(name, *numbers), expected, rtol=1e-5)


FLOPS = [
    (CASES[0], 12), (Case("sigmoid", ((3, 4),), math.exp), 36),
    (Case("mat_mul", ((2, 3, 4), (4, 5)), loop_mat_mul), 2 * 2 * 3 * 4 * 5),
    (Case("conv", ((1, 4, 7, 6), (6, 2, 3, 3)), loop_conv, {"group": 2}), 2 * 6 * 5 * 4 * 18),
    (Case("attention", ((2, 5, 6), (2, 7, 6), (2, 7, 4)), loop_attention, {"num_heads": 2}),
     2 * 5 * 7 * (2 * 6 + 2 * 4 + 5 * 2)),
    (Case("reshape", ((3, 4),), np.reshape, {"shape": (12,)}), 0),
    (Case("reduce_sum", ((3, 4),), np.sum, {"axes": (1,)}), 12),
]


@pytest.mark.parametrize(("case", "flops"), FLOPS, ids=str)
def test_flops(case: Case, flops: int) -> None:
    assert graph_of(case)[0].flops() == flops


@pytest.mark.parametrize("name", [n for n, o in OPERATIONS.items() if o.commutative])
def test_commutative_operations_are(name: str) -> None:
    x, y = np.random.default_rng(1).integers(-3, 3, (2, 5))
    meaning = OPERATIONS[name].meaning
    np.testing.assert_array_equal(meaning(x, y), meaning(y, x))


def test_operations_of_two_inputs_that_are_not_commutative() -> None:
    pairs = {n for n, o in OPERATIONS.items() if o.pointwise and o.inputs == (2, 2)}
    assert {n for n in pairs if not OPERATIONS[n].commutative} == {
        "sub", "div", "pow", "mod", "fmod", "less", "less_or_equal", "greater",
        "greater_or_equal", "bit_shift"}


@pytest.mark.parametrize(("number", "expected"), [(-np.inf, 0.0), (-3e38, 0.0), (-1e30, 2.0)])
def test_attention_of_a_row_that_is_masked_whole(number: float, expected: float) -> None:
    """Below -1e30 a mask is minus infinity, and nothing is left; else all values count alike."""
    x, v = np.ones((1, 2, 3), np.float32), np.array([1, 2, 3], np.float32).reshape(1, 3, 1)
    mask = np.array([[0, 0, 0], [number] * 3], np.float32)[None, None]
    found = OPERATIONS["attention"].meaning(x, np.ones((1, 3, 3), np.float32), v, mask,
                                            num_heads=1, is_causal=0, scale=None)
    np.testing.assert_allclose(found.reshape(-1), [2.0, expected], rtol=1e-6)
