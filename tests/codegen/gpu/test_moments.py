"""Statistics of normalisations as group programs, against the interpreter of kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from group_kernels import LIMITS, SUBGROUPS, check_graph, check_kernel, execute, regions
from hypothesis import given, note
from hypothesis import strategies as st

from smalti.codegen.gpu.lower import lower
from smalti.errors import IllegalSchedule
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupMoments

EXAMPLES = 30


def group(shape: tuple[int, ...], groups: int) -> Graph:
    g = Graph("group")
    weights = (g.parameter(n, (shape[1],)) for n in "sb")
    g.output("y", g.apply("group_normalization", g.input("x", shape), *weights,
                          num_groups=groups))
    return g


def layer(shape: tuple[int, ...], axis: int = -1) -> Graph:
    g = Graph("layer")
    weights = (g.parameter(n, shape[axis:]) for n in "sb")
    g.output("y", g.apply("layer_normalization", g.input("x", shape), *weights, axis=axis))
    return g


def rms(shape: tuple[int, ...], axis: int = -1) -> Graph:
    g = Graph("rms")
    g.output("y", g.apply("rms_normalization", g.input("x", shape),
                          g.parameter("s", shape[axis:]), axis=axis))
    return g


def kernel_of(graph: Graph) -> Kernel:
    (kernel,) = [p.kernel for p in regions(graph) if "scale" in p.kernel.form]
    return kernel


GROUPS = [((2, 64, 8, 8), 32), ((2, 40, 5, 7), 4), ((1, 1, 3, 3), 1), ((3, 7, 2, 5), 7),
          ((1, 20, 1, 2), 10), ((2, 33, 4, 4), 1), ((1, 120, 9, 9), 4), ((1, 320, 4, 4), 32),
          ((2, 8, 5), 2), ((1, 6, 2, 3, 4), 3), ((1, 4, 64, 64), 2)]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape, groups", GROUPS, ids=str)
def test_group_normalization(shape: tuple[int, ...], groups: int, dtype: str) -> None:
    check_graph(group(shape, groups), "group_scale_shift", dtype)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape, axis", [
    ((2, 9, 40), -1), ((1, 77, 768), -1), ((1, 1), -1), ((5, 3), -1), ((70, 16), -1),
    ((3, 7, 20), 1), ((2, 3, 4, 5), 1), ((65,), 0), ((2, 33), 0)], ids=str)
def test_layer_normalization(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    check_graph(layer(shape, axis), "layer_scale_shift", dtype)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("shape, axis", [
    ((5,), -1), ((1, 1), -1), ((77, 48), -1), ((2, 9, 5, 7), -1), ((3, 4, 6, 5), 2),
    ((2, 3, 2, 3, 40), -1)], ids=str)
def test_rms_normalization(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    check_graph(rms(shape, axis), "rms_scale", dtype)


def test_heads_are_read_where_they_lie() -> None:
    g = Graph("heads")
    part = g.apply("slice", g.input("x", (2, 9, 60)), axis=2, start=20, end=40)
    g.output("y", g.apply("rms_normalization", part.reshape(2, 9, 4, 5), g.parameter("s", (5,))))
    check_graph(g, "rms_scale")


def schedules() -> st.SearchStrategy[GroupMoments]:
    return st.builds(GroupMoments, st.just(64), st.sampled_from([1, 2, 8, 32, 64]),
                     st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3, 7]),
                     st.sampled_from([0, *SUBGROUPS]))


@examples(EXAMPLES)
@given(st.integers(1, 2), st.sampled_from([1, 2, 3, 10, 32]), st.sampled_from([1, 2, 3, 4, 12, 17]),
       st.integers(3, 9), st.integers(3, 9), schedules(), st.sampled_from(["f32", "f16"]))
def test_random_groups_under_any_schedule(batch: int, groups: int, each: int, height: int,
                                          width: int, schedule: GroupMoments, dtype: str) -> None:
    kernel = kernel_of(group((batch, groups * each, height, width), groups))
    extent = each if schedule.parts == 1 else groups * each
    lanes = schedule.lanes if extent % schedule.lanes == 0 else 1
    note(f"{schedule} {dtype}\n{kernel}")
    limits = replace(LIMITS, subgroup_choice=True, subgroup_operations=True)
    check_kernel(kernel, replace(schedule, lanes=lanes), limits=limits)


@examples(EXAMPLES)
@given(st.integers(1, 70), st.integers(8, 140), schedules(), st.booleans())
def test_random_rows_under_any_schedule(rows: int, channels: int, schedule: GroupMoments,
                                        squares: bool) -> None:
    kernel = kernel_of((rms if squares else layer)((rows, channels)))
    lanes = schedule.lanes if channels % schedule.lanes == 0 else 1
    limits = replace(LIMITS, subgroup_choice=True, subgroup_operations=True)
    check_kernel(kernel, replace(schedule, lanes=lanes), limits=limits)


@pytest.mark.parametrize("shape, groups, parts", [((1, 32, 8, 8), 4, 1), ((1, 32, 64, 64), 4, 16)])
def test_large_groups_are_made_in_parts(shape: tuple[int, ...], groups: int, parts: int) -> None:
    schedule = choose_group(kernel_of(group(shape, groups)), LIMITS)
    assert schedule.parts == parts


@pytest.mark.parametrize("parts", [1, 3])
def test_a_large_mean_costs_no_precision(parts: int) -> None:
    for graph in (group((1, 32, 16, 16), 4), layer((9, 200)), rms((9, 200))):
        kernel = kernel_of(graph)
        x = np.random.default_rng(0).standard_normal(kernel.buffer("x").shape) + 1000
        schedule = GroupMoments(64, 8, 4, parts if kernel.form == "group_scale_shift" else 1)
        arrays = {"x": x, **{n: np.ones(32) for n in ("gamma", "beta")}}
        found, _ = execute(kernel, schedule, arrays)
        if kernel.form == "group_scale_shift":
            scale, shift = found["scale"][..., None], found["shift"][..., None]
            y = (x * scale + shift - 1).reshape(4, -1)
        elif kernel.form == "layer_scale_shift":
            y = x * found["scale"][:, None] + found["shift"][:, None]
        else:
            y = (x * found["scale"][..., None]).reshape(9, -1)
            assert np.abs(np.mean(y ** 2, axis=-1) - 1).max() < 1e-6
            continue
        # x itself has only 13 bits behind the point here
        assert np.abs(y.mean(axis=-1)).max() < 3e-4 and np.abs(y.std(axis=-1) - 1).max() < 1e-5


def test_a_constant_image_gives_the_bias() -> None:
    kernel = kernel_of(group((1, 8, 4, 4), 2))
    beta = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    for parts in (1, 2):
        found, _ = execute(kernel, GroupMoments(32, 4, 1, parts), {
            "x": np.full((1, 8, 16), 7.25), "gamma": np.ones(8), "beta": beta})
        np.testing.assert_allclose(7.25 * found["scale"] + found["shift"], beta[None], atol=1e-4)


def test_nan_stays_in_its_group_and_row() -> None:
    for graph, schedule, bad in (
            (group((2, 6, 3, 3), 3), GroupMoments(32, 4), [(1, 2), (1, 3)]),
            (group((2, 6, 3, 3), 3), GroupMoments(32, 4, 1, 2), [(1, 2), (1, 3)]),
            (layer((5, 6)), GroupMoments(32, 4), [(1,)])):
        kernel = kernel_of(graph)
        x = np.random.default_rng(0).standard_normal(kernel.buffer("x").shape)
        x[(1, 3, 8) if x.ndim == 3 else (1, 3)] = np.nan
        found, _ = execute(kernel, schedule, {"x": x})
        assert list(map(tuple, np.argwhere(np.isnan(found["scale"])))) == bad


@pytest.mark.parametrize("schedule, why", [
    (GroupMoments(64, 8, 1, 10), "9 pixels in 10 parts"), (GroupMoments(64, 8, 1, 0), "0 parts"),
    (GroupMoments(64, 8, 4), "4 lanes along an axis of 3"),
    (GroupMoments(64, 8, 4, 2), "4 lanes along 6 channels"),
    (GroupMoments(64, 128), "128 of 64 invocations")])
def test_impossible_schedules_are_refused(schedule: GroupMoments, why: str) -> None:
    with pytest.raises(IllegalSchedule, match=why):
        lower(kernel_of(group((1, 6, 3, 3), 2)), schedule, LIMITS)
