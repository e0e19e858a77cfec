"""Graph to graph: folding, simplification, raising of spelled-out operations to composites."""

from smalti.rewrite.pipeline import ALL_RULES, PASSES, GraphPass, rewrite
from smalti.rewrite.rules import Rule

__all__ = ["ALL_RULES", "PASSES", "GraphPass", "Rule", "rewrite"]
