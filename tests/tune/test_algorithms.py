"""Algorithms of all contractions of a program, by what the timing model expects of them."""

from __future__ import annotations

from itertools import product

import pytest
from native_regions import LEVELS

from smalti import machine
from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.levels import level
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.models.config import VaeConfig
from smalti.models.vae import vae_decoder_graph
from smalti.rewrite import rewrite
from smalti.schedule import choose
from smalti.schedule.choose import algorithms
from smalti.schedule.schedule import BINDING, RUN, TRANSFORMED
from smalti.schedule.winograd import growth_of
from smalti.tune.algorithms import REFERENCE_THREADS, _results, planned
from smalti.tune.assignment import greedy
from smalti.tune.objective import Objective
from smalti.tune.preference import GAIN_MIN

CPU = limits(level(LEVELS[-1]), 2, 48 << 10, 1 << 20)
WINOGRAD = 4


def convolutions(*sizes: tuple[int, int]) -> list[Kernel]:
    """3x3 convolutions, each behind the one before, of so many channels on squares of a side."""
    g = Graph("chain")
    for number, (channels, side) in enumerate(sizes):
        weight = g.parameter(f"w{number}", (channels, channels, 3, 3))
        g.output(f"y{number}", g.apply("conv", g.input(f"x{number}", (1, channels, side, side)),
                                       weight, pads=(1, 1, 1, 1)))
    return [region.kernel for region in partition(g).regions]


def plan(kernels, growth: int, cost, **how):
    return planned(kernels, CPU, "f32", growth, [WINOGRAD] * len(kernels), cost, **how)


def test_without_a_model_the_rules_choose_in_order() -> None:
    kernels = convolutions((64, 40), (64, 40))
    each = growth_of(kernels[0], choose(kernels[0], CPU), "f32")
    first, second = plan(kernels, each, None)
    assert [s.winograd.transformed for s in (first, second)] == [BINDING, RUN]
    assert plan([None, *kernels], 0, None)[0] is None


def test_bytes_go_to_the_layer_that_gains_most_and_no_more_than_there_are() -> None:
    kernels = convolutions((64, 40), (64, 48))

    def cost(kernel: Kernel, schedule) -> float:
        if schedule.winograd_size == WINOGRAD and growth_of(kernel, schedule, "f32"):
            return 4.0 if kernel == kernels[0] else 3.0
        return 5.0

    each = growth_of(kernels[0], choose(kernels[0], CPU), "f32")
    for choice in ({}, {"choice": greedy}):
        for growth, bound in (
                (0, [False, False]), (each, [False, True]), (2 * each, [True, True])):
            found = plan(kernels, growth, cost, **choice)
            taken = [growth_of(kernel, one, "f32") if one.winograd else 0
                     for kernel, one in zip(kernels, found, strict=True)]
            assert [bool(bytes) for bytes in taken] == bound and sum(taken) <= growth


@pytest.mark.parametrize("gain, taken", [(GAIN_MIN / 2, False), (2 * GAIN_MIN, True)])
def test_another_algorithm_has_to_be_far_better(gain: float, taken: bool) -> None:
    (kernel,) = convolutions((64, 40))
    for wanted in (0, 2):
        (found,) = plan([kernel], 1 << 30,
                        lambda k, s, w=wanted: 1.0 - gain if s.winograd_size == w else 1.0)
        assert (found.winograd_size == wanted) == taken


def test_every_algorithm_that_is_offered_can_be_made() -> None:
    (kernel,) = convolutions((32, 40))
    found = algorithms(kernel, CPU, "f32", WINOGRAD)
    assert {(s.winograd_size, s.winograd and s.winograd.transformed) for s in found} == {
        (0, None), *product((2, 4), TRANSFORMED)}
    for schedule in found:
        schedule.check(CPU)
        assert lower(kernel, schedule, level(LEVELS[-1])).steps
    assert {s.winograd_size for s in algorithms(kernel, CPU, "f32", 2)} == {0, 2}
    assert algorithms(kernel, CPU, "f32", 0) == []


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_results_are_the_same_for_any_number_of_threads(precision: str) -> None:
    """A decoder of 128 x 128 pixels has layers for which another algorithm serves more threads."""
    shipped = VaeConfig(16, (16, 32, 64, 64), 1, 4, norm_groups=8)
    graph = rewrite(vae_decoder_graph(shipped, 1, 16, 16))
    kernels = [region.kernel for region in partition(graph).regions]
    device = machine.device("ryzen_7_7700x")

    def found(threads: int, reference: bool) -> list:
        def cost(threads: int):
            return Objective.on(device, threads, "latency").cost

        few = limits(level("avx512"), threads, 48 << 10, 1 << 20)
        return [_results(kernel, schedule) for kernel, schedule in zip(kernels, planned(
            kernels, few, precision, 1 << 20, [WINOGRAD] * len(kernels), cost(threads),
            cost(REFERENCE_THREADS) if reference else None), strict=True)]

    assert found(1, False) != found(16, False)
    assert found(1, True) == found(3, True) == found(16, True) == found(REFERENCE_THREADS, False)
