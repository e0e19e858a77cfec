"""ONNX models become graphs: read safely, folded, every operator by a rule of its own."""

from smalti.frontend.onnx.model import OnnxModel, load
from smalti.frontend.onnx.reading import read_model

__all__ = ["OnnxModel", "load", "read_model"]
