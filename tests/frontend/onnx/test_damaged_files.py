"""Damaged models are refused in Smalti's own words, or run; `bench/fuzz.py` tries for longer."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, parser

from bench import fuzz
from smalti.errors import InputError, SmaltiError, UnsupportedError
from smalti.frontend.onnx import load
from smalti.graph.folding import FOLDED_FLOPS_SUM
from smalti.runtime.models import compile_model
from smalti.runtime.report import onnx_report


@pytest.mark.parametrize("numbers", [
    range(60), pytest.param(range(60, 500), marks=pytest.mark.sweep)], ids=str)
def test_damaged_models_are_refused_or_run(numbers: range, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    path, (models,) = tmp_path / "model.onnx", fuzz.seeds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            rng = random.Random(number)
            data = fuzz.damaged(rng.choice(models), rng)
            if data is not None:
                path.write_bytes(data)
                outcomes[fuzz.trial(path, rng, fuzz.no_limits)] += 1
    refused = {error.__name__ for error in _all(SmaltiError)}
    assert set(outcomes) <= {"runs", fuzz.TOO_MUCH} | refused
    assert outcomes["runs"] > len(numbers) // 10 and outcomes["InputError"] > len(numbers) // 10


def _all(error: type[SmaltiError]) -> list[type[SmaltiError]]:
    return [error, *(kind for inner in error.__subclasses__() for kind in _all(inner))]


def one_node(operator: str, shape: list[int], **attributes: object) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], **attributes)], "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize("shape", [[1 << 62], [1 << 31, 1 << 31], [1] * 40, [-1], [1 << 20] * 8,
                                   [0, 1 << 62]])
def test_sizes_that_no_computer_has_are_refused(shape: list[int]) -> None:
    with pytest.raises(InputError):
        load(one_node("Relu", shape))


def test_attributes_of_another_type_are_refused() -> None:
    for attributes in ({"axis": "one"}, {"axis": 1.5}, {"axis": [1]}):
        with pytest.raises(InputError, match=r"Softmax.*'axis' is of type"):
            load(one_node("Softmax", [2, 3], **attributes))
    with pytest.raises(InputError, match="'perm' is of type"):
        load(one_node("Transpose", [2, 3], perm=1))


def test_names_that_are_no_text_are_refused() -> None:
    data = one_node("Relu", [2]).SerializeToString().replace(b"\n\x01x", b"\n\x01\xff")
    with pytest.raises(InputError, match="no text"):
        load(onnx.ModelProto.FromString(data))


def test_a_shape_of_a_trillion_elements_costs_nothing_to_refuse() -> None:
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["s"], ["y"])], "m", [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("s", TensorProto.INT64, [2], [1 << 21, 1 << 21])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    with pytest.raises(SmaltiError, match="larger than any memory"):
        compile_model(model, threads=1)


def test_a_tensor_that_holds_less_than_it_says_is_refused_before_anything_is_made() -> None:
    lying = helper.make_tensor("w", TensorProto.FLOAT16, [2], b"\0" * 4, raw=True)
    lying.dims[:] = [3, 1 << 31]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)], [lying])
    with pytest.raises(InputError, match="holds 4 bytes, not 12884901888"):
        load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))


PLACES = {
    "initializer": "<float[2] w = {1, 2}> { y = Add(x, w) }",
    "node": "{ w = Constant<value: tensor = float[2] {1, 2}>() y = Add(x, w) }",
    "branch": """{ on = Constant<value: tensor = bool {1}>() y = If (on) <
        then_branch = yes () => (float[2] p) { w = Constant<value: tensor = float[2] {1, 2}>()
                                               p = Add(x, w) },
        else_branch = no () => (float[2] q) { q = Relu(x) }> }""",
    "function": """{ y = mine.moved(x) } <domain: "mine", opset_import: ["" : 20]> moved(a) => (b)
        { w = Constant<value: tensor = float[2] {1, 2}>() b = Add(a, w) }"""}


@pytest.fixture(params=PLACES)
def stated(request: pytest.FixtureRequest) -> tuple[onnx.ModelProto, onnx.TensorProto]:
    """A model that adds the tensor w, and that tensor, wherever it stands."""
    proto = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
        m (float[2] x) => (float[2] y) {PLACES[request.param]}""")
    (tensor,) = (tensor for tensor in fuzz.tensors_of(proto) if list(tensor.dims) == [2])
    return proto, tensor


@pytest.mark.parametrize("dims", [[], [1], [3], [1 << 40], [1 << 62, 1 << 62], [-2], [1] * 40])
def test_tensors_of_a_size_that_they_do_not_hold_are_refused_wherever_they_stand(
        stated: tuple[onnx.ModelProto, onnx.TensorProto], dims: list[int], tmp_path: Path) -> None:
    proto, tensor = stated
    tensor.dims[:] = dims
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match="tensor 'w'"):
        compile_model(tmp_path / "m.onnx", threads=1)


@pytest.mark.parametrize("kind", [0, 999, TensorProto.STRING, TensorProto.COMPLEX64,
                                  TensorProto.DOUBLE, TensorProto.INT4])
def test_tensors_of_a_dtype_that_they_do_not_hold_are_refused_wherever_they_stand(
        stated: tuple[onnx.ModelProto, onnx.TensorProto], kind: int) -> None:
    proto, tensor = stated
    tensor.data_type = kind
    with pytest.raises(InputError):
        compile_model(proto, threads=1)


@pytest.mark.parametrize("location", ["/etc/hostname", "../w.bin", "a/../../w.bin", "link.bin", "",
                                      "C:\\w.bin", "m.onnx/w", ".", "absent", "\0"])
def test_external_data_outside_the_folder_is_refused_wherever_a_tensor_stands(
        stated: tuple[onnx.ModelProto, onnx.TensorProto], location: str, tmp_path: Path) -> None:
    proto, tensor = stated
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    for use in (load, lambda path: onnx_report(path, {}), lambda path: compile_model(
            one_node("Relu", [2]), threads=1).bind(path)):
        with pytest.raises(InputError, match="tensor 'w'"):
            use(path)
    with pytest.raises(InputError, match="give the path of the model"):
        load(proto)


def test_a_file_that_is_cut_off_anywhere_is_refused_or_run(
        stated: tuple[onnx.ModelProto, onnx.TensorProto], tmp_path: Path) -> None:
    data, path = stated[0].SerializeToString(), tmp_path / "m.onnx"
    runs = 0
    for end in range(len(data)):
        path.write_bytes(data[:end])
        try:
            load(path)
            runs += 1
        except SmaltiError:
            pass
    assert runs < len(data) / 2


def test_operands_of_other_dtypes_than_the_standard_allows_are_refused() -> None:
    model = one_node("Sigmoid", [2])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.BOOL
    with pytest.raises(InputError, match=r"Sigmoid.*operand 0 is bool; bf16, f16, f32, f64"):
        load(model)
    model = one_node("Relu", [2])
    model.graph.node[0].op_type = "Add"
    model.graph.node[0].input.append("b")
    model.graph.initializer.append(helper.make_tensor("b", TensorProto.INT64, [1], [1]))
    with pytest.raises(InputError, match=r"Add.*operand 1 is i64, one before it f32"):
        load(model)
    model.graph.node[0].input.extend(["x", "x"])
    with pytest.raises(InputError, match="it takes 2"):
        load(model)


def test_a_tensor_in_the_place_of_a_sequence_is_refused() -> None:
    with pytest.raises(InputError, match="operand 0 is f32; a sequence, an optional value"):
        load(one_node("SequenceLength", [2]))


@pytest.mark.parametrize(("name", "value"), [
    ("strides", [1 << 62, 1]), ("dilations", [1, 1 << 40]), ("pads", [0, 0, 1 << 40, 0])])
def test_windows_beyond_all_addresses_are_refused(name: str, value: list[int]) -> None:
    with pytest.raises(InputError, match="y.*AveragePool"):
        load(one_node("AveragePool", [1, 1, 8, 8], kernel_shape=[2, 2], **{name: value}))


def test_sizes_beyond_the_addresses_of_a_kernel_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="y: .*choose smaller sizes"):
        compile_model(one_node("Flatten", [5, 1 << 31, 3, 2]), threads=1)


def test_every_node_that_cannot_be_compiled_is_listed_bodies_and_all() -> None:
    model = parser.parse_model('''
        <ir_version: 9, opset_import: ["" : 20, "other" : 1]>
        m (float[2] x, bool c) => (float[2] y) {
            a = other.First(x)
            b = other.Second(a)
            y = If (c) <
                then_branch = yes () => (float[2] d) { d = other.Third(b) },
                else_branch = no () => (float[2] e) {
                    e = If (c) <
                        then_branch = inner () => (float[2] f) { f = other.Fourth(x) },
                        else_branch = outer () => (float[2] g) { g = Relu(x) }
                    >
                }
            >
        }''')
    with pytest.raises(UnsupportedError) as caught:
        load(model)
    assert [node.operator for node in caught.value.nodes] == ["First", "Second", "Third", "Fourth"]
    assert all("no rule for this operator, version 1 of other" in n.why for n in caught.value.nodes)


def test_layers_over_sequences_without_end_are_refused_without_memory() -> None:
    graph = helper.make_graph(
        [helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=3)], "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, (1 << 31) - 1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("w", TensorProto.FLOAT, [1, 3, 2], [0.0] * 6),
         helper.make_tensor("r", TensorProto.FLOAT, [1, 3, 3], [0.0] * 9)])
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    assert all(v.data.size <= 9 for node in model.graph.nodes for v in node.inputs
               if v.kind == "constant")


def test_notes_of_an_exporter_that_are_no_text_are_refused() -> None:
    model = one_node("Relu", [2])
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="scopes")
    data = model.SerializeToString().replace(b"scopes", b"scop\xff\xff", 2)
    with pytest.raises(InputError, match="no text"):
        load(onnx.ModelProto.FromString(data))


def doubling(depth: int) -> onnx.ModelProto:
    """2 ** depth additions to 65536 ones, in a file of less than a kilobyte."""
    functions = "".join(f"""
        <domain: "f", opset_import: ["" : 20, "f" : 1]> f{i} (x) => (y) {{
            a = f.f{i - 1}(x)
            y = f.f{i - 1}(a)
        }}""" for i in range(1, depth + 1))
    return parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 20, "f" : 1]>
        m (float[2] z) => (float[256, 256] y) {{
            shape = Constant<value_ints: ints = [256, 256]>()
            ones = ConstantOfShape(shape)
            y = f.f{depth}(ones)
        }}
        <domain: "f", opset_import: ["" : 20]> f0 (x) => (y) {{ y = Add(x, x) }}{functions}""")


def test_small_files_cannot_ask_for_much_on_the_way() -> None:
    graph = load(doubling(11)).graph
    assert graph.folded_flops <= FOLDED_FLOPS_SUM
    made = 2 ** 11 - sum(node.operation.name == "add" for node in graph.nodes)
    assert 100 < made <= FOLDED_FLOPS_SUM // 65536
    with pytest.raises(InputError, match="more than 16384 nodes"):
        load(doubling(14))
