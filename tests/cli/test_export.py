"""`smalti export`: an ONNX file as a C++ project for ggml, and as MLIR text."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.test_commands import refused, run
from onnx import parser

from smalti.cli.output import show_bytes
from smalti.export import mlir
from smalti.frontend.onnx import load

OPEN = """
<ir_version: 9, opset_import: ["" : 20]>
twice (float[n, 4] x) => (float[n, 4] y) { y = Add(x, x) }"""
SORTED = """
<ir_version: 9, opset_import: ["" : 20]>
sorted (float[4] x) => (float[4] values, int64[4] places)
<int64[1] k = {4}> { values, places = TopK(x, k) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = x + x, of as many rows as there are."""
    return written(OPEN, tmp_path / "twice.onnx")


def written(text: str, path: Path) -> Path:
    path.write_bytes(parser.parse_model(text).SerializeToString())
    return path


@pytest.mark.parametrize(("shape", "rows"), [("x=3,4", 3), ("n=5", 5)])
def test_a_project_for_ggml_is_written(model: Path, tmp_path: Path, shape: str, rows: int) -> None:
    result = run("export", "ggml", model, "-o", tmp_path / "a", "--shape", shape)
    assert (result.exit_code, result.stderr) == (0, "")
    for file in (tmp_path / "a").iterdir():
        assert f"{file}  {show_bytes(file.stat().st_size)}\n" in result.stdout
    assert result.stdout.endswith("README.md says how to build and run it\n")
    assert f"ggml_add(ctx, x, x);  // [{rows}, 4]" in (tmp_path / "a" / "model.cpp").read_text()
    again = run("export", "ggml", model, "-o", tmp_path / "a", "--shape", shape)
    refused(again, "it is there already")


def test_the_graph_is_written_as_mlir(model: Path, tmp_path: Path) -> None:
    result = run("export", "mlir", model, "-o", tmp_path / "a.mlir", "--shape", "n=5")
    size = show_bytes((tmp_path / "a.mlir").stat().st_size)
    assert (result.exit_code, result.output) == (0, f"{tmp_path / 'a.mlir'}  {size}\n")
    text = (tmp_path / "a.mlir").read_text()
    assert text == mlir.export(load(model, {"n": 5}).graph)
    assert "func.func @twice(%x: tensor<5x4xf32>" in text


@pytest.mark.parametrize("kind", ["ggml", "mlir"])
def test_what_cannot_be_written_is_refused(model: Path, tmp_path: Path, kind: str) -> None:
    out = ("-o", tmp_path / "out")
    refused(run("export", kind, model, *out), "leaves dimensions open")
    refused(run("export", kind, model, *out, "--shape", "x=1,b"), "x=1,b")
    refused(run("export", kind, tmp_path / "none.onnx", *out), "none.onnx")
    refused(run("export", kind, model, "-o", tmp_path / "none" / "out", "--shape", "n=1"), "none")
    refused(run("export", kind, written(SORTED, tmp_path / "sorted.onnx"), *out), "top_k_indices")
    assert not (tmp_path / "out").exists()
