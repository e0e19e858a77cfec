"""What others make of a case in integers of 8 bits: OpenVINO and ONNX Runtime, on one thread.

OpenVINO is given a model in two ways, both of which NNCF writes: weights of 8 bits with a scale for
each output channel; and either ranges of activations, found by one run (`FakeQuantize`, as of
static quantisation), or none, so that it finds them as it runs. ONNX Runtime's quantiser makes
dynamic integer operators. All get the weights of the case, and none a layer that stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smalti.benchmark.engines import Job
from smalti.runtime.cpu.adapter import cpu

Run = Callable[[], list[np.ndarray]]
LAYERS = {"MatMul", "Convolution"}
"""Operations of OpenVINO whose weights become bytes."""
LEVELS_OF_BYTES = 256
GROUPS = {"rows in groups of 32": 32, "whole rows": 1 << 62}
"""Values of a row that OpenVINO gives a scale of their own, where it finds scales as it runs."""


def openvino_ways(job: Job, dynamic: bool = True) -> dict[str, Run]:
    """OpenVINO's ways to compute a case that was exported, by what they are called; with `dynamic`
    also those in which it finds ranges as it runs, which it does for matrix products only."""
    import openvino

    core, given = openvino.Core(), job.case.inputs()
    ranges = _ranges(core, job)
    found: dict[str, Run] = {}

    def compiled(model: Any, **more: Any) -> Run:
        ready = core.compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": job.threads, "PERFORMANCE_HINT": "LATENCY", **more})
        return lambda: [np.array(array) for array in ready(given).values()]

    for precision in ("f32", "bf16"):
        model = core.read_model(job.onnx)
        for layer, (low, high) in zip(_layers(model), ranges, strict=True):
            _ranged(layer, low, high)
            _of_bytes(layer)
        found[f"static, {precision}"] = compiled(model, INFERENCE_PRECISION_HINT=precision)
    for name, size in GROUPS.items() if dynamic else ():
        model = core.read_model(job.onnx)
        for layer in _layers(model):
            _of_bytes(layer)
        found[f"dynamic, {name}"] = compiled(model, INFERENCE_PRECISION_HINT="f32",
                                             DYNAMIC_QUANTIZATION_GROUP_SIZE=size)
    return found


def _layers(model: Any) -> list[Any]:
    """The operations whose second operand is a weight."""
    return [op for op in model.get_ordered_ops()
            if op.get_type_name() in LAYERS and _weight(op) is not None]


def _weight(layer: Any) -> np.ndarray | None:
    """The weight of a layer as it is multiplied; None if it is computed."""
    node = layer.input_value(1).get_node()
    kind = node.get_type_name()
    turns = []
    while kind in ("Transpose", "Convert"):
        if kind == "Transpose":
            turns.append(node.input_value(1).get_node().data)
        node = node.input_value(0).get_node()
        kind = node.get_type_name()
    if kind != "Constant":
        return None
    values = np.asarray(node.data, np.float32)
    for order in reversed(turns):
        values = values.transpose(order)
    return values


def _of_bytes(layer: Any) -> None:
    """Give a layer its weight as bytes, times a scale for each output channel."""
    from openvino import opset13 as ops

    weight = _weight(layer)
    assert weight is not None, layer
    channel = 0
    if layer.get_type_name() == "MatMul":
        channel = weight.ndim - (2 if layer.get_attributes()["transpose_b"] else 1)
    others = tuple(axis for axis in range(weight.ndim) if axis != channel)
    scale = np.maximum(np.abs(weight).max(others, keepdims=True) / np.float32(127),
                       np.finfo(np.float32).tiny)
    whole = ops.constant(np.rint(weight / scale).astype(np.int8))
    layer.input(1).replace_source_output(
        ops.multiply(ops.convert(whole, "f32"), ops.constant(scale)).output(0))


def _ranged(layer: Any, low: float, high: float) -> None:
    """Say that what a layer reads lies between two numbers, and may be one of 256 there."""
    from openvino import opset13 as ops

    bounds = [ops.constant(np.float32(bound)) for bound in (low, high)]
    source = layer.input_value(0)
    limited = ops.fake_quantize(source, *bounds, *bounds, LEVELS_OF_BYTES)
    layer.input(0).replace_source_output(limited.output(0))


def _ranges(core: Any, job: Job) -> list[tuple[float, float]]:
    """The least and the largest number that each layer reads, in a run with the case's inputs."""
    from openvino import opset13 as ops

    model = core.read_model(job.onnx)
    results = []
    for layer in _layers(model):
        source = layer.input_value(0)
        axes = ops.constant(np.arange(len(source.get_partial_shape()), dtype=np.int64))
        results += [ops.result(make(source, axes)) for make in (ops.reduce_min, ops.reduce_max)]
    model.add_results(results)
    ready = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": job.threads,
                                              "INFERENCE_PRECISION_HINT": "f32"})
    found = [float(array) for array in list(ready(job.case.inputs()).values())[-len(results):]]
    return list(zip(found[::2], found[1::2], strict=True))


def onnxruntime_dynamic(job: Job) -> Run:
    """ONNX Runtime on what its quantiser makes of a case that was exported, without ranges. On a
    CPU without VNNI weights have 7 bits, as its documentation asks: with 8 its sums of two products
    overflow."""
    import onnx
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model, target = onnx.load(job.onnx), job.folder / "dynamic.onnx"
    del model.graph.value_info[:]  # turned weights of Gemm would contradict their shapes
    vnni = {"avx_vnni", "avx512_vnni"} & set(cpu().features)
    quantize_dynamic(model, str(target), per_channel=True, weight_type=QuantType.QInt8,
                     reduce_range=not vnni, use_external_data_format=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = job.threads
    session = onnxruntime.InferenceSession(str(target), options,
                                           providers=["CPUExecutionProvider"])
    given = job.case.inputs()
    return lambda: session.run(None, given)
