"""The messages of ONNX: the format's own, beside whatever `onnx` package a program has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx_standard import description

import smalti
from smalti.errors import InputError
from smalti.frontend.onnx.messages import (
    DESCRIPTION,
    GraphProto,
    ModelProto,
    attribute,
    is_model,
    node,
    own_model,
)

TWICE = """
    <ir_version: 9, opset_import: ["" : 20]>
    twice (float[3] x) => (float[3] y) { y = Add(x, x) }"""


def test_the_description_is_that_of_the_format() -> None:
    assert DESCRIPTION.read_bytes() == description()


def test_a_model_of_the_onnx_package_is_copied_and_one_of_ours_is_not() -> None:
    theirs = parser.parse_model(TWICE)
    ours = own_model(theirs)
    assert is_model(theirs) and is_model(ours) and not is_model(theirs.graph)
    assert isinstance(ours, ModelProto) and not isinstance(theirs, ModelProto)
    assert own_model(ours) is ours
    assert ours.SerializeToString() == theirs.SerializeToString()


def test_a_model_that_protobuf_cannot_write_is_refused() -> None:
    class Huge:
        DESCRIPTOR = onnx.ModelProto.DESCRIPTOR

        def SerializeToString(self) -> bytes:
            raise ValueError("exceeds maximum protobuf size of 2GB")

    with pytest.raises(InputError, match="exceeds maximum .* external data, and give the path"):
        own_model(Huge())


@pytest.mark.parametrize("value", [
    1, 1.5, "edge", (1, 2), (1.5, 2.0), ("a", "b"), np.int64(3), (0.5, np.float64(1))])
def test_attributes_are_those_of_the_onnx_package(value: Any) -> None:
    expected = onnx.helper.make_attribute("a", np.asarray(value).tolist())
    assert attribute("a", value).SerializeToString() == expected.SerializeToString()


def test_no_numbers_are_integers() -> None:
    assert attribute("axes", ()).type == onnx.AttributeProto.INTS


def test_a_node_holds_a_body() -> None:
    body = GraphProto(node=[node("Relu", ["x"], ["y"])])
    assert node("If", ["c"], ["y"], then_branch=body).attribute[0].g == body


@pytest.mark.sweep
def test_models_are_read_without_the_onnx_package(tmp_path: Path) -> None:
    path = tmp_path / "twice.onnx"
    path.write_bytes(parser.parse_model(TWICE).SerializeToString())
    told = subprocess.run([sys.executable, "-c", f"""if True:
        import sys
        sys.path[:0] = [{str(Path(smalti.__file__).parents[1])!r}]
        sys.modules["onnx"] = None  # importing it raises ImportError
        import numpy, smalti
        program = smalti.compile({str(path)!r}, device="cpu", threads=1)
        print(program.run({{"x": numpy.ones(3, numpy.float32)}})["y"])
        """], capture_output=True, text=True, timeout=60, check=False)
    assert (told.stdout.strip(), told.stderr) == ("[2. 2. 2.]", "")
