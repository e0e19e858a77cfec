"""How contractions want their weights: panels hold all the channels that are read of them."""

from __future__ import annotations

import pytest

from smalti.codegen.cpu.lower import limits
from smalti.codegen.cpu.weights import weight_panels
from smalti.codegen.levels import LEVELS
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.schedule import Limits, choose
from smalti.schedule.choose import algorithms


def kernel_of(channels: int):
    """The kernel of a small 3x3 convolution."""
    g = Graph("conv")
    g.output("y", g.apply("conv", g.input("x", (1, channels, 16, 16)),
                          g.parameter("w", (48, channels, 3, 3)), pads=(1, 1, 1, 1)))
    return partition(g).regions[0].kernel


@pytest.mark.sampled
@pytest.mark.parametrize("channels", [4, 16, 20, 48, 98, 100])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
def test_panels_hold_the_channels_of_all_chunks(name: str, precision: str, channels: int) -> None:
    kernel, bounds = kernel_of(channels), limits(LEVELS[name])
    assert isinstance(bounds, Limits)
    found = [choose(kernel, bounds, precision), *algorithms(kernel, bounds, precision, 4)]
    for schedule in found:
        packed = weight_panels(kernel, schedule, LEVELS[name])
        read = -(-channels // schedule.chunk) * schedule.chunk
        assert packed.chunks * packed.chunk == read, schedule
