"""Quantised ONNX models on drivers: the integers that the standard's reference has."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_devices import adapter, vulkan  # noqa: F401
from onnx_reference import compare
from webgpu_devices import webgpu  # noqa: F401

from smalti.compiler.integers import IntegerChoice
from smalti.fuse.support import INTEGER_PRODUCTS, lacking

RNG = np.random.default_rng(1)
TYPES = {"u1": "uint8", "i1": "int8", "i4": "int32", "f4": "float"}


def drawn(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Any integers of a type of 8 bits."""
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def weights(**values: np.ndarray) -> str:
    """Initializers as text."""
    return ", ".join(f"{TYPES[x.dtype.str[1:]]}[{','.join(map(str, x.shape))}] {name} = "
                     f"{{{','.join(map(repr, x.ravel().tolist()))}}}" if x.shape else
                     f"{TYPES[x.dtype.str[1:]]} {name} = {{{x.item()!r}}}"
                     for name, x in values.items())


def graph(inputs: str, result: str, body: str, **values: np.ndarray) -> str:
    """A model of one graph."""
    return (f'<ir_version: 9, opset_import: ["": 19]> g ({inputs}) => ({result}) '
            f"<{weights(**values)}> {{ {body} }}")


SCALES = {"s": np.float32(0.02), "z": np.uint8(121), "ys": np.float32(0.7), "yz": np.uint8(111)}
MATRIX = {"w": drawn((64, 24), np.int8), "wz": np.zeros(24, np.int8),
          "ws": RNG.uniform(1e-3, 1e-2, 24).astype(np.float32)}
QUANTISED = "q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) " \
            "e = DequantizeLinear<axis = 1>(w, ws, wz) "


def convolution(window: int) -> tuple[str, dict[str, np.ndarray]]:
    """QLinearConv of 16 channels with a scale for each result's, and with a bias."""
    pads = [window // 2] * 4
    text = graph("uint8[1,16,7,7] x", "uint8[1,20,7,7] y",
                 f"y = QLinearConv<pads = {pads}>(x, s, z, w, ws, wz, ys, yz, b)", **SCALES,
                 w=drawn((20, 16, window, window), np.int8), wz=np.zeros(20, np.int8),
                 ws=RNG.uniform(1e-3, 1e-2, 20).astype(np.float32),
                 b=RNG.integers(-9999, 9999, 20, np.int32))
    return text, {"x": drawn((1, 16, 7, 7), np.uint8)}


def of_bytes(result: str, body: str, **values: np.ndarray) -> tuple[str, dict[str, np.ndarray]]:
    return graph("uint8[17,64] a", result, body, **values), {"a": drawn((17, 64), np.uint8)}


def of_floats(body: str, **values: np.ndarray) -> tuple[str, dict[str, np.ndarray]]:
    return graph("float[17,64] a", "uint8[17,24] y", QUANTISED + body, **SCALES, **MATRIX,
                 **values), {"a": RNG.uniform(-3, 3, (17, 64)).astype(np.float32)}


MODELS = {
    "MatMulInteger": of_bytes("int32[17,24] y", "y = MatMulInteger(a, w, z)",
                              w=MATRIX["w"], z=SCALES["z"]),
    "QLinearMatMul": of_bytes("uint8[17,24] y", "y = QLinearMatMul(a, s, z, w, ws, wz, ys, yz)",
                              **SCALES, w=MATRIX["w"], ws=np.float32(0.01), wz=np.int8(0)),
    "MatMul of a QDQ model": of_floats("m = MatMul(d, e) y = QuantizeLinear(m, ys, yz)"),
    "Gemm of a QDQ model": of_floats("m = Gemm(d, e, b) r = Relu(m) y = QuantizeLinear(r, ys, yz)",
                                     b=RNG.uniform(-9, 9, 24).astype(np.float32)),
    "QLinearConv of 1 x 1": convolution(1), "QLinearConv of 3 x 3": convolution(3),
}
EXACT = [name for name in MODELS if "QDQ" not in name]
"""Those whose sums have to be exact, not only where integers take them."""
NUMBERS = {"vulkan": "vulkan:0", "webgpu": "wgpu:0"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in (
    "Gemm of a QDQ model", "QLinearConv of 3 x 3") else pytest.mark.sweep) for name in MODELS])
@pytest.mark.parametrize("device", ["vulkan", pytest.param("webgpu", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("precision", [pytest.param("f32", marks=pytest.mark.sweep), "f16"])
def test_products_of_bytes_give_the_integers_of_the_standard(
        name: str, device: str, precision: str, request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch) -> None:
    request.getfixturevalue(device)  # or the test is left out
    monkeypatch.setattr(IntegerChoice, "_computes", lambda self, node, way: not lacking(
        node, self.target.functions))
    text, given = MODELS[name]
    compare(text, given, 0.0, device=NUMBERS[device], precision=precision)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "QLinearConv of 1 x 1" else
                                               pytest.mark.sweep) for name in EXACT])
@pytest.mark.parametrize("device", ["vulkan", pytest.param("webgpu", marks=pytest.mark.sweep)])
def test_products_of_floats_give_them_too(name: str, device: str, request: pytest.FixtureRequest,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """As where they are expected to take less time."""
    request.getfixturevalue(device)
    monkeypatch.setattr(IntegerChoice, "_computes", lambda self, node, way: (
        node.operation.name not in INTEGER_PRODUCTS and not lacking(node, self.target.functions)))
    text, given = MODELS[name]
    compare(text, given, 0.0, device=NUMBERS[device], precision="f16")
