"""Operators that move elements, against the reference of the onnx package."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_reference import compare


@pytest.mark.parametrize("dtype", ["float", "int32"])
@pytest.mark.parametrize(("extents", "axes"), [
    ([6, 3], ""), ([3, 8], ""), ([4, 9], ""), ([2], "axes = [1]"), ([9], "axes = [-2]")])
def test_what_is_centred_is_cropped_or_padded(dtype: str, extents: list[int], axes: str) -> None:
    x = np.arange(1, 29).reshape(4, 7).astype({"float": np.float32, "int32": np.int32}[dtype])
    compare(f"""
        <ir_version: 9, opset_import: ["" : 20]>
        m ({dtype}[4, 7] x) => ({dtype}[a, b] y) {{
            extents = Constant <value_ints = {extents}> ()
            y = CenterCropPad {f"<{axes}>" if axes else ""} (x, extents)
        }}""", {"x": x})
