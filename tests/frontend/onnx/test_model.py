"""Models become graphs: leaves, folding, shapes, functions, and what is refused or not trusted."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from smalti.errors import InputError, UnsupportedError
from smalti.frontend.onnx import load
from smalti.graph import evaluate, verify

HEADER = '<ir_version: 9, opset_import: ["" : 20]>\n'


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEADER + text)


def operations(graph) -> list[str]:
    return [node.operation.name for node in graph.nodes]


def with_weights(proto: onnx.ModelProto, **arrays: np.ndarray) -> onnx.ModelProto:
    for name, array in arrays.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def test_arithmetic_on_shapes_leaves_no_nodes() -> None:
    loaded = load(model("""m (float[2, 6, 4] x) => (float[a, b] y) {
        shape = Shape(x)
        zero = Constant<value_int: int = 0>()
        n = Gather(shape, zero)
        axes = Constant<value_ints: ints = [0]>()
        column = Unsqueeze(n, axes)
        rest = Constant<value_ints: ints = [-1]>()
        wanted = Concat<axis: int = 0>(column, rest)
        y = Reshape(x, wanted)
    }"""))
    verify(loaded.graph)
    assert operations(loaded.graph) == ["reshape"]
    assert loaded.graph.outputs["y"].shape == (2, 24) and not loaded.parameters


def test_weights_are_parameters_and_numbers_are_constants() -> None:
    weight = np.arange(8, dtype=np.float32).reshape(4, 2)
    loaded = load(with_weights(model("""m (float[3, 4] x) => (float[3, 2] y) {
        product = MatMul(x, weight)
        scaled = Mul(product, factor)
        y = Add(scaled, bias)
    }"""), weight=weight, bias=np.ones(2, np.float32), factor=np.float32(2),
        unused=np.ones((5, 5), np.float32)))
    assert list(loaded.graph.parameters) == list(loaded.parameters) == ["weight", "bias"]
    assert np.array_equal(loaded.parameters["weight"], weight)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    y = evaluate(loaded.graph, {"x": x}, loaded.parameters)["y"]
    assert np.allclose(y, x @ weight * 2 + 1, rtol=1e-6)


def test_open_dimensions_are_named_and_can_be_given_by_input_or_by_name() -> None:
    proto = model("m (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Relu(x) }")
    axes = re.escape("x: [n, 3, h, w] (axis 0 named 'n', axis 2 named 'h', axis 3 named 'w')")
    with pytest.raises(InputError, match=rf"{axes}\. .*shapes=.*--shape n=1"):
        load(proto)
    assert load(proto, {"x": (1, 3, 4, 5)}).inputs["x"].shape == (1, 3, 4, 5)
    assert load(proto, {"x": np.array([1, 3, 4, 5])}).inputs["x"].shape == (1, 3, 4, 5)
    assert load(proto, {"n": 2, "h": np.int64(6), "w": 7}).inputs["x"].shape == (2, 3, 6, 7)


@pytest.mark.parametrize(("shapes", "said"), [
    ({"x": (1, 4, 4, 5)}, r"\[1, 4, 4, 5\] is given for input 'x', which is \[n, 3, h, \?\]"),
    ({"x": (1, 3, 4)}, r"\[1, 3, 4\] is given for input 'x'"),
    ({"x": 3}, r"\[3\] is given for input 'x'"),
    ({"z": 3}, "given for z; m has the inputs x, and leaves open: x: .*axis 0 named 'n', .*axis 3"),
    ({"?": 3}, "given for [?]; m has the inputs x"),
    ({"x": (-1, 3, 4, 5)}, "-1 is given as an extent of 'x'"),
    ({"x": (1.5, 3, 4, 5)}, "1.5 is given as an extent of 'x'"),
    ({"n": "two"}, "'two' is given as an extent of 'n'"),
    ({"n": (2, 3)}, r"\(2, 3\) is given as an extent of 'n'"),
    ({"n": 1, "h": 2}, r"x: \[1, 3, 2, \?\] \(axis 3\)"),
])
def test_shapes_that_do_not_fit_are_refused_by_input_and_axis(shapes: dict, said: str) -> None:
    proto = model("m (float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Relu(x) }")
    proto.graph.input[0].type.tensor_type.shape.dim[3].Clear()
    with pytest.raises(InputError, match=said):
        load(proto, shapes)


@pytest.mark.parametrize("write", [lambda dim: setattr(dim, "dim_value", -1),
                                   lambda dim: setattr(dim, "dim_param", "?"),
                                   lambda dim: dim.Clear()])
def test_an_extent_of_minus_one_or_without_a_name_is_open(write) -> None:
    proto = model("m (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }")
    write(proto.graph.input[0].type.tensor_type.shape.dim[0])
    with pytest.raises(InputError, match=r"x: \[\?, 3\] \(axis 0\)\..* --shape x=1,3$"):
        load(proto)
    with pytest.raises(InputError, match=r"leaves open: x: \[\?, 3\] \(axis 0\)"):
        load(proto, {"batch": 1})
    assert load(proto, {"x": (5, 3)}).inputs["x"].shape == (5, 3)


def test_all_unsupported_nodes_are_listed_with_names_and_reasons() -> None:
    proto = model("""m (float[2, 3] x) => (float[2, 3] y) {
        a = Relu(x)
        b = other.Strange(a)
        c = Neg(b)
        d = other.Odd(c)
        y = Add(b, d)
    }""")
    proto.opset_import.add(domain="other", version=1)
    with pytest.raises(UnsupportedError) as raised:
        load(proto)
    assert [(node.name, node.operator) for node in raised.value.nodes] == [
        ("b", "Strange"), ("d", "Odd")]
    assert "version 1 of other" in raised.value.nodes[0].why


def test_functions_of_the_model_are_put_in_place() -> None:
    proto = parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20, "mine" : 1]>
        m (float[2, 3] x) => (float[2, 3] y) { y = mine.scaled<by: float = 3.0>(x, x) }
        <domain: "mine", opset_import: ["" : 20]> scaled<by>(a, b, c) => (r) {
            factor = Constant<value_float: float = @by>()
            s = Add(a, b)
            r = Mul(s, factor)
        }""")
    loaded = load(proto)
    x = np.ones((2, 3), np.float32)
    assert np.all(evaluate(loaded.graph, {"x": x}, {})["y"] == 6)


@pytest.mark.parametrize(("own", "operator"), [
    ('"" : 13', "Unsqueeze (a, axes)"), ('"" : 11', "Unsqueeze<axes: ints = [0]> (a)"),
    ('"mine" : 1', "Unsqueeze (a, axes)")])
def test_the_body_of_a_function_has_the_operators_that_it_imports(own: str, operator: str) -> None:
    """Of a domain that it does not import, it has those of the model: the standard's body of
    FlexAttention imports no other domain than its own."""
    proto = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 20, "mine" : 1]>
        m (float[2, 3] x) => (float[1, 2, 3] y) {{ y = mine.f(x) }}
        <domain: "mine", opset_import: [{own}]> f(a) => (b) {{
            axes = Constant<value_ints: ints = [0]>()
            b = {operator}
        }}""")
    assert load(proto).graph.outputs["y"].shape == (1, 2, 3)


def test_two_functions_of_one_name_are_refused() -> None:
    function = '<domain: "mine", opset_import: ["" : 20]> f(a) => (b) { b = Relu(a) }'
    proto = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
        m (float[2] x) => (float[2] y) {{ y = mine.f(x) }} {function} {function}""")
    proto.functions[1].overload = "other"
    with pytest.raises(InputError, match="two functions named 'f' in the domain 'mine'"):
        load(proto)


def test_a_function_that_calls_itself_is_refused() -> None:
    proto = parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20, "mine" : 1]>
        m (float[2] x) => (float[2] y) { y = mine.f(x) }
        <domain: "mine", opset_import: ["" : 20, "mine" : 1]> f(a) => (b) { b = mine.f(a) }""")
    with pytest.raises(InputError, match="deep"):
        load(proto)


def test_functions_that_double_at_each_level_are_refused() -> None:
    functions = "\n".join(
        f"""<domain: "mine", opset_import: ["" : 20, "mine" : 1]> f{i}(a) => (b)
            {{ c = mine.f{i + 1}(a) b = mine.f{i + 1}(c) }}""" for i in range(22))
    proto = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 20, "mine" : 1]>
        m (float[2] x) => (float[2] y) {{ y = mine.f0(x) }}
        {functions}
        <domain: "mine", opset_import: ["" : 20]> f22(a) => (b) {{ b = Relu(a) }}""")
    with pytest.raises(InputError, match="more than"):
        load(proto)


# ---------------------------------------------------------------------- files


def external(folder: Path, location: str, **fields: str) -> Path:
    proto = with_weights(model("m (float[2] x) => (float[2] y) { y = Add(x, w) }"),
                         w=np.array([1, 2], np.float32))
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **fields}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_read_from_the_folder_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(
        b"...." + np.array([5, 6], np.float32).tobytes())
    loaded = load(external(tmp_path, "data/w.bin", offset="4", length="8"))
    assert loaded.parameters["w"].tolist() == [5, 6]


@pytest.mark.parametrize("location", ["/etc/hostname", "../w.bin", "a/../../w.bin", "C:\\w.bin",
                                      "a\\w.bin", "", "link.bin", "folder", "pipe", "absent.bin"])
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "folder").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe")
    with pytest.raises(InputError, match="tensor 'w'"):
        load(external(folder, location)).parameters["w"]


@pytest.mark.parametrize("fields", [
    {"offset": "4"}, {"offset": "-4"}, {"length": "12"}, {"offset": "x"}, {"length": "9" * 30}])
def test_external_data_beyond_its_file_is_refused(tmp_path: Path, fields: dict[str, str]) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8))
    with pytest.raises(InputError, match="tensor 'w'"):
        load(external(tmp_path, "w.bin", **fields)).parameters["w"]


@pytest.mark.parametrize("dims", [(1 << 60,), (1 << 62, 1 << 62), (-1,), (3,), (1 << 40, 0, 7)])
def test_tensors_that_claim_what_they_do_not_hold_are_refused(dims: tuple[int, ...]) -> None:
    proto = with_weights(model("m (float[2] x) => (float[2] y) { y = Add(x, w) }"),
                         w=np.array([1, 2], np.float32))
    proto.graph.initializer[0].dims[:] = dims
    with pytest.raises(InputError):
        load(proto).parameters["w"]


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for data in (b"", b"not a model", bytes(100), model(
            "m (float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString()[:-3]):
        path.write_bytes(data)
        with pytest.raises(InputError):
            load(path)
    for wrong in (tmp_path, tmp_path / "absent.onnx"):
        with pytest.raises(InputError):
            load(wrong)


def test_names_that_nothing_or_two_nodes_define_are_refused() -> None:
    for nodes in ([("Relu", "x", "y"), ("Neg", "x", "y")], [("Relu", "nothing", "y")],
                  [("Relu", "z", "y"), ("Neg", "y", "z")]):
        graph = helper.make_graph(
            [helper.make_node(op, [read], [made]) for op, read, made in nodes], "m",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
        with pytest.raises(InputError):
            load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))


def test_versions_that_nobody_knows_are_refused() -> None:
    for version in (0, 999):
        proto = model("m (float[2] x) => (float[2] y) { y = Relu(x) }")
        proto.opset_import[0].version = version
        with pytest.raises(InputError, match="version"):
            load(proto)


@pytest.mark.parametrize(("said", "scope"), [
    ("['', 'encoder', 'encoder.layers.0', 'relu_1']", "encoder.layers.0/node_relu_1"),
    ("['', 'relu_1']", "node_relu_1"), ("[]", "node_relu_1"), ("'", "node_relu_1")])
def test_nodes_stand_in_the_modules_that_pytorch_names(said: str, scope: str) -> None:
    proto = model("m (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.node[0].name = "node_relu_1"
    entry = proto.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", said
    assert [node.scope for node in load(proto).graph.nodes] == [scope]
