"""Graph to graph: folding, simplification, raising of spelled-out operations to composites."""

from smalti.rewrite.pipeline import PASSES, Pass, rewrite
from smalti.rewrite.rules import RULES, Rule

__all__ = ["PASSES", "RULES", "Pass", "Rule", "rewrite"]
