"""The verifier names the pass, the node, what was expected and what was found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from smalti.errors import VerificationError
from smalti.graph import OPERATIONS, Graph, Type, verify


def valid() -> Graph:
    g = Graph("small")
    x = g.input("x", (2, 3))
    with g.scope("block.0"):
        y = g.apply("transpose", x, perm=(1, 0))
    with g.scope("block.1"):
        g.output("z", g.apply("mat_mul", x, y * 2.0))
    return g


def wrong_order(g: Graph) -> None:
    g.nodes.reverse()


def wrong_type(g: Graph) -> None:
    g.nodes[1].output.type = Type((3, 3))


def wrong_dtype(g: Graph) -> None:
    g.nodes[2].output.type = Type((2, 2), "i32")


def wrong_attribute(g: Graph) -> None:
    g.nodes[0].attributes["perm"] = (0, 0)


def unknown_attribute(g: Graph) -> None:
    g.nodes[0].attributes["speed"] = 3


def wrong_operation(g: Graph) -> None:
    g.nodes[2].operation = OPERATIONS["silu"]


def foreign_value(g: Graph) -> None:
    g.nodes[0].inputs = (Graph().input("x", (2, 3)),)


def same_output(g: Graph) -> None:
    g.nodes.append(g.nodes[2])


def stolen_output(g: Graph) -> None:
    g.nodes[2].output.node = g.nodes[0]


BROKEN: dict[Callable[[Graph], None], tuple[str, str, str]] = {
    wrong_order: ("node 0 (mat_mul block.1)", "every input defined before it is used",
                  "<result of mul f32[3, 2]> is not"),
    wrong_type: ("node 1 (mul block.1)", "a result of f32[3, 2]", "f32[3, 3]"),
    wrong_dtype: ("node 2 (mat_mul block.1)", "a result of f32[2, 2]", "i32[2, 2]"),
    wrong_attribute: ("node 0 (transpose block.0)", "inputs that fit the operation",
                      "perm [0, 0] is no order of the axes of f32[2, 3]"),
    unknown_attribute: ("node 0 (transpose block.0)", "inputs that fit the operation",
                        "transpose has no attribute ['speed']; it has ['perm']"),
    wrong_operation: ("node 2 (silu block.1)", "inputs that fit the operation",
                      "silu takes 1 input, got 2"),
    foreign_value: ("node 0 (transpose block.0)", "every input defined before it is used",
                    "<input 'x' f32[2, 3]> is not"),
    same_output: ("node 3 (mat_mul block.1)", "each value defined once", "a second definition"),
    stolen_output: ("node 2 (mat_mul block.1)", "each value defined once", "a second definition"),
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_a_broken_graph_is_explained(damage: Callable[[Graph], None]) -> None:
    graph = valid()
    verify(graph)
    damage(graph)
    place, expected, found = BROKEN[damage]
    with pytest.raises(VerificationError) as caught:
        verify(graph, "a bad pass")
    first, *around = str(caught.value).splitlines()
    assert first == (f"after a bad pass, graph small, {place}: expected {expected}, found {found}")
    (marked,) = [line for line in around if line.startswith("  > ")]
    assert marked.split()[2].partition("(")[0] in place


def test_an_output_from_elsewhere_is_refused() -> None:
    graph = valid()
    graph.outputs["z"] = valid().outputs["z"]
    with pytest.raises(VerificationError, match="after building: output 'z' of graph small"):
        verify(graph)
