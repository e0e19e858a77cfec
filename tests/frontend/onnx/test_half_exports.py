"""Models in half precision, as `model.half()` exports them, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exported_models import EXPORTERS, export

from smalti import compile as compiled

pytestmark = pytest.mark.peers
ERROR_MAX = 2e-3


@pytest.mark.parametrize(("name", "exporter"), [
    ("vit", "torchscript"), ("vit", "dynamo"), ("clip_text", "dynamo"),
    ("t5_encoder", "torchscript"), ("resnet", "torchscript"), ("vae_decoder", "dynamo"),
    ("unet_sd15", "dynamo")])
def test_half_precision_is_native_and_as_in_onnx_runtime(name: str, exporter: str,
                                                         tmp_path: Path) -> None:
    import onnxruntime

    path, inputs = export(tmp_path, name, exporter, EXPORTERS[exporter], half=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    inputs = {name: array for name, array in inputs.items() if name in wanted}
    program = compiled(path, threads=1)
    hosted = {line for line in program.explain(all=True, columns=1000).splitlines()
              if "host: " in line}
    assert not any("f16" in line or "on f32" in line for line in hosted)
    results = program.run(inputs)
    for value, array in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        found, expected = (np.asarray(a, np.float64) for a in (results[value.name], array))
        assert results[value.name].dtype == array.dtype
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error <= ERROR_MAX, f"{value.name}: {error:.1e}"
