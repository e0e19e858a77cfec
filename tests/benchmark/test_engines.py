"""What engines are given: files of a job, the trial of PyTorch's ways."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_suite import TINY_CASES

from smalti.benchmark.engines import (
    ENGINES,
    HELD_BY,
    TRIALS,
    Job,
    _trial,
    expected_outputs,
    export,
    prepared,
)
from smalti.benchmark.turns import in_fresh_process
from smalti.codegen.x86.levels import LEVELS


def test_a_short_run_is_tried_more_often_than_a_long_one() -> None:
    counts = [0, 0]

    def first_is_slow() -> None:
        counts[0] += 1
        time.sleep(0.05 if counts[0] == 1 else 0.001)

    def long() -> None:
        counts[1] += 1
        time.sleep(1.0)

    assert _trial(first_is_slow) < 0.04 and counts[0] == TRIALS
    assert _trial(long) >= 1.0 and counts[1] == 1


def test_jobs_of_other_shapes_have_other_folders(tmp_path: Path) -> None:
    job = Job(TINY_CASES["decode"], "f32", 1, tmp_path)
    other = replace(job, case=replace(job.case, graph=TINY_CASES["encode"].graph))
    assert job.folder != other.folder and job.folder == replace(job, precision="bf16").folder
    assert job.onnx.parent == job.expected.parent == job.folder


def test_our_engine_gives_outputs_in_the_graph_s_order(tmp_path: Path) -> None:
    case = TINY_CASES["flux_block"]
    runner = ENGINES["smalti"].prepare(Job(case, "f32", 1, tmp_path))
    image, text = runner.outputs()
    assert image.shape == (1, 16, 96) and text.shape == (1, 5, 96)
    assert "kernels" in runner.note() and set(runner.run()) == {"img", "txt"}


def test_what_is_missing_is_found_without_importing() -> None:
    assert ENGINES["smalti"].missing() == []
    assert replace(ENGINES["torch"], modules=("numpy", "no_such")).missing() == ["no_such"]


def test_levels_of_our_code_are_levels_of_others() -> None:
    assert set(HELD_BY) == set(LEVELS)


@pytest.mark.peers
def test_engines_are_held_to_a_level(tmp_path: Path) -> None:
    """They say so themselves: PyTorch by its capability, OpenVINO by the names of its layers."""
    job = Job(TINY_CASES["decode"], "f32", 1, tmp_path, target="avx2")
    export(job)
    assert in_fresh_process(_capability, replace(job, target=None)) != ""
    assert in_fresh_process(_capability, job) == "AVX2"
    assert "brgconv_avx2_" in in_fresh_process(_note, "openvino", job)
    assert "brgconv_avx512" not in in_fresh_process(_note, "openvino", job)


def _capability(job: Job) -> str:
    prepared("torch", job)
    import torch

    return torch.backends.cpu.get_cpu_capability()


def _note(name: str, job: Job) -> str:
    return prepared(name, job).note()


@pytest.mark.peers
@pytest.mark.parametrize("precision, error_max", [("f32", 1e-5), ("bf16", 2e-2)])
def test_pytorch_takes_the_faster_way(precision: str, error_max: float, tmp_path: Path) -> None:
    job = Job(TINY_CASES["flux_block"], precision, 1, tmp_path)
    export(job)
    runner = ENGINES["torch"].prepare(job)
    for found, expected in zip(runner.outputs(), expected_outputs(job), strict=True):
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error <= error_max and (error > 1e-4) == (precision == "bf16")
    ways = {"f32": ("f32",), "bf16": ("autocast", "bfloat16")}
    assert runner.note().startswith(ways[precision])


@pytest.mark.peers
@pytest.mark.parametrize("engine", ["smalti_onnx", "onnxruntime", "openvino"])
def test_exported_files_are_read_where_outputs_are_called_like_inputs(engine: str,
                                                                      tmp_path: Path) -> None:
    job = Job(TINY_CASES["flux_block"], "f32", 1, tmp_path)
    assert {"img", "txt"} <= set(job.case.inputs()) & set(job.case.graph().outputs)
    export(job)
    runner = ENGINES[engine].prepare(job)
    for found, expected in zip(runner.outputs(), expected_outputs(job), strict=True):
        assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)
