"""Schedules that are tried on GPUs: the first one is among them, all give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from group_kernels import LIMITS, execute, narrowed, regions
from kernel_strategies import image_graph, token_graph

from smalti.errors import IllegalSchedule
from smalti.fuse import Region
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.schedule.candidates_group import arithmetic, candidates, expected_clocks
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupContraction, GroupLimits, GroupMap

SUBGROUP = replace(LIMITS, subgroup_min=32, subgroup_max=32, subgroup_operations=True)
HALVES = replace(SUBGROUP, f16=True, storage16=True)


def kernels() -> Iterator[Kernel]:
    """One kernel of each form, and contractions with and without windows."""
    seen: dict[tuple, Kernel] = {}
    for graph in (image_graph(), token_graph(), moved(), few_rows(), pooled()):
        for region in regions(graph):
            if isinstance(region, Region):
                kernel = region.kernel
                window = kernel.stages[1].reduced if kernel.form == "contraction" else ()
                seen.setdefault((kernel.form, tuple(n for _, n in window)), kernel)
    return iter(seen.values())


def moved() -> Graph:
    """A map whose operand lies across its result."""
    g = Graph("moved")
    x = g.input("x", (40, 48))
    g.output("y", g.apply("exp", g.apply("transpose", x, perm=(1, 0))))
    return g


def few_rows() -> Graph:
    """A product that few rows take part in: the depth is shared by sets of invocations."""
    g = Graph("few rows")
    g.output("y", g.apply("mat_mul", g.input("x", (2, 600)), g.parameter("w", (600, 20))))
    return g


def pooled() -> Graph:
    """A pooling."""
    g = Graph("pooled")
    g.output("y", g.apply("max_pool", g.input("x", (1, 8, 9, 9)), kernel_shape=(3, 3),
                          strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)))
    return g


CASES = [pytest.param(kernel, limits, dtype, id=f"{number}-{kernel.form}-{dtype}-{name}",
                      marks=() if name == "subgroups" else pytest.mark.sweep)
         for number, kernel in enumerate(kernels())
         for name, limits, dtype in (("plain", LIMITS, "f32"), ("subgroups", SUBGROUP, "f32"),
                                     ("halves", HALVES, "f16"))]


def thinned(found: list, most: int) -> list:
    """The first ones and others all over the list."""
    return found[:2] + found[2::max(1, len(found) // most)]


@pytest.mark.parametrize("kernel, limits, dtype", CASES)
def test_candidates_give_the_same_bytes(kernel: Kernel, limits: GroupLimits, dtype: str) -> None:
    kernel = narrowed(kernel, dtype)
    first = choose_group(kernel, limits, dtype)
    found = candidates(kernel, limits, first)
    assert found[0] == first and len(set(found)) == len(found)
    subgroup = limits.subgroup_max if limits.subgroup_operations else 32
    wanted, _ = execute(kernel, first, {}, limits, subgroup)
    for schedule in thinned(found[1:], 4):
        try:
            made, _ = execute(kernel, schedule, {}, limits, subgroup)
        except IllegalSchedule:
            continue
        for name, array in wanted.items():
            assert np.array_equal(array, made[name], equal_nan=True), (name, schedule, first)


def test_every_form_has_something_to_try() -> None:
    counts = [(kernel.form, len(candidates(kernel, LIMITS, choose_group(kernel, LIMITS))))
              for kernel in kernels()]
    assert min(count for _, count in counts) > 1, counts
    assert max(count for form, count in counts if form == "contraction") > 20, counts


def test_contractions_are_tried_in_the_order_in_which_they_are_expected_to_be_fast() -> None:
    kernel = next(k for k in kernels() if k.form == "contraction")
    found = candidates(kernel, LIMITS, choose_group(kernel, LIMITS))
    clocks = [expected_clocks(kernel, LIMITS, schedule) for schedule in found]
    assert clocks[1:] == sorted(clocks[1:]) and clocks[0] == min(clocks)
    maps = [k for k in kernels() if k.form == "map"]
    assert all(expected_clocks(k, LIMITS, GroupMap(64)) > 0 for k in maps)


@pytest.mark.parametrize("change", [{"split": 2}, {"ways": 2}, {"dtype": "f16"},
                                    {"weights": "f16"}, {"direct": True}])
def test_what_changes_sums_or_rounding_changes_arithmetic(change: dict) -> None:
    first = GroupContraction(32, 32, 16, 4, 4)
    assert arithmetic(None, replace(first, **change)) != arithmetic(None, first)
    tiles = replace(first, tile_m=64, tile_n=16, tile_k=32, block_m=8, buffers=2, ahead=True)
    assert arithmetic(None, tiles) == arithmetic(None, first)
    for shared in ({"split": 2}, {"ways": 2}):
        assert arithmetic(None, replace(tiles, **shared)) != arithmetic(
            None, replace(first, **shared)), "what a share of the depth is depends on its chunks"
