"""Operations without a kernel: programs that stop for numpy between kernels."""

from __future__ import annotations

import numpy as np
import pytest
from built_modules import built
from native_regions import LEVELS, relative_error

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.compiler.encode import from_bytes, to_bytes
from smalti.compiler.module import HostCall
from smalti.errors import InputError
from smalti.graph import Graph, Value, evaluate
from smalti.graph.operation import DTYPES, FLOATS, Type
from smalti.rewrite.halves import widened
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu.program import NativeProgram

Arrays = dict[str, np.ndarray]


def values(type: Type, seed: int) -> np.ndarray:
    """Small values of any dtype, integers from 0 to 4."""
    rng = np.random.default_rng(seed)
    if type.dtype in FLOATS:
        return rng.standard_normal(type.shape).astype(DTYPES[type.dtype])
    return rng.integers(0, 5, type.shape).astype(DTYPES[type.dtype])


def arrays(graph: Graph) -> tuple[Arrays, Arrays]:
    """Values for the inputs and parameters of a graph."""
    inputs, parameters = ({name: values(v.type, len(name)) for name, v in leaves.items()}
                          for leaves in (graph.inputs, graph.parameters))
    return inputs, parameters


def check(graph: Graph, name: str, threads: int = 1, precision: str = "f32") -> NativeProgram:
    """Assert that a program gives what the graph means, each time it runs."""
    image = built(graph, level(name), limits(level(name), threads), precision)
    program = NativeProgram(from_bytes(to_bytes(image)), threads)
    inputs, parameters = arrays(graph)
    program.bind(parameters.__getitem__)
    expected = evaluate(graph, inputs, parameters)
    for _ in range(2):
        found = program.run(inputs)
        for output, array in expected.items():
            assert found[output].dtype == array.dtype
            if array.dtype == np.float32:
                allowed = 1e-5 if precision == "f32" else 1e-2
                assert relative_error(found[output], array) < allowed, output
            else:
                assert found[output].tobytes() == array.tobytes(), output
    return program


def between() -> Graph:
    """A kernel, an operation of the host, a kernel, and the same with weights only."""
    g = Graph("between")
    x, w = g.input("x", (1, 8, 6, 6)), g.parameter("w", (8, 8, 3, 3))
    h = g.apply("conv", x, w, pads=(1, 1, 1, 1))
    whole = g.apply("cast", g.apply("cast", h * 4.0, to="i64"), to="f32")
    scale = g.apply("cast", g.apply("cast", g.parameter("s", (8,)), to="f64"), to="f32")
    g.output("y", g.apply("conv", whole, w, pads=(1, 1, 1, 1)) * scale.reshape(8, 1, 1))
    return g


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_kernels_run_before_and_behind_the_host(name: str, threads: int) -> None:
    program = check(between(), name, threads)
    kinds = [isinstance(launch, HostCall) for launch in program.module.launches]
    assert kinds == [True, True, False, True, True, False]
    assert program.module.steady == 2
    seconds = program.kernel_seconds()
    assert not seconds[:2].any() and (seconds[2:] > 0).all()
    assert program.timings["host"] > 0


@pytest.mark.parametrize("name", LEVELS)
def test_the_host_reads_no_values_that_are_stored_as_bf16(name: str) -> None:
    g = Graph("large")
    h = g.apply("silu", g.input("x", (1, 16, 40, 40)))
    double = g.apply("cast", h, to="f64")
    w = g.parameter("w", (16, 16, 3, 3))
    wide = g.apply("conv", g.apply("cast", double + double, to="f32"), w)
    g.output("y", g.apply("conv", wide * 2.0, w))
    program = check(g, name, precision="bf16")
    stored = {(p.form, p.results[0].dtype) for p in program.module.regions}
    assert stored == {("map", "f32"), ("host", "f64"), ("host", "f32"), ("contraction", "bf16"),
                      ("contraction", "f32")}


def half(dtype: str) -> Graph:
    """An image, rows of a table, a product, a normalisation and attention in half precision."""
    g = Graph("half")
    x, rows = g.input("x", (1, 5, 6, 6), dtype), g.input("rows", (1, 9), "i64")
    h = g.apply("conv", x, g.parameter("w", (16, 5, 3, 3), dtype), g.parameter("b", (16,), dtype))
    tokens = g.apply("silu", h).reshape(1, 16, 16).transpose(0, 2, 1)
    context = g.apply("gather", g.parameter("table", (7, 16), dtype), rows)
    seen = g.apply("attention", tokens, context, g.apply("mat_mul", context, g.parameter(
        "v", (16, 16), dtype)), num_heads=2)
    seen = g.apply("layer_normalization", seen + tokens, g.parameter("scale", (16,), dtype),
                   g.parameter("shift", (16,), dtype))
    g.output("tokens", seen)
    g.output("image", seen.transpose(0, 2, 1).reshape(1, 16, 4, 4) * 0.5)
    g.output("mean", g.apply("cast", g.apply("reduce_mean", seen, axes=(1,)), to="f32"))
    return g


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_graphs_of_halves_are_native(name: str, dtype: str, threads: int) -> None:
    graph = half(dtype)
    image = built(graph, level(name), limits(level(name), threads), "f32")
    program = NativeProgram(image, threads)
    assert "host" not in {region.form for region in image.regions}
    inputs, parameters = arrays(graph)
    program.bind(parameters.__getitem__)
    found = program.run(inputs)
    wide, _ = widened(graph)
    expected = evaluate(wide, inputs, {n: a.astype(np.float32) for n, a in parameters.items()})
    for output, array in expected.items():
        assert found[output].dtype == array.dtype
        allowed = {"mean": 1e-5}.get(output, 1e-3 if dtype == "f16" else 1e-2)
        error = relative_error(*(a.astype(np.float32) for a in (found[output], array)))
        assert error < allowed, output


def quantized(dtype: str) -> Graph:
    """Images between layers as integers of 8 bits, and what a model of such says of itself."""
    g = Graph("quantized")
    low, high = np.iinfo(DTYPES[dtype]).min, np.iinfo(DTYPES[dtype]).max

    def rounded(x: Value, scale: float, zero: float) -> Value:
        whole = g.apply("round", x * (1 / scale)) + zero
        whole = g.apply("min", g.apply("max", whole, g.constant(float(low))),
                        g.constant(float(high)))
        return g.apply("cast", whole, to=dtype)

    def widened(x: Value, scale: float, zero: float) -> Value:
        return (g.apply("cast", x, to="f32") - zero) * scale

    q = g.input("q", (1, 3, 9, 9), dtype)
    w = g.apply("cast", g.parameter("w", (20, 3, 3, 3), "i8"), to="f32") * 0.125
    y = g.apply("conv", widened(q, 0.25, 3.0), w, pads=(1, 1, 1, 1))
    h = rounded(g.apply("relu", y), 0.0625, 1.0)
    pooled = g.apply("max_pool", widened(h, 0.0625, 1.0), kernel_shape=(2, 2), strides=(2, 2),
                     pads=(0,) * 4, dilations=(1, 1))
    g.output("h", h)
    g.output("turned", h.transpose(0, 2, 3, 1).reshape(81, 20))
    g.output("y", g.apply("conv", pooled, g.parameter("v", (5, 20, 1, 1))))
    g.output("sums", g.apply("cast", y * 3.0, to="i32"))
    g.output("counts", g.apply("cast", g.apply("greater", y, g.constant(0.5)), to=dtype))
    g.output("wide", g.apply("cast", q, to="i32"))
    return g


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype", ["u8", "i8"])
@pytest.mark.parametrize("threads", [1, 3])
def test_integers_between_layers_are_native(name: str, dtype: str, threads: int) -> None:
    program = check(quantized(dtype), name, threads)
    assert "host" not in {region.form for region in program.module.regions}


def test_explain_says_what_the_host_does_and_why() -> None:
    program = check(between(), LEVELS[-1])
    text = program.explain(all=True)
    assert "between: 2 kernels, 4 operations on the host" in text
    assert "host: no kernel computes cast on i64" in text
    rows = text[text.index("    0  "):]  # behind the summary, which counts them
    assert rows.count("once, when weights are bound") == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_in_and_out(dtype: str) -> None:
    g = Graph(dtype)
    x = g.input("x", (2, 3, 2, 2), dtype)
    w = g.parameter("w", (2, 3), dtype)
    g.output("same", x)
    g.output("turned", x.transpose(3, 2, 1, 0).reshape(4, 6))
    g.output("weight", w.transpose(1, 0))
    g.output("joined", g.apply("concat", w, g.constant(values(w.type, 1), dtype), axis=1))
    g.output("constant", g.constant(values(w.type, 2), dtype))
    check(g, LEVELS[-1])


@pytest.mark.parametrize("name", LEVELS)
def test_nothing_and_single_numbers(name: str) -> None:
    g = Graph("edges")
    empty, one = g.input("empty", (0, 3)), g.input("one", ())
    g.output("empty", empty + 1.0)
    g.output("none", g.constant(np.zeros((2, 0)), "i64"))
    g.output("joined", g.apply("concat", empty, g.input("x", (2, 3)), axis=0))
    g.output("zeros", g.apply("reduce_sum", empty, axes=(0,)))
    g.output("square", g.apply("exp", one * one))
    g.output("same", one)
    g.output("number", g.constant(2.5))
    g.output("mean", g.apply("reduce_mean", g.input("y", (3, 4)), axes=(0, 1), keepdims=0))
    check(g, name)


@pytest.mark.parametrize("name", LEVELS)
def test_products_of_two_computed_matrices(name: str) -> None:
    g = Graph("products")
    x = g.input("x", (2, 3, 4, 5))
    y = g.apply("tanh", x).transpose(0, 1, 3, 2)
    g.output("y", g.apply("relu", g.apply("mat_mul", x, y)) + 1.0)
    check(g, name)


@pytest.mark.parametrize("name", LEVELS)
def test_rows_by_64_bit_numbers_are_native_and_checked(name: str) -> None:
    g = Graph("rows")
    i, table = g.input("i", (2, 5), "i64"), g.parameter("table", (7, 24))
    g.output("y", g.apply("gather", table, i) * 2.0)
    program = check(g, name)
    assert [region.form for region in program.module.regions] == ["map"]
    for wrong in (7, -1, 1 << 32):
        with pytest.raises(InputError, match="rows 0 to 6"):
            program.run({"i": np.full((2, 5), wrong)})


def test_rows_that_are_computed_are_checked_by_the_host() -> None:
    g = Graph("computed")
    i = g.input("i", (3,), "i64")
    g.output("y", g.apply("gather", g.parameter("t", (9, 4)), i + i))
    program = check(g, LEVELS[-1])
    with pytest.raises(InputError, match="rows 0 to 8"):
        program.run({"i": np.array([0, 1, 5])})
    assert program.run({"i": np.array([0, 1, 4])})["y"].shape == (3, 4)


def test_what_depends_on_held_inputs_waits_for_a_change() -> None:
    g = Graph("held")
    x, kept = g.input("x", (8,)), g.input("kept", (8,))
    double = g.apply("cast", kept, to="f64")
    g.output("y", x + g.apply("cast", double * double, to="f32"))
    program = compile_graph(g, threads=1, held=("kept",))
    module = program.module
    assert (module.steady, module.changing, len(module.launches)) == (0, 3, 4)
    ones = np.ones(8, np.float32)
    for kept_value in (2.0, 2.0, 3.0):
        found = program.run({"x": ones, "kept": kept_value * ones})["y"]
        assert found.tolist() == [1 + kept_value ** 2] * 8


def test_the_host_call_that_makes_infinity_is_named() -> None:
    g = Graph("infinite")
    x = g.input("x", (4,))
    wide = g.apply("cast", x, to="f64") * 1e38
    with g.scope("narrow"):
        narrow = g.apply("cast", wide, to="f32")
    g.output("y", narrow + 1.0)
    program = compile_graph(g, threads=1)
    assert program.first_nonfinite({"x": np.ones(4)}) is None
    assert program.first_nonfinite({"x": np.full(4, 10)}) == "the host of narrow"
