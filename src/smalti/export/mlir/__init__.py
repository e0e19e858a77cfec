"""A graph as MLIR text."""

from smalti.export.mlir.export import export

__all__ = ["export"]
