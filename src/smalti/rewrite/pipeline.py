"""The passes, in their order, and `rewrite`, which runs them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from smalti.errors import VerificationError
from smalti.graph import Graph, verify
from smalti.rewrite.attention import ATTENTION_RULES
from smalti.rewrite.composites import COMPOSITES
from smalti.rewrite.folding import fold_constants
from smalti.rewrite.liveness import remove_dead_nodes
from smalti.rewrite.lowering import LOWERINGS, Computes, lowered
from smalti.rewrite.movement import MOVEMENT_RULES
from smalti.rewrite.rules import RULES, Procedure, Rule, apply_rules
from smalti.rewrite.sharing import share_equal_nodes


@dataclass(frozen=True)
class GraphPass:
    """One step of the pipeline: a valid graph in, an equal and valid graph out.

    `needs` are properties of the graph that earlier passes give, `gives` are those that hold from
    here on to the end of the pipeline.
    """

    name: str
    function: Callable[[Graph], Graph]
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()


ALL_RULES: tuple[Rule | Procedure, ...] = (
    *RULES, *MOVEMENT_RULES, *COMPOSITES, *ATTENTION_RULES)

PASSES: tuple[GraphPass, ...] = (
    # first, so that a rule which asks for a number finds it as one constant
    GraphPass("fold_constants", fold_constants, gives=("folded",)),
    # before the rules: what stands twice in one of them is the same value
    GraphPass("share_spelled_out", share_equal_nodes, needs=("folded",), gives=("spelled_once",)),
    # folds what it makes, so that one walk from inputs to outputs is enough
    GraphPass("apply_rules", partial(apply_rules, rules=ALL_RULES),
              needs=("folded", "spelled_once"), gives=("simplified",)),
    # after the rules, which look for what is taken apart here
    GraphPass("lower_composites", partial(apply_rules, rules=LOWERINGS), needs=("simplified",),
              gives=("lowered",)),
    # again: two spellings of the same value are equal only once they are simplified
    GraphPass("share_equal_nodes", share_equal_nodes, needs=("lowered",), gives=("shared",)),
    # last, because each pass before leaves behind the nodes that it replaced
    GraphPass("remove_dead_nodes", remove_dead_nodes, needs=("shared",), gives=("live",)),
)


def rewrite(graph: Graph, computes: Computes | None = None) -> Graph:
    """An equal graph with less to compute; `graph` itself stays as it is.

    `computes(node)` says what kernels of a target compute; other operations are taken apart where
    there is a way.
    Inputs, parameters and outputs keep their names, order and types. Every pass is checked; raises
    VerificationError naming the pass that broke the graph.

    >>> g = Graph("silu, spelled out")
    >>> x = g.input("x", (2, 3))
    >>> g.output("y", x * g.apply("sigmoid", x * 1.0) + 0.0)
    >>> print(rewrite(g), end="")
    graph "silu, spelled out" {
      %0 = input "x" : f32[2, 3]
      %1 = silu(%0) {} : f32[2, 3]
      output "y" = %1
    }
    """
    verify(graph)
    graph = _run(graph, PASSES)
    if computes is None or all(map(computes, graph.nodes)):
        return graph
    lower = GraphPass("lower_for_target", partial(lowered, computes=computes))
    # again: what has been taken apart is simplified, and may be equal to something else
    return _run(graph, (lower, *PASSES))


def _run(graph: Graph, passes: Sequence[GraphPass]) -> Graph:
    for step in passes:
        result = step.function(graph)
        verify(result, step.name)
        check_interface(graph, result, step.name)
        graph = result
    return graph


def check_interface(before: Graph, after: Graph, name: str) -> None:
    """Raise VerificationError when a pass changed an input, a parameter or an output."""
    for kind in ("inputs", "parameters", "outputs"):
        expected, found = ([f"{label} {value.type}" for label, value in getattr(g, kind).items()]
                           for g in (before, after))
        if expected != found:
            changed = sorted(set(expected) ^ set(found)) or "their order"
            raise VerificationError(f"after {name}, graph {before.name}: expected the {kind} to "
                                    f"stay as they were, found a difference in {changed}")
