"""Parameters that are parts of stored tensors, or several of them, read as they are stored."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from smalti.checkpoint.container import open_tensors
from smalti.checkpoint.tensors import StoredTensor
from smalti.families.keys import StoredRows

BF16 = ml_dtypes.bfloat16
STORED = {
    "f16": np.arange(12, dtype=np.float16).reshape(6, 2),
    "bf16": np.arange(12, 24).reshape(6, 2).astype(BF16),
    "other": np.arange(24, 32).reshape(4, 2).astype(BF16),
    "f8": np.arange(4).reshape(2, 2).astype(ml_dtypes.float8_e4m3fn),
}
CASES = {
    "a view": ((StoredRows("bf16"),), "BF16", STORED["bf16"]),
    "the second of three": ((StoredRows("bf16", 1, 3),), "BF16", STORED["bf16"][2:4]),
    "transposed": ((StoredRows("f16", transposed=True),), "F16", STORED["f16"].T),
    "two below each other": ((StoredRows("other"), StoredRows("bf16")), "BF16",
                             np.concatenate([STORED["other"], STORED["bf16"]])),
    "halves swapped": ((StoredRows("f16", 1, 2), StoredRows("f16", 0, 2)), "F16",
                       np.concatenate([STORED["f16"][3:], STORED["f16"][:3]])),
    "of two types": ((StoredRows("f16"), StoredRows("bf16")), "F32",
                     np.concatenate([STORED[name].astype(np.float32) for name in ("f16", "bf16")])),
    "of 8 bits": ((StoredRows("f8"),), "F8_E4M3", STORED["f8"].astype(np.float32)),
}


@pytest.mark.parametrize("name", CASES)
def test_values(tmp_path, name: str) -> None:
    expression, dtype, expected = CASES[name]
    save_file(STORED, tmp_path / "a.safetensors")
    tensor = StoredTensor.of(open_tensors(tmp_path / "a.safetensors"), "weight", expression)
    assert (tensor.dtype, tensor.shape) == (dtype, expected.shape)
    found = tensor.floats()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
    np.testing.assert_array_equal(tensor.read(), expected.astype(np.float32))
    assert tensor.read().dtype == np.float32
    tensor.drop()
    np.testing.assert_array_equal(tensor.read(), expected.astype(np.float32))
    assert tensor.same_as(tensor)
