"""Real models as both exporters of PyTorch write them, against ONNX Runtime."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from exported_models import EXPORTERS, MODELS, NOT_EXPORTED, export

from smalti import compile as compiled
from smalti.frontend.onnx import load
from smalti.rewrite import rewrite

pytestmark = pytest.mark.peers
ERROR_MAX = 1e-3
COMPOSITES = {
    "unet_sd15": {"attention": 8, "layer_normalization": 12, "group_normalization": 21,
                  "silu": 19, "gelu": 4},
    "unet_sdxl": {"attention": 16, "layer_normalization": 24, "group_normalization": 21,
                  "silu": 20, "gelu": 8},
    "controlnet": {"attention": 4, "layer_normalization": 6, "group_normalization": 10,
                   "silu": 13, "gelu": 2},
    "vae_decoder": {"attention": 1, "group_normalization": 14, "silu": 13},
    "vae_encoder": {"attention": 1, "group_normalization": 10, "silu": 9},
    "flux": {"attention": 2, "layer_normalization": 6, "rms_normalization": 6,
             "rotary_embedding": 4, "gelu_tanh": 3, "silu": 4},
    "sd3": {"attention": 2, "layer_normalization": 8, "rms_normalization": 8, "gelu_tanh": 3,
            "silu": 3},
    "clip_text": {"attention": 2, "layer_normalization": 5, "quick_gelu": 2},
    "t5_encoder": {"attention": 2, "rms_normalization": 5, "gelu_tanh": 2},
    "bert": {"attention": 2, "layer_normalization": 5, "gelu": 2},
    "gpt2": {"attention": 2, "layer_normalization": 5, "gelu_tanh": 2},
    "llama": {"attention": 2, "rms_normalization": 5, "rotary_embedding": 4, "silu": 2},
    "decoder_step": {"attention": 2, "rms_normalization": 5, "rotary_embedding": 4, "silu": 2},
    "vit": {"attention": 2, "layer_normalization": 5, "gelu": 2},
    "convnext": {"layer_normalization": 6, "gelu": 3},
    "whisper_encoder": {"attention": 2, "layer_normalization": 5, "gelu": 4},
    "detector": {"silu": 4},
}
"""What exporters spell out and raising finds again; models that are not here have none of it."""
RAISED = set().union(*COMPOSITES.values())
CASES = [case for case in itertools.product(MODELS, EXPORTERS) if case not in NOT_EXPORTED]


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_an_export_runs_as_in_onnx_runtime(name: str, exporter: str, tmp_path: Path) -> None:
    path, inputs = export(tmp_path, name, exporter, EXPORTERS[exporter])
    found = Counter(node.operation.name for node in rewrite(load(path).first.graph).nodes)
    assert {key: found[key] for key in RAISED if found[key]} == COMPOSITES.get(name, {})
    compare(path, inputs)


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("name", ["clip_text", "vae_decoder", "llama"])
def test_other_opsets_of_the_newer_exporter(name: str, opset: int, tmp_path: Path) -> None:
    compare(*export(tmp_path, name, "dynamo", opset))


def compare(path: Path, inputs: dict[str, np.ndarray]) -> None:
    """Our program of the file against ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    inputs = {name: array for name, array in inputs.items() if name in wanted}
    expected = session.run(None, inputs)
    results = compiled(path, threads=1).run(inputs)
    for value, array in zip(session.get_outputs(), expected, strict=True):
        error = np.abs(results[value.name] - array).max() / np.abs(array).max()
        assert error <= ERROR_MAX, f"{value.name}: {error:.1e}"
