"""What kernels touch, for regions whose traffic is known."""

from __future__ import annotations

from smalti.fuse import partition
from smalti.graph import Graph
from smalti.kernel.traffic import touched
from smalti.rewrite import rewrite


def kernels(graph: Graph) -> list[dict[str, int]]:
    """Elements touched by each kernel, largest first."""
    return [touched(region.kernel) for region in partition(rewrite(graph)).regions]


def test_a_product_reads_both_factors_and_writes_the_result_once() -> None:
    g = Graph()
    x, w = g.input("x", (1, 32, 16)), g.parameter("w", (24, 16))
    g.output("y", g.apply("mat_mul", x, w.transpose(1, 0)))
    (found,) = kernels(g)
    assert sorted(found.values()) == sorted([32 * 16, 24 * 16, 32 * 24])


def test_of_a_table_only_the_rows_that_are_looked_up_count() -> None:
    g = Graph()
    ids = g.input("ids", (1, 5), "i32")
    g.output("y", g.apply("gather", g.parameter("table", (1000, 8)), ids))
    (found,) = kernels(g)
    assert max(found.values()) == 5 * 8


def test_a_vector_that_is_repeated_counts_once() -> None:
    g = Graph()
    x, bias = g.input("x", (64, 8)), g.parameter("bias", (8,))
    g.output("y", x + bias)
    (found,) = kernels(g)
    assert sorted(found.values()) == [8, 512, 512]
