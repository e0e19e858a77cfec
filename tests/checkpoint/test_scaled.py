"""Weights with scales beside them read as what they stand for."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from smalti.checkpoint.container import open_tensors
from smalti.errors import CheckpointError
from smalti.runtime.tensor_file import MappedTensors, Tensors

VALUES = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
E4M3 = VALUES.astype(ml_dtypes.float8_e4m3fn)
E5M2 = VALUES.astype(ml_dtypes.float8_e5m2)
I8 = np.arange(-12, 12, dtype=np.int8).reshape(4, 6)
MARKER = {"scaled_fp8": np.zeros(0, ml_dtypes.float8_e4m3fn)}
SCALE, ROWS = np.float32([0.5]), np.float32([1, 2, 3, 4])


def described(**stated: object) -> np.ndarray:
    return np.frombuffer(json.dumps(stated).encode(), np.uint8)


def opened(folder: Path, table: dict[str, np.ndarray]) -> Tensors:
    save_file(table, folder / "x.safetensors")
    return open_tensors(folder / "x.safetensors")


SCALED = {
    "marked": ({**MARKER, "a.weight": E4M3, "a.scale_weight": SCALE, "a.scale_input": SCALE},
               E4M3.astype(np.float32) * 0.5, "F8_E4M3_SCALED"),
    "scalar": ({"a.weight": E5M2, "a.scale_weight": SCALE.reshape(())},
               E5M2.astype(np.float32) * 0.5, "F8_E5M2_SCALED"),
    "described": ({"a.weight": E4M3, "a.weight_scale": SCALE,
                   "a.comfy_quant": described(format="float8_e4m3fn")},
                  E4M3.astype(np.float32) * 0.5, "F8_E4M3_SCALED"),
    "rows": ({"a.weight": E4M3, "a.weight_scale": ROWS[:, None], "a.input_scale": SCALE},
             E4M3.astype(np.float32) * ROWS[:, None], "F8_E4M3_SCALED"),
    "whole numbers": ({"a.weight": I8, "a.weight_scale": ROWS,
                       "a.comfy_quant": described(format="int8_tensorwise")},
                      I8.astype(np.float32) * ROWS[:, None], "I8_SCALED"),
    "floats": ({"a.weight": VALUES, "a.scale_weight": SCALE}, VALUES * 0.5, "F32_SCALED"),
    "one beside floats": ({**MARKER, "a.weight": VALUES, "a.scale_weight": np.ones(1, np.float32)},
                          VALUES, "F32"),
}


@pytest.mark.parametrize("what", SCALED)
def test_scales_are_applied_and_vanish(tmp_path: Path, what: str,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    table, expected, dtype = SCALED[what]
    file = opened(tmp_path, {**table, "a.bias": ROWS})
    assert set(file) == {"a.weight", "a.bias"} and file.dtype("a.weight") == dtype
    np.testing.assert_array_equal(file.read("a.weight"), expected)
    np.testing.assert_array_equal(file.read("a.bias"), ROWS)
    file.drop("a.weight")
    assert file.raw("a.weight").tobytes() == table["a.weight"].tobytes()
    asked: list[str] = []
    monkeypatch.setattr(MappedTensors, "ahead", lambda _, names: asked.extend(names))
    file.ahead(["a.weight", "a.bias"])
    assert len(asked) == len({*asked}) and {"a.weight", "a.bias"} <= {*asked} <= {*table, "a.bias"}
    assert (len(asked) > 2) == (file.scale("a.weight") is not None)


def test_the_scale_can_be_asked_for(tmp_path: Path) -> None:
    file = opened(tmp_path, SCALED["rows"][0])
    np.testing.assert_array_equal(file.scale("a.weight"), ROWS)


def test_plain_floats_of_8_bits_are_left_alone(tmp_path: Path) -> None:
    file = opened(tmp_path, {"a.weight": E4M3})
    assert file.dtype("a.weight") == "F8_E4M3"
    np.testing.assert_array_equal(file.read("a.weight"), E4M3.astype(np.float32))


REFUSED = {
    "no weight": ({"a.scale_weight": SCALE}, "not there"),
    "shape": ({"a.weight": E4M3, "a.scale_weight": np.ones(6, np.float32)}, "one a row"),
    "two": ({"a.weight": E4M3, "a.scale_weight": SCALE, "a.weight_scale": SCALE}, "second scale"),
    "of places": ({"a.weight": I8.astype(np.int64), "a.scale_weight": SCALE},
                  "a weight that is I64"),
    "no json": ({"a.weight": E4M3, "a.comfy_quant": np.zeros(3, np.uint8)}, "no JSON"),
    "other type": ({"a.weight": E4M3, "a.comfy_quant": described(format="float8_e5m2")},
                   "which it is not"),
    "nvfp4": ({"a.weight": I8, "a.comfy_quant": described(format="nvfp4")}, "nvfp4"),
    "rotated": ({"a.weight": I8, "a.weight_scale": ROWS, "a.comfy_quant": described(
        format="int8_tensorwise", convrot=True)}, "convrot"),
    "undescribed": ({"a.weight": I8.view(np.uint8), "a.weight.absmax": SCALE}, "bitsandbytes"),
    "gptq": ({"a.qweight": I8, "a.qzeros": I8}, "GPTQ"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_read_is_named(tmp_path: Path, what: str) -> None:
    table, said = REFUSED[what]
    with pytest.raises(CheckpointError, match=said):
        opened(tmp_path, table)
