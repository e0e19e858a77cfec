"""Operators that ONNX Runtime adds to the standard, against it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smalti.errors import InputError, UnsupportedError
from smalti.frontend.onnx import load
from smalti.graph import evaluate
from smalti.runtime.compilation import compile_graph
from smalti.runtime.models import compile_model

RNG = np.random.default_rng(11)
Case = tuple[Sequence[np.ndarray | None], Mapping[str, Any]]


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def whole(*shape: int, low: int = 0, dtype: type = np.uint8) -> np.ndarray:
    return RNG.integers(low, low + 256, shape).astype(dtype)


def scale(number: float) -> np.ndarray:
    return np.array(number, np.float32)


def point(number: int, dtype: type = np.uint8) -> np.ndarray:
    return np.array(number, dtype)


A, ONE, OUT = [whole(1, 4, 5, 6), scale(0.02), point(120)], [scale(0.03), point(7)], \
    [scale(0.05), point(40)]
IDS = np.array([[1, 4, 2], [0, 3, 3]], np.int32)
Q, K = real(2, 3, 8), real(2, 5, 8)
HEADS = {"num_heads": 2}
CASES: dict[str, Case] = {
    "Gelu": ([real(3, 4)], {}), "BiasGelu": ([real(3, 4), real(4)], {}),
    "FastGelu": ([real(3, 4), real(4)], {}), "FastGelu without bias": ([real(3, 4)], {}),
    "QuickGelu": ([real(3, 4)], {"alpha": 1.5}),
    "CDist": ([real(3, 4), real(5, 4)], {}),
    "CDist of roots": ([real(3, 4), real(5, 4)], {"metric": "euclidean"}),
    "FusedMatMul": ([real(2, 4, 3), real(2, 5, 4)], {"transA": 1, "transB": 1, "alpha": 0.5}),
    "FusedGemm": ([real(3, 4), real(4, 5), real(5)], {"activation": "LeakyRelu",
                                                      "activation_alpha": 0.2}),
    "FusedConv": ([real(1, 3, 5, 5), real(4, 3, 3, 3), real(4)], {
        "activation": "Relu", "pads": [1, 1, 1, 1]}),
    "FusedConv of a sum": ([real(1, 3, 5, 5), real(4, 3, 1, 1), real(4), real(1, 4, 5, 5)], {
        "activation": "HardSigmoid", "activation_params": [0.2, 0.4]}),
    "MatMulNBits": ([real(3, 40), whole(5, 3, 8), np.abs(real(15))], {
        "K": 40, "N": 5, "bits": 4, "block_size": 16}),
    "MatMulNBits with zero points": ([real(2, 32), whole(4, 2, 8), np.abs(real(8)), whole(4)], {
        "K": 32, "N": 4, "bits": 4, "block_size": 16}),
    "SkipLayerNormalization": ([Q, real(2, 3, 8), real(8), real(8), real(8)], {"epsilon": 1e-5}),
    "SkipSimplifiedLayerNormalization": ([Q, real(2, 3, 8), real(8)], {"epsilon": 1e-5}),
    "EmbedLayerNormalization": ([IDS, IDS % 2, real(6, 8), real(4, 8), real(2, 8), real(8),
                                 real(8), (IDS > 0).astype(np.int32)], {"epsilon": 1e-5}),
    "Attention": ([Q, real(8, 24), real(24)], {**HEADS, "unidirectional": 1}),
    "Attention to part of the keys": ([Q, real(8, 24), real(24), np.array([2, 3], np.int32)],
                                      HEADS),
    "Attention with a mask": ([Q, real(8, 24), real(24),
                               np.array([[1, 0, 1], [1, 1, 1]], np.int32)], HEADS),
    "MultiHeadAttention": ([Q, K, real(2, 5, 8), real(24)], {**HEADS, "scale": 0.3}),
    "MultiHeadAttention with masks": ([Q, K, K, None, np.array(
        [[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int32), real(1, 2, 3, 5)], HEADS),
    "QLinearAdd": ([*A, whole(4, 1, 1), *ONE, *OUT], {}),
    "QLinearMul": ([*A, whole(4, 1, 1), *ONE, *OUT], {}),
    "QLinearSigmoid": ([*A, scale(1 / 256), point(0)], {}),
    "QLinearLeakyRelu": ([*A, *OUT], {"alpha": 0.1}),
    "QLinearAveragePool": ([*A, *OUT], {"kernel_shape": [2, 2], "strides": [2, 1]}),
    "QLinearGlobalAveragePool": ([*A, *OUT], {"channels_last": 0}),
    "QLinearSoftmax": ([*A, scale(1 / 256), point(0)], {"axis": 1, "opset": 13}),
    "QLinearConcat": ([*OUT, *A, whole(1, 2, 5, 6), *ONE], {"axis": 1}),
    "QLinearWhere": ([RNG.integers(0, 2, (1, 4, 5, 6)).astype(bool), *A, whole(1, 4, 5, 6), *ONE,
                      *OUT], {}),
    "QLinearConv": ([*A, whole(3, 4, 3, 3, low=-128, dtype=np.int8) // 2, scale(0.01),
                     point(0, np.int8), scale(2.0), point(128),
                     np.arange(-300, 600, 300, dtype=np.int32)],
                    {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    "QLinearConv of channels that are last": ([
        whole(1, 5, 6, 4), scale(0.02), point(120), whole(3, 4, 3, 3, low=-128, dtype=np.int8) // 2,
        np.array([0.01, 0.02, 0.005], np.float32), np.zeros(3, np.int8), scale(2.0), point(128)],
        {"channels_last": 1}),
    "QGemm": ([whole(3, 4), *ONE, whole(5, 4, low=-128, dtype=np.int8), scale(0.01),
               point(0, np.int8), np.arange(5, dtype=np.int32), *OUT], {"transB": 1}),
    "DynamicQuantizeMatMul": ([real(3, 4), whole(4, 5), scale(0.02), point(130), real(5)], {}),
    "MatMulIntegerToFloat": ([whole(3, 4), whole(4, 5), scale(0.02), scale(0.03), point(130),
                              point(99), real(5)], {}),
}


LSTM = ([real(6, 2, 5), whole(2, 5, 16, low=-128, dtype=np.int8) // 2,
         whole(2, 4, 16, low=-128, dtype=np.int8) // 2, real(2, 32), None, None, None, None,
         np.array([0.008, 0.01], np.float32), np.zeros(2, np.int8),
         np.array([0.006, 0.004], np.float32), np.zeros(2, np.int8)],
        {"direction": "bidirectional", "hidden_size": 4})
"""Weights of 7 bits: with 8, ONNX Runtime's sums of two products overflow on CPUs without VNNI."""


def model_of(name: str) -> onnx.ModelProto:
    """A model of one node; what is no array of reals is an initializer."""
    arrays, fields = LSTM if name == "DynamicQuantizeLSTM" else CASES[name]
    operator = name.partition(" ")[0]
    inputs, initializers = [], []
    for i, array in enumerate(arrays):
        if array is None:
            continue
        if array.dtype == np.float32 and array.ndim > 1:
            inputs.append(helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, array.shape))
        else:
            initializers.append(numpy_helper.from_array(array, f"x{i}"))
    node = helper.make_node(operator, [f"x{i}" if a is not None else ""
                                       for i, a in enumerate(arrays)], ["y"],
                            domain="com.microsoft", **fields)
    if operator == "EmbedLayerNormalization":
        node.output.append("lengths")
    output = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "g", inputs, [output], initializers)
    return helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])


def both(proto: onnx.ModelProto, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Our result and that of ONNX Runtime."""
    import onnxruntime

    given = {value.name: arrays[int(value.name[1:])] for value in proto.graph.input}
    loaded = load(proto)
    found = evaluate(loaded.graph, given,
                     {key: np.asarray(a) for key, a in loaded.parameters.items()})["y"]
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = session.run(["y"], given)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    return [found, expected]


@pytest.mark.peers
@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_that_of_onnx_runtime(name: str) -> None:
    found, expected = both(model_of(name), CASES[name][0])
    if found.dtype == np.float32:
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * abs(expected).max())
    else:  # it multiplies by reciprocals and takes some functions from tables
        distance = np.abs(found.astype(int) - expected.astype(int))
        assert distance.max() <= 1 and distance.mean() < 0.05


@pytest.mark.parametrize("absent", [3, 6, 8])
def test_a_choice_of_bytes_without_a_zero_point_is_an_error(absent: int) -> None:
    """The schema has none to take instead."""
    proto = model_of("QLinearWhere")
    proto.graph.node[0].input[absent] = ""
    with pytest.raises(InputError, match=f"QLinearWhere.*operand {absent} is missing"):
        load(proto)


QUANTISED = [name for name in CASES if CASES[name][0][0].dtype in (np.uint8, bool)
             and "NBits" not in name] + ["QLinearConcat", "DynamicQuantizeMatMul"]


def standard_nodes(name: str) -> list[onnx.NodeProto]:
    """What makes "y" of the inputs of a contributed operator, "x0" and so on, by operators of the
    standard."""
    arrays, given = CASES[name]
    fields = {key: value for key, value in given.items() if key not in ("opset", "channels_last")}

    def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)

    def real_of(first: int) -> onnx.NodeProto:
        return node("DequantizeLinear", f"x{first} x{first + 1} x{first + 2}", f"real{first}")

    def scaled(sums: str, scales: str, bias: str) -> list[onnx.NodeProto]:
        return [node("Cast", sums, "floats", to=TensorProto.FLOAT), node("Mul", scales, "scale"),
                node("Mul", "floats scale", "product"), node("Add", f"product {bias}", "y")]

    if name.startswith("QLinearConv"):
        inputs = " ".join(f"x{i}" for i in range(len(arrays)))
        if "channels_last" not in given:
            return [node("QLinearConv", inputs, "y", **fields)]
        return [node("Transpose", "x0", "first", perm=[0, 3, 1, 2]),
                node("QLinearConv", inputs.replace("x0", "first"), "last", **fields),
                node("Transpose", "last", "y", perm=[0, 2, 3, 1])]
    if name == "QGemm":
        return [node("Transpose", "x3", "turned", perm=[1, 0]),
                node("MatMulInteger", "x0 turned x2 x5", "integers"),
                node("Add", "integers x6", "sums"), node("Cast", "sums", "floats", to=1),
                node("Mul", "x1 x4", "scale"), node("Mul", "floats scale", "z"),
                node("QuantizeLinear", "z x7 x8", "y")]
    if name == "DynamicQuantizeMatMul":
        return [node("DynamicQuantizeLinear", "x0", "bytes step zero"),
                node("MatMulInteger", "bytes x1 zero x3", "sums"), *scaled("sums", "step x2", "x4")]
    if name == "MatMulIntegerToFloat":
        return [node("MatMulInteger", "x0 x1 x4 x5", "sums"), *scaled("sums", "x2 x3", "x6")]
    if name == "QLinearConcat":
        return [real_of(2), real_of(5), node("Concat", "real2 real5", "z", **fields),
                node("QuantizeLinear", "z x0 x1", "y")]
    operator = name.removeprefix("QLinear")
    first = {"Add": (0, 3), "Mul": (0, 3), "Where": (1, 4)}.get(operator, (0,))
    values = " ".join(f"real{i}" for i in first)
    end = first[-1] + 3
    return [*map(real_of, first),
            node(operator, f"x0 {values}" if operator == "Where" else values, "z", **fields),
            node("QuantizeLinear", f"z x{end} x{end + 1}", "y")]


@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_operator_is_what_the_standard_makes_of_its_meaning(name: str) -> None:
    """Beside ONNX's reference, by the reference and as a program: the very integers."""
    from onnx.reference import ReferenceEvaluator

    proto, arrays = model_of(name), CASES[name][0]
    inputs = [helper.make_tensor_value_info(
        f"x{i}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for i, array in enumerate(arrays)]
    graph = helper.make_graph(standard_nodes(name), "g", inputs,
                              [helper.make_empty_tensor_value_info("y")])
    standard = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 19)])
    (expected,) = ReferenceEvaluator(standard).run(
        None, {f"x{i}": array for i, array in enumerate(arrays)})
    loaded = load(proto)
    given = {value.name: arrays[int(value.name[1:])] for value in proto.graph.input}
    weights = {key: np.asarray(a) for key, a in loaded.parameters.items()}
    program = compile_graph(loaded.graph, threads=1)
    program.bind(weights)
    for found in (evaluate(loaded.graph, given, weights)["y"], program.run(given)["y"]):
        if expected.dtype == np.float32:
            np.testing.assert_allclose(found, expected, rtol=1e-6,
                                       atol=1e-6 * np.abs(expected).max())
        else:
            assert found.dtype == expected.dtype and len(np.unique(found)) > 2
            np.testing.assert_array_equal(found, expected)


@pytest.mark.peers
def test_an_lstm_of_integers_is_that_of_onnx_runtime_but_for_its_rounding() -> None:
    """It rounds states to 8 bits before each step."""
    found, expected = both(model_of("DynamicQuantizeLSTM"), LSTM[0])
    assert 0 < np.abs(found - expected).max() < 0.02 < np.abs(expected).max()


@pytest.mark.peers
@pytest.mark.parametrize(("name", "operators"), [
    ("bert", {"FusedMatMul", "SkipLayerNormalization", "Gelu", "FusedGemm"}),
    ("mobilenet_v2", {"FusedConv"}), ("t5_encoder", {"FastGelu"}),
    ("unet_sd15", {"FusedMatMul", "QuickGelu", "Gelu"})])
def test_a_model_that_onnx_runtime_has_rewritten(name: str, operators: set[str],
                                                 tmp_path: Path) -> None:
    import onnxruntime
    from exported_models import EXPORTERS, export

    path, given = export(tmp_path, name, "torchscript", EXPORTERS["torchscript"])
    rewritten, options = tmp_path / "rewritten.onnx", onnxruntime.SessionOptions()
    options.graph_optimization_level = \
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(rewritten)
    options.log_severity_level = 4
    expected = onnxruntime.InferenceSession(str(path), options).run(None, given)
    made = {node.op_type for node in onnx.load(rewritten).graph.node if node.domain}
    assert operators <= made
    found = compile_model(rewritten, shapes={key: a.shape for key, a in given.items()}).run(given)
    for ours, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3 * np.abs(theirs).max())


def test_weights_of_four_bits_are_two_in_a_byte() -> None:
    w = np.array([[[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]]], np.uint8)
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft",
                            K=16, N=1, bits=4, block_size=16)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (16, 16))],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.float32([2]), "s")])
    loaded = load(helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]))
    y = evaluate(loaded.graph, {"x": np.eye(16, dtype=np.float32)}, loaded.parameters)["y"]
    assert y[:, 0].tolist() == [2 * (n - 8) for n in range(16)]


def test_what_a_fused_operator_does_not_compute_is_listed() -> None:
    proto = model_of("FusedConv")
    next(a for a in proto.graph.node[0].attribute if a.name == "activation").s = b"Swish"
    with pytest.raises(UnsupportedError) as raised:
        load(proto)
    assert "'Swish'" in raised.value.nodes[0].why


def test_the_example_of_the_documentation_is_the_rule_that_runs() -> None:
    """docs/onnx.md adds CDist as a diff of one file."""
    root = Path(__file__).resolve().parents[4]
    text = (root / "docs" / "onnx.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"```diff\n(.*?)```", text, re.DOTALL)
    (path,) = re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE)
    added = "".join(f"{line[1:]}\n" for line in diff.splitlines()
                    if line.startswith("+") and not line.startswith("+++"))
    assert added in (root / path).read_text(encoding="utf-8")
    assert {"CDist", "CDist of roots"} <= set(CASES)


def test_distances_of_what_does_not_fit_are_refused() -> None:
    proto = model_of("CDist")
    proto.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 3
    with pytest.raises(InputError, match=r"CDist.*rows of f32\[3, 4\] and f32\[5, 3\]"):
        load(proto)
    proto = model_of("CDist of roots")
    proto.graph.node[0].attribute[0].s = b"cosine"
    with pytest.raises(UnsupportedError, match="the metric 'cosine'"):
        load(proto)
