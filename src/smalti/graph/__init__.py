"""What to compute: values, operations (one record each), text form, verifier, numpy reference."""

from smalti.graph import operations as operations
from smalti.graph.graph import Graph, Node, Value
from smalti.graph.interpreter import evaluate
from smalti.graph.operation import OPERATIONS, Operation, Type
from smalti.graph.text import parse, show
from smalti.graph.verifier import verify

__all__ = [
    "OPERATIONS", "Graph", "Node", "Operation", "Type", "Value",
    "evaluate", "parse", "show", "verify",
]
