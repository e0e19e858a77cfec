"""Others in integers of 8 bits: what they compute is the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from smalti.benchmark.eight_bit_peers import onnxruntime_dynamic, openvino_ways
from smalti.benchmark.engines import Job, expected_outputs, export
from smalti.benchmark.suite import CASES

OFF_MAX = 0.05
"""How far TinyCNN may be from f32 in integers, in the Euclidean norm."""


@pytest.mark.peers
def test_openvino_and_onnxruntime_compute_the_model(tmp_path: Path) -> None:
    job = Job(CASES["tiny_cnn"], "f32", 1, tmp_path)
    export(job)
    runs = {**openvino_ways(job), "ONNX Runtime": onnxruntime_dynamic(job)}
    assert len(runs) == 5
    for name, run in runs.items():
        for found, wanted in zip(run(), expected_outputs(job), strict=True):
            assert 0 < np.linalg.norm(found - wanted) < OFF_MAX * np.linalg.norm(wanted), name
