"""Models whose shapes or branches depend on values: stages, their cache, loops and branches."""

from __future__ import annotations

import _thread
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import smalti
from smalti.errors import InputError, UnsupportedError
from smalti.runtime.models import compile_model
from smalti.runtime.staged import StagedProgram

HEADER = '<ir_version: 9, opset_import: ["" : 20]>\n'


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEADER + text)


def check(proto: onnx.ModelProto, *runs: dict[str, np.ndarray]) -> StagedProgram:
    """Compile, run, and compare with the reference of ONNX; for small stages both ways."""
    program = None
    for most in (0, 1 << 15):
        program = compile_model(proto, threads=1, interpreted_max=most)
        assert isinstance(program, StagedProgram)
        for inputs in (*runs, *runs):
            expected = ReferenceEvaluator(proto).run(None, inputs)
            found = program.run(inputs)
            for (name, array), wanted in zip(found.items(), expected, strict=True):
                assert array.shape == wanted.shape, name
                np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-6)
    return program


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_shapes_that_inputs_give() -> None:
    proto = model("""m (float[2, 6] x, int64[2] shape) => (float[a, b] y) {
        h = Relu(x)
        z = Reshape(h, shape)
        y = Add(z, z)
    }""")
    runs = [{"x": normal(2, 6), "shape": np.array(shape)} for shape in ((3, 4), (12, 1))]
    program = check(proto, *runs)
    assert len(program._place.variants) == 2
    with pytest.raises(InputError, match=r"Reshape.*cannot be reshaped"):
        program.run({"x": normal(2, 6), "shape": np.array([5, 5])})
    assert np.array_equal(program.run(runs[0])["y"], program.run(runs[0])["y"])


def test_results_as_long_as_values_say_in_the_middle() -> None:
    proto = model("""m (float[8, 4] x, float[4, 4] w) => (float[n, 4] y, int64[1, n] found) {
        h = MatMul(x, w)
        axes = Constant<value_ints: ints = [1]>()
        s = ReduceSum<keepdims: int = 0>(h, axes)
        zero = Constant<value_float: float = 0.0>()
        positive = Greater(s, zero)
        found = NonZero(positive)
        axis = Constant<value_ints: ints = [0]>()
        rows = Squeeze(found, axis)
        kept = Gather(h, rows)
        y = Tanh(kept)
    }""")
    runs = [{"x": normal(8, 4, seed=i), "w": normal(4, 4, seed=9)} for i in range(3)]
    counts = {check(proto, run).run(run)["found"].shape[1] for run in runs}
    assert len(counts) > 1
    check(proto, {"x": np.full((8, 4), -1, np.float32), "w": np.eye(4, dtype=np.float32)})


BRANCHES = """m (float[2, 3] x, bool on) => (float[a, b] y) {
    y = If (on) <
        then_branch = yes () => (float[2, 3] p) { p = Relu(x) },
        else_branch = no () => (float[3, 2] q) { q = Transpose(x) }>
}"""


def test_both_branches() -> None:
    program = check(model(BRANCHES), {"x": normal(2, 3), "on": np.array(True)},
                    {"x": normal(2, 3), "on": np.array(False)})
    assert program.run({"x": normal(2, 3), "on": np.array(False)})["y"].shape == (3, 2)


def test_a_branch_that_is_known_leaves_one_graph() -> None:
    proto = model(BRANCHES)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(False), "on"))
    del proto.graph.input[1]
    program = smalti.compile(proto, threads=1)
    assert not isinstance(program, StagedProgram)
    assert np.array_equal(program.run({"x": normal(2, 3)})["y"], normal(2, 3).T)


def loop(times: int | None, body: str) -> onnx.ModelProto:
    proto = model(f"""m (int64 most, float[4] x) => (float[4] y, float[n, 4] all) {{
        on = Constant<value = bool {{1}}>()
        y, all = Loop (most, on, x) <body = {body}>
    }}""")
    if times is not None:
        proto.graph.initializer.append(numpy_helper.from_array(np.array(times), "most"))
        del proto.graph.input[0]
    return proto


ADDING = """turn (int64 i, bool go, float[4] h) => (bool more, float[4] next, float[4] seen) {
    more = Identity(go)
    number = Cast<to: int = 1>(i)
    seen = Mul(h, x)
    next = Add(seen, number)
}"""
STOPPING = """turn (int64 i, bool go, float[4] h) => (bool more, float[4] next, float[4] seen) {
    next = Add(h, h)
    seen = Sub(h, x)
    total = ReduceSum<keepdims: int = 0>(next)
    most = Constant<value_float: float = 100.0>()
    more = Less(total, most)
}"""


def test_a_short_loop_leaves_one_graph() -> None:
    program = compile_model(loop(3, ADDING), threads=1)
    assert not isinstance(program, StagedProgram)
    x = normal(4)
    expected = ReferenceEvaluator(loop(3, ADDING)).run(None, {"x": x})
    for found, wanted in zip(program.run({"x": x}).values(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("times", [1, 7, 400])
@pytest.mark.parametrize("body", [ADDING, STOPPING])
def test_loops_that_run(body: str, times: int) -> None:
    check(loop(None, body), {"x": np.abs(normal(4)), "most": np.array(times)})


def test_a_loop_that_takes_no_turn() -> None:
    program = compile_model(loop(None, ADDING), threads=1)
    found = program.run({"x": normal(4), "most": np.array(0)})
    assert np.array_equal(found["y"], normal(4)) and found["all"].shape == (0, 4)


@pytest.mark.usefixtures("interruptible")
def test_a_loop_that_would_never_end_can_be_interrupted() -> None:
    program = compile_model(endless(), threads=1)
    timer = threading.Timer(0.5, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        program.run({"x": normal(4), "most": np.array(1 << 62)})


def endless() -> onnx.ModelProto:
    """A loop of 2^62 turns that piles nothing up."""
    return model("""m (int64 most, float[4] x) => (float[4] y) {
        on = Constant<value = bool {1}>()
        y = Loop (most, on, x) <body = turn (int64 i, bool go, float[4] h)
            => (bool more, float[4] next) { more = Identity(go) next = Relu(h) }>
    }""")


def test_scans_of_any_length() -> None:
    text = """m (float[3] start, float[{n}, 3] x) => (float[3] last, float[{n}, 3] sums) {{
        last, sums = Scan <num_scan_inputs: int = 1, body = turn (float[3] s, float[3] row)
            => (float[3] t, float[3] u) {{ t = Add(s, row) u = Mul(t, row) }}> (start, x)
    }}"""
    inputs = {"start": normal(3), "x": normal(5, 3)}
    short = model(text.format(n=5))
    program = compile_model(short, threads=1)
    assert not isinstance(program, StagedProgram)
    for found, wanted in zip(program.run(inputs).values(),
                             ReferenceEvaluator(short).run(None, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    check(model(text.format(n=900)), {"start": normal(3), "x": normal(900, 3) / 30})


def test_sequences_are_lists() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 2])
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, keepdims=1),
        helper.make_node("SequenceLength", ["parts"], ["count"]),
        helper.make_node("SequenceErase", ["parts"], ["fewer"]),
        helper.make_node("ConcatFromSequence", ["fewer"], ["joined"], axis=1),
        helper.make_node("Relu", ["joined"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "m", [x], [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10]),
        helper.make_tensor_value_info("count", TensorProto.INT64, [])])
    check(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]),
          {"x": normal(6, 2)})


GROWING = """m (int64 times, bool go, {} given) => (seq(float[]) s) {{
    s = Loop(times, go, given) <body = turn (int64 i, bool c, {} old) => (bool d, seq(float[]) new)
        {{
        d = Identity(c)
        x = Constant<value_floats: floats = [4.0, 5.0]>()
        {}
        new = SequenceInsert(filled, x)
    }}>
}}"""
LIST = GROWING.format("seq(float)", "seq(float[])", "filled = Identity(old)")
OPTIONAL = GROWING.format("optional(seq(float))", "optional(seq(float))", """
        there = OptionalHasElement(old)
        filled = If(there) <
            then_branch = some () => (seq(float) p) { p = OptionalGetElement(old) },
            else_branch = none () => (seq(float) q) { q = SequenceEmpty<dtype: int = 1>() }>""")
ONE, TWO = np.ones(3, np.float32), np.full(2, 2, np.float32)


@pytest.mark.parametrize(("text", "given", "before"), [
    (LIST, [], []), (LIST, (), []), (LIST, np.array([]), []), (LIST, np.zeros((0, 3)), []),
    (LIST, [ONE, TWO], [ONE, TWO]), (LIST, np.stack([TWO, TWO]), [TWO, TWO]),
    (LIST, [[1.0, 1.0, 1.0], 2], [ONE, np.float32(2)]),
    (OPTIONAL, None, []), (OPTIONAL, [], []), (OPTIONAL, np.array([]), []),
    (OPTIONAL, [ONE], [ONE])])
def test_a_sequence_grows_from_whatever_it_is_given_as(text: str, given: object,
                                                       before: list[np.ndarray]) -> None:
    program = compile_model(model(text), threads=1)
    found = program.run({"times": np.array(2), "go": np.array(True), "given": given})["s"]
    expected = [*before, *[np.array([4, 5], np.float32)] * 2]
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == np.float32 and np.array_equal(a, b)


@pytest.mark.parametrize(("given", "said"), [
    (None, r"input 'given' is None; a list of arrays is expected, \[\] where"),
    (3.0, "input 'given' is 3.0; a list of arrays"),
    (np.array(3.0), r"input 'given' is an array of shape \[\]; a list"),
    ([ONE, "text"], r"input 'given\[1\]' is"), ([1e300], r"input 'given\[0\]' holds 1e\+300")])
def test_what_is_no_sequence_is_refused(given: object, said: str) -> None:
    program = compile_model(model(LIST), threads=1)
    with pytest.raises(InputError, match=said):
        program.run({"times": np.array(2), "go": np.array(True), "given": given})


def test_other_weights_reach_every_stage() -> None:
    proto = model("""m (float[4] x) => (float[n] y) {
        h = Mul(x, w)
        places = NonZero(h)
        axis = Constant<value_ints: ints = [0]>()
        flat = Squeeze(places, axis)
        kept = Gather(h, flat)
        y = Mul(kept, kept)
    }""")
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1, 0, 2, 3], np.float32), "w"))
    for most in (0, 1 << 15):
        program = compile_model(proto, threads=1, interpreted_max=most)
        x = np.ones(4, np.float32)
        assert program.run({"x": x})["y"].tolist() == [1, 4, 9]
        program.bind({"w": np.array([0, 5, 0, 1], np.float32)})
        assert program.run({"x": x})["y"].tolist() == [25, 1]


def test_what_a_run_cannot_go_on_with_is_listed() -> None:
    graph = helper.make_graph(
        [helper.make_node("SequenceEmpty", [], ["s"]), helper.make_node("Relu", ["s"], ["y"])],
        "m", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    with pytest.raises(UnsupportedError) as raised:
        compile_model(proto, threads=1).run({})
    assert [node.operator for node in raised.value.nodes] == ["Relu"]


def test_inputs_that_do_not_fit_are_refused() -> None:
    program = compile_model(model(BRANCHES), threads=1)
    for inputs in ({"x": normal(2, 3)}, {"x": normal(3, 3), "on": np.array(True)}):
        with pytest.raises(InputError):
            program.run(inputs)
