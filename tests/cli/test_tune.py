"""`smalti tune`: a store that grows, is written, and is read by another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import parser

from smalti.cli.main import root
from smalti.runtime.cache import code_digest
from smalti.runtime.known import GENERATORS

MODEL = """
<ir_version: 9, opset_import: ["" : 20]>
product (float[64,32] x) => (float[64,48] y) <float[32,48] w> { y = MatMul(x, w) }"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(root, [str(argument) for argument in arguments])


def refused(result: Result, *parts: str) -> None:
    """Exit code 2, and one message that holds `parts`."""
    assert result.exit_code == 2 and result.stderr.startswith("Error: "), result.output
    assert all(part in result.stderr for part in parts), result.stderr


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a store of the test's own."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A product of matrices as a file."""
    made = parser.parse_model(MODEL)
    w = np.random.default_rng(0).standard_normal((32, 48), np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(made, tmp_path / "product.onnx")
    return tmp_path / "product.onnx"


def test_a_model_is_tuned(model: Path, tmp_path: Path) -> None:
    result = run("tune", model, "--budget", "1", "--threads", "1", "--export", tmp_path / "all")
    assert result.exit_code == 0, result.output
    assert "of 1 kernels are faster" in result.stdout and "schedules tried" in result.stdout
    entries = [json.loads(line) for line in (tmp_path / "all").read_text().splitlines()]
    assert f"{len(entries)} measurements" in result.stdout
    assert entries and {(entry["threads"], entry["precision"]) for entry in entries} == {(1, "f32")}


def test_one_store_takes_over_another(tmp_path: Path) -> None:
    code = code_digest(*GENERATORS)
    line = {"kernel": "k", "device": "d", "level": "avx2", "threads": 1, "precision": "f32",
            "driver": "", "code": code, "objective": "latency", "schedule": "MapSchedule(grain=4)",
            "seconds": 1e-6, "ratio": 0.9, "verified": True, "at": "2026-01-01"}
    other = {**line, "code": "c" * 64, "driver": "535.1"}
    (tmp_path / "one").write_text("\n".join(map(json.dumps, (line, other))))
    result = run("tune", "--import", tmp_path / "one", "--export", tmp_path / "two")
    assert result.exit_code == 0, result.output
    where = f"avx2, threads 1, f32, latency, code {code[:12]}"
    assert result.stdout.splitlines() == [
        f"1 measurements taken from {tmp_path / 'one'}, 0 of them known here as well or better",
        f"  1 of d, {where}",
        f"1 measurements refused, of other code than this Smalti's, {code[:12]}",
        "  1 of d, driver 535.1, avx2, threads 1, f32, latency, code cccccccccccc",
        f"{tmp_path / 'two'}: 1 measurements", f"  1 of d, {where}"]
    assert json.loads((tmp_path / "two").read_text()) == line
    (tmp_path / "three").write_text(json.dumps(other))
    refused(run("tune", "--import", tmp_path / "three"), "all 1 measurements are of other code",
            "driver 535.1", "export them with the same version")


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    refused(run("tune"), "nothing to do", "--import")
    refused(run("tune", "--export", tmp_path / "a", "--budget", "5"), "--budget is for measuring")
    refused(run("tune", "--ray", "auto"), "--ray is for measuring; give a MODEL")
    endless = run("tune", "tiny_cnn", "--budget", "nan")
    assert endless.exit_code == 2 and "nan is not in the range x>=1" in endless.stderr
    refused(run("tune", "no-model"), "neither a file nor a model of the suite")
    refused(run("tune", "--import", tmp_path / "none"), "cannot be read")
    (tmp_path / "bad").write_text("{}\n")
    refused(run("tune", "--import", tmp_path / "bad"), "line 1 is no measurement")
