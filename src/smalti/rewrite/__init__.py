"""Graph to graph: folding, simplification, raising of spelled-out operations to composites."""

from smalti.rewrite.pipeline import ALL_RULES, PASSES, Pass, rewrite
from smalti.rewrite.rules import Rule

__all__ = ["ALL_RULES", "PASSES", "Pass", "Rule", "rewrite"]
