"""Pooling as machine code, against the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from native_regions import LEVELS, PieceRunner, check_graph, run_regions

from smalti.fuse import partition
from smalti.graph import Graph
from smalti.kernel.text import parse, show

CASES = [  # shape, window, steps, pads, dilations, whether the last window may reach beyond
    ((1, 8, 9, 9), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 0),
    ((2, 19, 13, 17), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    ((1, 20, 10, 10), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1), 0),
    ((1, 5, 12, 12), (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 0),
    ((1, 17, 12, 12), (3, 2), (1, 2), (1, 0, 2, 1), (2, 1), 1),
    ((1, 24, 14, 14), (13, 13), (1, 1), (6, 6, 6, 6), (1, 1), 0),
    ((1, 3, 4, 40), (1, 3), (1, 2), (0, 0, 0, 1), (1, 1), 0),
]


def pooled(operation: str, case: tuple, **more: int) -> Graph:
    shape, kernel, strides, pads, dilations, ceil_mode = case
    g = Graph("pooled")
    y = g.apply(operation, g.apply("silu", g.input("x", shape)), kernel_shape=kernel, pads=pads,
                strides=strides, dilations=dilations, ceil_mode=ceil_mode, **more)
    g.output("y", g.apply("relu", y) + g.input("r", y.shape))
    return g


@pytest.mark.sampled
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_windows_of_all_kinds(name: str, precision: str, case: tuple) -> None:
    check_graph(pooled("max_pool", case), name, precision)
    for counted in (0, 1):
        check_graph(pooled("average_pool", case, count_include_pad=counted), name, precision)


def test_borders_are_part_of_the_kernel_and_print() -> None:
    (_, region) = partition(pooled("max_pool", CASES[0])).regions
    assert region.kernel.form == "pooling"
    assert "where 0 <= y - 1 < 9, 0 <= x - 1 < 9 else -inf" in show(region.kernel)
    assert parse(show(region.kernel)) == region.kernel
    whole = partition(pooled("average_pool", CASES[2])).regions[-1].kernel
    assert "where" not in show(whole) and "* 0.25" in show(whole)


@pytest.mark.parametrize("name", LEVELS)
def test_a_maximum_with_nan_is_nan(name: str) -> None:
    g = Graph("nan")
    g.output("y", g.apply("max_pool", g.input("x", (1, 8, 4, 4)), kernel_shape=(2, 2),
                          strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1)))
    x = np.zeros((1, 8, 4, 4), np.float32)
    x[0, :, 1, 2] = np.nan
    found = run_regions(g, {"x": x}, PieceRunner({}, name))["y"]
    assert np.isnan(found[0, :, 0, 1]).all() and np.isnan(found).sum() == 8
