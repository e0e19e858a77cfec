"""ONNX models as graphs: exports of PyTorch and published models that the package `onnx` holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx.backend.test

from smalti.frontend.onnx import load
from smalti.graph import Graph

DATA = Path(onnx.backend.test.__file__).parent / "data"
SMALL = ("pytorch-converted/test_Conv2d_groups", "pytorch-converted/test_Conv1d_stride",
         "pytorch-converted/test_ConvTranspose2d", "pytorch-converted/test_BatchNorm2d_eval",
         "pytorch-converted/test_Embedding", "pytorch-converted/test_GLU",
         "pytorch-converted/test_PixelShuffle", "pytorch-converted/test_Softmax",
         "pytorch-converted/test_MaxPool2d", "pytorch-operator/test_operator_basic",
         "pytorch-operator/test_operator_reduced_mean", "pytorch-operator/test_operator_pad")
PUBLISHED = ("squeezenet", "shufflenet", "resnet50", "densenet121", "inception_v2", "vgg19")


def graph_of(path: Path) -> Graph:
    """The graph of a file."""
    return load(path).graph


def small() -> dict[str, Callable[[], Graph]]:
    """Exports of single layers."""
    return {f"onnx {name.rpartition('test_')[2]}": partial(graph_of, DATA / name / "model.onnx")
            for name in SMALL}


def published() -> dict[str, Callable[[], Graph]]:
    """Models of pictures, their weights made by nodes that fill them."""
    return {f"onnx {name}": partial(graph_of, DATA / "light" / f"light_{name}.onnx")
            for name in PUBLISHED}
