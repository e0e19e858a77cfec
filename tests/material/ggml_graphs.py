"""Graphs that exports to ggml are tested on."""

from __future__ import annotations

import numpy as np

from smalti.benchmark.weights import seeded
from smalti.graph import Graph, Value


def weights_of(graph: Graph) -> dict[str, np.ndarray]:
    return {name: seeded(name, value.shape) for name, value in graph.parameters.items()}


HOSTILE = ['a"b', "new\nline", "../../etc/passwd", "class", "ggml_add", "int main() {}", "",
           "\\", "//", "é…", "1st", "x=y", "a.b", "a b", "w", "ctx", "%s", "a" * 200, "??/"]


def hostile_graph() -> Graph:
    """Names that mean something to a compiler, a shell or a file system, everywhere."""
    g = Graph('evil"; } //\n')
    total = None
    for name in HOSTILE:
        x = g.input(name, (3,))
        with g.scope(name):
            x = g.apply("tanh", x * g.parameter(name, (3,)))
        total = x if total is None else total + x
        g.output(name, x)
    g.output("sum", total)
    return g


# ---------------------------------------------------------------------- every operation

UNARY = ("neg", "abs", "exp", "sin", "cos", "tanh", "sigmoid", "relu", "floor", "ceil", "sign",
         "silu", "gelu", "gelu_tanh", "quick_gelu", "erf", "sinh", "cosh")
POSITIVE = ("log", "sqrt", "reciprocal")
BINARY = ("add", "sub", "mul", "div", "max", "min", "mod", "fmod", "greater", "less",
          "greater_or_equal", "less_or_equal", "equal")
BROADCASTS = {"row": ((2, 3, 4), (4,)), "column": ((2, 3, 4), (3, 1)), "first": ((4,), (2, 3, 4)),
              "both": ((2, 1, 4), (3, 1)), "high": ((2, 1, 3, 1, 2, 2), (3, 1, 4, 1, 2))}
NUMBERS = {"add": 1.5, "sub": 2.0, "mul": -3.0, "div": 4.0, "max": 0.25, "min": 0.25}


class Cases:
    """A graph in the making, with an output for each case, and the arrays of its inputs."""

    def __init__(self) -> None:
        self.graph = Graph("operations")
        self.inputs: dict[str, np.ndarray] = {}
        self.operations: set[str] = set()

    def input(self, *shape: int, positive: bool = False) -> Value:
        """A new input of numbers that are whole quarters, so that some are equal."""
        name = f"x{len(self.inputs)}"
        random = np.random.default_rng(len(self.inputs))
        array = np.round(random.standard_normal(shape) * 4).astype(np.float32) / 4
        self.inputs[name] = np.abs(array) + np.float32(0.25) if positive else array
        return self.graph.input(name, shape)

    def output(self, name: str, value: Value) -> None:
        """An output of numbers."""
        if value.dtype == "bool":
            value = self.graph.apply("cast", value, to="f32")
        self.graph.output(name, value)

    def add(self, label: str, operation: str, *inputs: Value, **attributes: object) -> None:
        """An output that is one operation."""
        self.operations.add(operation)
        with self.graph.scope(label):
            self.output(f"{operation}-{label}",
                        self.graph.apply(operation, *inputs, **attributes))


def operations_graph() -> tuple[Graph, dict[str, np.ndarray]]:
    """Every operation that ggml can express, in shapes of up to six axes, and inputs for it."""
    from smalti.export.ggml.lowering import LOWERINGS

    cases = Cases()
    for part in (pointwise, products, windows, rows, movement):
        part(cases)
    missing = set(LOWERINGS) - cases.operations
    assert not missing, f"operations without a case: {sorted(missing)}"
    return cases.graph, cases.inputs


def pointwise(c: Cases) -> None:
    x, positive = c.input(2, 3, 5), c.input(2, 3, 5, positive=True)
    for name in UNARY:
        c.add("x", name, x)
    for name in POSITIVE:
        c.add("x", name, positive)
    c.add("x", "tan", c.graph.apply("tanh", x))
    for label, shapes in BROADCASTS.items():
        a, b = (c.input(*shape, positive=True) for shape in shapes)
        for name in BINARY:
            c.add(label, name, a, b)
        truths = [c.graph.apply("greater", v, c.graph.constant(0.5)) for v in (a, b)]
        for name in ("and", "or", "xor"):
            c.add(label, name, *truths)
        c.add(label, "where", truths[0], a, b)
    for name, number in NUMBERS.items():
        c.add("number", name, x, c.graph.constant(number))
        c.add("number_first", name, c.graph.constant(number), positive)
    for low, high in ((-0.5, 1.0), (1.0, -0.5)):
        c.add(f"above_{low}", "min", c.graph.apply("max", x, c.graph.constant(low)),
              c.graph.constant(high))
        c.add(f"below_{high}", "max", c.graph.apply("min", x, c.graph.constant(high)),
              c.graph.constant(low))
    c.add("x", "not", c.graph.apply("greater", x, c.graph.constant(0.0)))
    for exponent in (0.5, 1.0, 2.0, 3.0, 7.0, -1.0, 1.5):
        label = f"to_{'minus' * (exponent < 0)}{abs(exponent)}"
        c.add(label, "pow", positive, c.graph.constant(exponent))
    c.add("odd", "pow", x, c.graph.constant(5.0))
    infinite = c.graph.apply("div", x, c.graph.apply("abs", x))  # 0 / 0 where x is 0
    c.add("x", "is_nan", infinite)
    c.add("x", "is_inf", c.graph.apply("log", c.graph.apply("relu", x)))
    c.add("nan", "where", c.graph.apply("is_nan", infinite), x, infinite)
    masked = c.graph.apply("where", c.graph.apply("greater", x, c.graph.constant(0.0)), x,
                           c.graph.constant(-np.inf))
    c.add("infinity", "max", masked, c.graph.constant(-100.0))
    c.add("truth", "cast", x, to="bool")
    whole = c.graph.apply("cast", x * 4.0, to="i32")
    c.add("whole", "cast", whole, to="f32")


def products(c: Cases) -> None:
    g = c.graph
    x, k = c.input(2, 3, 4, 5), c.input(2, 3, 6, 5)
    c.add("parameter", "mat_mul", x, g.parameter("columns", (5, 7)))
    c.add("rows", "mat_mul", x, g.parameter("rows", (7, 5)).transpose(1, 0))
    c.add("turned", "mat_mul", x, k.transpose(0, 1, 3, 2))
    c.add("computed", "mat_mul", x, g.apply("tanh", c.input(2, 3, 5, 6)))
    c.add("constant", "mat_mul", x, g.constant(np.arange(10, dtype=np.float32).reshape(5, 2)))
    c.add("one_for_all", "mat_mul", c.input(4, 5), k.transpose(0, 1, 3, 2))
    c.add("shared", "mat_mul", x, c.input(3, 5, 2))
    c.add("high", "mat_mul", c.input(2, 1, 3, 4, 5), c.input(3, 3, 5, 2))
    q, s, v = c.input(2, 5, 12), c.input(2, 7, 12), c.input(2, 7, 8)
    c.add("cross", "attention", q, s, v, num_heads=4)
    c.add("causal", "attention", q, s, v, num_heads=2, is_causal=1, scale=0.5)
    c.add("grouped", "attention", q, *(g.apply("slice", x, axis=2, start=0, end=x.shape[2] // 2)
                                       for x in (s, v)), num_heads=4, is_causal=1)
    for label, shape in (("full", (2, 4, 5, 7)), ("keys", (2, 1, 1, 7)), ("one", (1, 1, 5, 7))):
        mask = c.input(*shape)
        c.add(label, "attention", q, s, v, mask, num_heads=4)
        c.add(f"{label}_causal", "attention", q, s, v, mask, num_heads=4, is_causal=1)
    seen = c.input(2, 1, 5, 7) * g.constant(np.array([1.0, 0.0])[:, None, None, None])
    c.add("blind", "attention", q, s, v, g.apply("log", g.apply("relu", seen)), num_heads=4)
    image = c.input(2, 6, 7, 5)
    for label, group, shape in (("plain", 1, (4, 6, 3, 3)), ("groups", 2, (4, 3, 3, 2)),
                                ("depthwise", 6, (6, 1, 3, 3)), ("twice", 6, (12, 1, 2, 3))):
        kernel, bias = g.parameter(f"{label}.w", shape), g.parameter(f"{label}.b", shape[:1])
        c.add(label, "conv", image, kernel, bias, group=group, pads=(1, 1, 1, 1))
        c.add(f"{label}_uneven", "conv", image, kernel, group=group, pads=(0, 1, 2, 0),
              strides=(2, 1), dilations=(1, 2))
    for label, group, shape in (("plain", 1, (6, 4, 3, 3)), ("groups", 3, (6, 2, 2, 3))):
        kernel = g.parameter(f"transposed.{label}", shape)
        bias = g.parameter(f"transposed.{label}.b", (shape[1] * group,))
        c.add(label, "conv_transpose", image, kernel, bias, group=group)
        c.add(f"{label}_uneven", "conv_transpose", image, kernel, group=group, strides=(2, 3),
              pads=(1, 2, 0, 1), output_padding=(1, 0), dilations=(2, 1))
        c.add(f"{label}_cropped", "conv_transpose", image, kernel, group=group, strides=(3, 1),
              pads=(4, 3, 4, 3))
    line = c.input(2, 6, 7)
    for label, group in (("plain", 1), ("groups", 2), ("depthwise", 6)):
        kernel, bias = g.parameter(f"line.{label}.w", (6, 6 // group, 3)), g.parameter("b", (6,))
        window = {"group": group, "strides": (2,), "dilations": (1,), "pads": (2, 1)}
        c.add(f"line_{label}", "conv", line, kernel, bias, **window)
        if group < 6:
            c.add(f"line_{label}", "conv_transpose", line, kernel, **window, output_padding=(1,))
    block = c.input(2, 4, 5, 4, 3)
    for label, group in (("plain", 1), ("groups", 2)):
        kernel = g.parameter(f"block.{label}.w", (6, 4 // group, 2, 3, 3))
        bias = g.parameter(f"block.{label}.b", (6,))
        c.add(f"block_{label}", "conv", block, kernel, bias, group=group, strides=(2, 1, 1),
              dilations=(1, 1, 1), pads=(1, 1, 0, 0, 1, 1))
    c.add("block", "conv_transpose", block, g.parameter("block.back", (4, 3, 2, 2, 1)),
          strides=(1, 2, 1), dilations=(1, 1, 1), pads=(0,) * 6, output_padding=(0, 0, 0))
    places, shares = np.array([[0, 1], [2, -1], [3, 3]]), np.array([[1, 0.5], [0.25, 2], [1, 1]])
    c.add("middle", "resample", x, g.constant(places), g.constant(shares), axis=2)
    c.add("high", "resample", c.input(2, 4, 2, 2, 2), g.constant(places), g.constant(shares),
          axis=1)


def windows(c: Cases) -> None:
    image, line, block = c.input(2, 3, 8, 7), c.input(2, 3, 9), c.input(2, 3, 5, 6, 4)
    for name in ("max_pool", "average_pool"):
        c.add("line", name, line, kernel_shape=(3,), strides=(2,), dilations=(1,), pads=(1, 0))
        c.add("block", name, block, kernel_shape=(2, 3, 2), strides=(1, 2, 1),
              dilations=(1, 1, 1), pads=(0, 1, 0, 0, 1, 0))
        for label, attributes in {
                "plain": {"pads": (0, 0, 0, 0)}, "even": {"pads": (1, 1, 1, 1)},
                "uneven": {"pads": (1, 0, 0, 1)}, "ceil": {"pads": (0, 1, 1, 0), "ceil_mode": 1},
                }.items():
            shape = {"kernel_shape": (3, 2), "strides": (2, 3), "dilations": (1, 1)}
            c.add(label, name, image, **shape, **attributes)
            if name == "average_pool":
                c.add(f"{label}_counted", name, image, **shape, **attributes, count_include_pad=1)


def rows(c: Cases) -> None:
    g = c.graph
    x, high = c.input(2, 3, 4, 5), c.input(2, 3, 2, 2, 3)
    for name in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"):
        for axes in ((3,), (2, 3), (0, 2), (1,), (0, 1, 2, 3)):
            c.add("_".join(map(str, axes)), name, x, axes=axes, keepdims=axes[0] % 2)
        c.add("high", name, high, axes=(0, 2, 4))
    for axis in (-1, 1):
        c.add(f"axis{axis}", "softmax", x, axis=axis)
        c.add(f"axis{axis}", "cum_sum", x, axis=axis)
        c.add(f"high{axis}", "softmax", high, axis=axis)
    scale, bias = g.parameter("scale.weight", (5,)), g.parameter("scale.bias", (5,))
    c.add("last", "layer_normalization", x, scale, bias)
    c.add("last", "rms_normalization", x, scale)
    scale, bias = g.parameter("more.weight", (2, 2, 3)), g.parameter("more.bias", (2, 2, 3))
    c.add("high", "layer_normalization", high, scale, bias, axis=2)
    c.add("high", "rms_normalization", high, scale, axis=-3)
    for label, image in (("line", (2, 6, 5)), ("image", (2, 6, 5, 3)), ("solid", (2, 6, 2, 3, 2))):
        scale, bias = g.parameter(f"{label}.weight", (6,)), g.parameter(f"{label}.bias", (6,))
        c.add(label, "group_normalization", c.input(*image), scale, bias, num_groups=3)


def movement(c: Cases) -> None:
    g = c.graph
    x, high = c.input(2, 3, 4, 5), c.input(2, 3, 2, 3, 2, 2)
    c.add("flat", "reshape", g.apply("neg", x), shape=(6, 20))
    c.add("high", "reshape", x, shape=(2, 3, 2, 2, 5, 1))
    for perm in ((0, 2, 3, 1), (3, 2, 1, 0), (0, 1, 3, 2)):
        c.add("".join(map(str, perm)), "transpose", x, perm=perm)
    for perm in ((5, 4, 3, 2, 1, 0), (0, 3, 1, 4, 2, 5), (4, 5, 0, 1, 2, 3)):
        c.add("".join(map(str, perm)), "transpose", high, perm=perm)
    for axis in range(4):
        c.add(f"axis{axis}", "concat", x, g.apply("neg", x), x, axis=axis)
        c.add(f"axis{axis}", "slice", x, axis=axis, start=1, end=2)
    c.add("high", "concat", high, g.apply("neg", high), axis=-3)
    c.add("high", "slice", high, axis=3, start=1, end=3)
    c.add("image", "resize", x, scales=(1, 1, 2, 3))
    c.add("all", "resize", x, scales=(2, 3, 1, 2))
    c.add("high", "resize", high, scales=(1, 2, 1, 1, 3, 1))
    c.add("middle", "expand", c.input(3, 1, 5), shape=(2, 3, 4, 5))
    c.add("high", "expand", c.input(2, 1, 2, 1, 2), shape=(3, 2, 3, 2, 3, 2))
    c.inputs["ids"] = np.array([[4, 0, 2], [1, 1, 3]], np.int32)
    ids = g.input("ids", (2, 3), "i32")
    table = g.parameter("table", (5, 6))
    c.add("input", "gather", table, ids)
    c.add("constant", "gather", table, g.constant(np.array([3, 0])))
    turned = g.apply("concat", ids.transpose(1, 0).reshape(6), g.constant(np.array([4], np.int32)),
                     axis=0)
    c.add("moved", "gather", table, g.apply("slice", turned, axis=0, start=2, end=7))
    for mode in ("constant", "edge", "reflect", "wrap"):
        c.add(mode, "pad", x, pads=(0, 1, 2, 0, 1, 0, 1, 3), mode=mode)
        if mode != "constant":
            c.add(f"high_{mode}", "pad", high, pads=(0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0), mode=mode)
    c.add("number", "pad", x, pads=(0, 0, 1, 2, 0, 0, 3, 0), value=-1.5)
