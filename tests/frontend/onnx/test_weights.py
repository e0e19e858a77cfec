"""Weights are the tensors of a file: initializers and `Constant` nodes, of bodies, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from cli.test_commands import run
from onnx import helper, numpy_helper, parser

import smalti
from smalti.errors import InputError
from smalti.frontend.onnx import load

HEADER = '<ir_version: 9, opset_import: ["" : 20, "mine" : 1]>\n'
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEADER + text)


def as_constants(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its initializers as nodes, as PaddleOCR's exports have them."""
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor)
             for tensor in proto.graph.initializer]
    nodes += proto.graph.node
    del proto.graph.initializer[:], proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def network(seed: int) -> onnx.ModelProto:
    """A layer with weights, a number, a mask and a shape, as initializers."""
    rng = np.random.default_rng(seed)
    proto = model("""m (float[3, 4] x) => (float[2, 3] y) {
        product = MatMul(x, weight)
        scaled = Mul(product, factor)
        moved = Add(scaled, bias)
        masked = Add(moved, mask)
        y = Reshape(masked, shape)
    }""")
    arrays = {"weight": rng.standard_normal((4, 2)).astype(np.float32),
              "bias": rng.standard_normal(2).astype(np.float32), "factor": np.float32(0.5),
              "mask": np.array([[0], [0], [-1e9]], np.float32), "shape": np.array([2, 3])}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items())
    return proto


def test_constant_nodes_are_weights_by_the_rule_of_initializers() -> None:
    plain, spelled = load(network(0)), load(as_constants(network(0)))
    assert str(plain.graph) == str(spelled.graph)
    assert list(spelled.parameters) == ["weight", "bias"]
    for name, array in plain.parameters.items():
        assert np.array_equal(array, spelled.parameters[name])


def test_lists_of_numbers_in_nodes_are_tensors() -> None:
    loaded = load(model("""m (float[3, 2] x) => (float[3, 2] y) {
        bias = Constant<value_floats: floats = [1.5, 2.5]>()
        factor = Constant<value_float: float = 2.0>()
        moved = Add(x, bias)
        y = Mul(moved, factor)
    }"""))
    assert {name: array.tolist() for name, array in loaded.parameters.items()} \
        == {"bias": [1.5, 2.5]}


CALLS = """m (float[2] x) => (float[2] y) {
        w = Constant<value: tensor = float[2] {1, 1}>()
        a = mine.scaled(x)
        b = mine.scaled(a)
        c = mine.moved(b)
        y = Mul(c, w)
    }
    <domain: "mine", opset_import: ["" : 20]> scaled(a) => (b) {
        w = Constant<value: tensor = float[2] {2, 3}>()
        b = Mul(a, w)
    }
    <domain: "mine", opset_import: ["" : 20]> moved(a) => (b) {
        w = Constant<value: tensor = float[2] {5, 5}>()
        factors = Constant<value: tensor = float[2] {7, 7}>()
        c = Add(a, w)
        b = Mul(c, factors)
    }"""


def test_a_weight_of_a_function_is_one_for_all_its_calls() -> None:
    program = smalti.compile(model(CALLS), threads=1)
    assert np.allclose(program.run({"x": np.ones(2, np.float32)})["y"], [63, 98])
    parameters = load(model(CALLS)).parameters
    assert {name: array.tolist() for name, array in parameters.items()} == {
        "w": [1, 1], "w#2": [2, 3], "w#3": [5, 5], "factors": [7, 7]}
    program.bind({**parameters, "w#2": np.array([1, 2], np.float32)})
    assert np.allclose(program.run({"x": np.ones(2, np.float32)})["y"], [42, 63])


def test_names_are_the_same_each_time_a_file_is_read() -> None:
    assert str(load(model(CALLS)).graph) == str(load(model(CALLS)).graph)


TURNS = """m (float[2] x, int64 times) => (float[2] y) {
        on = Constant<value: tensor = bool {1}>()
        w = Constant<value: tensor = float[2] {1, 2}>()
        y = Loop(times, on, x) <body = turn (int64 i, bool go, float[2] h) => (bool o, float[2] r)
            <float[2] v = {10, 10}> {
            o = Identity(go)
            a = Mul(h, w)
            r = Add(a, v)
        }>
    }"""


def test_weights_of_a_loop_are_one_for_all_its_turns() -> None:
    fixed = model(TURNS.replace(", int64 times", "").replace(
        "{\n        on", "{\n        times = Constant<value: tensor = int64 {3}>()\n        on", 1))
    assert list(load(fixed).parameters) == ["w", "v"]
    for proto, inputs in ((fixed, {}), (model(TURNS), {"times": np.array(3)})):
        program = smalti.compile(proto, threads=1)
        inputs = {"x": np.ones(2, np.float32), **inputs}
        assert np.allclose(program.run(inputs)["y"], [31, 78])
        program.bind({"w": np.array([2, 1], np.float32), "v": np.array([1, 0], np.float32)})
        assert np.allclose(program.run(inputs)["y"], [15, 1])


def test_a_weight_that_is_missing_in_the_middle_of_a_run_is_named() -> None:
    program = smalti.compile(model(TURNS), threads=1)
    program.bind({"w": np.array([2, 1], np.float32)})
    with pytest.raises(InputError, match="'v' of m is missing"):
        program.run({"x": np.ones(2, np.float32), "times": np.array(3)})


def test_what_decides_a_shape_stays_a_constant() -> None:
    loaded = load(model("""m (float[1, 1, 2, 2] x) => (float[1, 1, h, w] y) {
        none = Constant<value: tensor = float[0] {}>()
        scales = Constant<value: tensor = float[4] {1, 1, 2, 2}>()
        y = Resize<mode = "nearest">(x, none, scales)
    }"""))
    assert loaded.graph.outputs["y"].shape == (1, 1, 4, 4) and not loaded.parameters


def test_two_tensors_of_one_name_in_a_body_are_refused() -> None:
    proto = network(0)
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["weight"], value_float=1.0))
    with pytest.raises(InputError, match="'weight'"):
        load(proto)


def test_the_commands_take_nodes_for_weights(tmp_path: Path) -> None:
    """`inspect` counts them; an engine file is given them, and those of another file."""
    first, second, engine = (tmp_path / name for name in ("a.onnx", "b.onnx", "a.smalti"))
    for path, seed in ((first, 1), (second, 2)):
        path.write_bytes(as_constants(network(seed)).SerializeToString())
    np.save(tmp_path / "x.npy", X)

    def done(*arguments: object) -> str:
        result = run(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    shown = done("inspect", first)
    assert "weights     3, 13 numbers: 3 of f32" in shown  # of the mask only its type is read
    done("compile", first, "-o", engine)
    for path in (first, second):
        out = tmp_path / "y.npz"
        done("run", engine, f"x={tmp_path / 'x.npy'}", "--weights", path, "-o", out)
        found = np.load(out)["y"]
        wanted = smalti.compile(path, threads=1).run({"x": X})["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
