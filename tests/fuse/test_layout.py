"""Which values of four axes are images, and which are rows."""

from __future__ import annotations

from smalti.fuse import partition
from smalti.fuse.layout import row_values
from smalti.graph import Graph


def test_what_is_combined_is_of_one_kind_and_images_win() -> None:
    g = Graph("kinds")
    x, q = g.input("x", (1, 8, 4, 4)), g.input("q", (2, 3, 4, 5))
    image = g.apply("conv", g.apply("silu", x), g.parameter("w", (8, 8, 1, 1)))
    scores = g.apply("mat_mul", q, g.parameter("p", (5, 5)))
    soft = g.apply("exp", scores - g.apply("reduce_max", scores, axes=(3,)))
    both = g.apply("mat_mul", image, g.parameter("v", (4, 4))) + x
    found = row_values(g)
    assert {q, scores, soft} <= found
    assert not {x, image, both} & found
    assert not row_values(Graph("none"))


def test_heads_are_stored_as_they_are_joined() -> None:
    g = Graph("heads")
    weights, v = g.input("weights", (1, 3, 8, 8)), g.input("v", (1, 8, 3, 4))
    joined = g.apply("mat_mul", weights, v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    g.output("y", joined.reshape(1, 8, 12))
    (region,) = partition(g).regions
    assert region.kernel.form == "contraction"
    assert region.views["out"].strides[1:] == (4, 12, 1)
