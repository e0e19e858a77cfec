"""Graph to graph: constants are folded, expressions simplified, and operations that an exporter
spelled out recognised as composites (raising)."""

from smalti.rewrite.pipeline import ALL_RULES, PASSES, GraphPass, rewrite
from smalti.rewrite.rules import Rule

__all__ = ["ALL_RULES", "PASSES", "GraphPass", "Rule", "rewrite"]
