"""The passes, in their order, and `rewrite`, which runs them all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from smalti.dataclass import dataclass
from smalti.errors import VerificationError
from smalti.graph import Graph, verify
from smalti.rewrite.attention import ATTENTION_RULES
from smalti.rewrite.composites import COMPOSITES
from smalti.rewrite.folding import fold_constants
from smalti.rewrite.integers import of_bytes, raised, scaled_once
from smalti.rewrite.liveness import remove_dead_nodes
from smalti.rewrite.lowering import LOWERINGS, Computes, lowered
from smalti.rewrite.movement import MOVEMENT_RULES
from smalti.rewrite.rounding import rounding
from smalti.rewrite.rules import RULES, Procedure, Rule, apply_rules
from smalti.rewrite.sharing import share_equal_nodes


@dataclass(frozen=True)
class GraphPass:
    """One step of the pipeline: it takes a valid graph and returns a valid one that computes the
    same.

    `gives` names properties that graphs have from this pass on, `needs` those that earlier passes
    must have given.
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
    # before the rules: a name that stands twice in a rule matches the same value only
    GraphPass("share_spelled_out", share_equal_nodes, needs=("folded",), gives=("spelled_once",)),
    # folds constants in what it builds, so that one walk from inputs to outputs is enough
    GraphPass("apply_rules", partial(apply_rules, rules=ALL_RULES),
              needs=("folded", "spelled_once"), gives=("simplified",)),
    # after the rules, which look for the operations that this one takes apart
    GraphPass("lower_composites", partial(apply_rules, rules=LOWERINGS), needs=("simplified",),
              gives=("lowered",)),
    # again: two spellings of the same value are equal only once they are simplified
    GraphPass("share_equal_nodes", share_equal_nodes, needs=("lowered",), gives=("shared",)),
    # last, because each pass before leaves behind the nodes that it replaced
    GraphPass("remove_dead_nodes", remove_dead_nodes, needs=("shared",), gives=("live",)),
)


def rewrite(graph: Graph, computes: Computes | None = None,
            rounded: Callable[[Graph], Collection[str]] | None = None,
            paired: bool = False, words: Collection[str] = (),
            stand: Computes | None = None) -> Graph:
    """A graph that computes the same as `graph` with less work; `graph` itself is not changed.

    `computes(node)` is True if a kernel of the target computes the node; operations that none does
    are written with others where there is a way. Of the layers of a simplified graph those whose
    weights `rounded(graph)` gives are computed in integers of 8 bits, those among `words` of 16,
    for a target that adds two products of bytes in 16 bits if `paired`. Products of integers take
    the place of those of real numbers that are integers times scales, if they `stand` for them, or
    are computed where that is not given. Inputs, parameters and outputs keep their names, order and
    types. Every pass is checked. Raises VerificationError naming the pass that broke the graph.

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
    if computes is not None and rounded is not None:
        rule = rounding(rounded(graph), computes, paired, words)
        graph = _run(graph, (GraphPass("round", partial(apply_rules, rules=(rule,))), *PASSES))
    if computes is not None and of_bytes(graph):
        rules = (raised(stand or computes), Procedure(("mul",), scaled_once))
        raising = GraphPass("raise_integers", partial(apply_rules, rules=rules))
        graph = _run(graph, (raising, *PASSES))
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
    """Raise VerificationError if the pass `name` changed an input, a parameter or an output."""
    for kind in ("inputs", "parameters", "outputs"):
        expected, found = ([f"{label} {value.type}" for label, value in getattr(g, kind).items()]
                           for g in (before, after))
        if expected != found:
            changed = sorted(set(expected) ^ set(found)) or "their order"
            raise VerificationError(f"after {name}, graph {before.name}: expected the {kind} to "
                                    f"stay as they were, found a difference in {changed}")
