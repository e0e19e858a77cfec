"""The rules that take composites apart which no kernel computes as a whole."""

from __future__ import annotations

from smalti.rewrite.rules import Rule

LOWERINGS = (
    Rule("softmax(x, axis=k)",
         "exp(x - reduce_max(x, axes=a)) / reduce_sum(exp(x - reduce_max(x, axes=a)), axes=a)",
         derive=lambda bound: {"a": (bound["k"],)}, example={"k": 1}),
)
