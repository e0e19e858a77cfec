"""Graph -> C++ project for ggml (https://github.com/ggml-org/ggml), with weights as GGUF."""

from smalti.export.ggml.project import export

__all__ = ["export"]
