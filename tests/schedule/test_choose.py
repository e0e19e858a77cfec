"""The first schedule: legal for any shape and any CPU, and frozen data."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace

import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import LEVELS
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.schedule import (
    AttentionSchedule,
    ContractionSchedule,
    DepthwiseSchedule,
    Limits,
    MapSchedule,
    MomentsSchedule,
    ReductionSchedule,
    choose,
)
from smalti.schedule.choose import (
    LATE,
    NARROW_LANES,
    STAGE_PANELS,
    TILE_FLOPS_MIN,
    micro_tile,
    panel_block,
    pixel_tile,
)
from smalti.schedule.merge import contraction_extents, map_axes
from smalti.schedule.schedule import TILE, Direct, InPlace, Planar
from smalti.schedule.winograd import even

EXAMPLES = 150
CPUS = st.builds(
    lambda name, threads, l1, l2: limits(LEVELS[name], threads, l1 << 10, l2 << 10),
    st.sampled_from(list(LEVELS)), st.sampled_from([1, 2, 3, 16, 128]),
    st.sampled_from([1, 16, 32, 48]), st.sampled_from([1, 16, 256, 512, 2048]))
EXTENTS = st.one_of(st.integers(1, 70), st.sampled_from([128, 160, 320, 509, 1280, 2560, 4096]))


def kernel_of(build) -> Kernel:
    g = Graph("one")
    g.output("y", build(g))
    return partition(g).regions[0].kernel


@examples(EXAMPLES)
@given(CPUS, st.integers(1, 3), EXTENTS, EXTENTS, st.integers(1, 100), st.integers(1, 100),
       st.sampled_from([1, 3, 5]), st.integers(1, 2), st.sampled_from(["f32", "bf16"]))
@example(limits(LEVELS["neon"], 1, 256 << 10, 1 << 20), 1, 68, 64, 64, 64, 3, 1, "bf16")
@example(limits(LEVELS["neon"], 1, 1 << 10, 1 << 10), 1, 68, 1, 2, 32, 3, 1, "bf16")
def test_convolutions(cpu: Limits, batch: int, channels: int, out: int, height: int, width: int,
                      window: int, stride: int, precision: str) -> None:
    kernel = kernel_of(lambda g: g.apply(
        "conv", g.input("x", (batch, channels, height, width)),
        g.parameter("w", (out, channels, window, window)), pads=(window // 2,) * 4,
        strides=(stride, stride)))
    schedule = choose(kernel, cpu, precision)
    schedule.check(cpu)
    e = contraction_extents(kernel)
    assert isinstance(schedule, ContractionSchedule)
    planar = schedule.algorithm == Planar()
    pairs = precision == "bf16" and cpu.pairs and not schedule.winograd
    assert schedule.dtype == ("bf16" if pairs and not planar else "f32")
    transformed = schedule.winograd and schedule.winograd.transformed != TILE
    assert schedule.weights == ("f32" if transformed or planar else precision)
    assert e.b % schedule.tile_b == 0
    past = max(1, schedule.winograd_size)  # the last row of blocks may reach behind the image
    assert 1 <= schedule.tile_y < e.y + past and 1 <= schedule.tile_x < e.x + past
    assert 1 <= schedule.panels <= -(-e.o // (schedule.vectors * cpu.lanes))
    chunks = -(-e.c // schedule.chunk)
    assert chunks == 1 or e.c % schedule.chunk == 0
    assert chunks > 1 or schedule.chunk - e.c < 8
    assert choose(kernel, cpu, precision) == schedule


@examples(EXAMPLES)
@given(CPUS, EXTENTS, EXTENTS, EXTENTS)
def test_matrix_products(cpu: Limits, rows: int, channels: int, out: int) -> None:
    kernel = kernel_of(lambda g: g.apply("mat_mul", g.input("x", (rows, channels)),
                                         g.parameter("w", (channels, out))))
    schedule = choose(kernel, cpu)
    schedule.check(cpu)
    assert (schedule.tile_b, schedule.tile_y, schedule.winograd_size) == (1, 1, 0)
    assert 1 <= schedule.rows <= max(1, rows) and schedule.tile_x <= rows
    width = 4 * schedule.vectors * cpu.lanes
    sums = schedule.tile_x * schedule.panels * width
    needed = schedule.panels - 2  # blocks of panels are made even, which may be one more
    share = 2 if cpu.lanes == NARROW_LANES else 4
    assert sums <= max(cpu.l2_bytes // share, schedule.tile_x * width) or (
        2 * schedule.tile_x * needed * width // 4 * channels < TILE_FLOPS_MIN)


def test_a_tile_has_as_many_channels_whatever_the_width_of_panels() -> None:
    """So a matrix is staged as often: with AVX2 and the caches of Zen 3, with AVX-512 and twice the
    second-level cache."""
    kernel = kernel_of(lambda g: g.apply("mat_mul", g.input("x", (1024, 2560)),
                                         g.parameter("w", (2560, 8192))))
    narrow, wide = (limits(LEVELS[name], 2, 32 << 10, kib << 10)
                    for name, kib in (("avx2", 512), ("avx512", 1024)))
    found = [choose(kernel, cpu) for cpu in (narrow, wide)]
    assert [s.panels * s.vectors * cpu.lanes
            for s, cpu in zip(found, (narrow, wide))] == [512, 512]


@given(st.integers(1, 40), st.integers(1, 400), st.integers(1, 64), st.integers(1, 16))
def test_blocks_of_panels_keep_the_threads_busy(tiles: int, panels: int, most: int,
                                                threads: int) -> None:
    """The products of the busiest thread are at most what staging for each panel would cost."""
    block = panel_block(tiles, panels, most, threads)
    assert 1 <= block <= min(panels, most)
    rounds = -(-tiles * -(-panels // block) // threads)
    single = -(-tiles * panels // threads)
    assert rounds * block <= (1 + STAGE_PANELS) * (single + LATE)


@examples(EXAMPLES)
@given(CPUS, EXTENTS, st.integers(1, 100), st.integers(1, 100), st.sampled_from([1, 3, 5]))
def test_depthwise(cpu: Limits, channels: int, height: int, width: int, window: int) -> None:
    kernel = kernel_of(lambda g: g.apply(
        "conv", g.input("x", (1, channels + 4, height, width)), g.parameter(
            "w", (channels + 4, 1, window, window)), pads=(window // 2,) * 4, group=channels + 4))
    schedule = choose(kernel, cpu)
    schedule.check(cpu)
    assert isinstance(schedule, DepthwiseSchedule) and 1 <= schedule.tile_y <= height
    assert 1 <= schedule.pixels <= width
    assert 1 <= schedule.vectors <= max(1, (channels + 4) // cpu.lanes)


@examples(EXAMPLES)
@given(CPUS, EXTENTS, EXTENTS, st.integers(0, 1))
def test_reductions(cpu: Limits, rows: int, columns: int, axis: int) -> None:
    kernel = kernel_of(lambda g: g.apply("reduce_sum", g.input("x", (rows, columns)),
                                         axes=(axis,)))
    schedule = choose(kernel, cpu)
    assert isinstance(schedule, ReductionSchedule)
    assert 1 <= schedule.grain <= max(rows, columns)


def pointwise(pixels: int, channels: int, out: int) -> Kernel:
    return kernel_of(lambda g: g.apply("mat_mul", g.input("x", (pixels, channels)),
                                       g.parameter("w", (channels, out))))


@pytest.mark.parametrize("threads", [1, 2, 3, 6])
@pytest.mark.parametrize("pixels, channels, out", [
    (196, 576, 96), (49, 960, 160), (49, 320, 1280), (784, 144, 32), (1, 1280, 1000)])
def test_few_tiles_are_shared_evenly(pixels: int, channels: int, out: int, threads: int) -> None:
    """The busiest thread has at most a third more than its share, where there is enough."""
    cpu = limits(LEVELS["avx512"], threads, 48 << 10, 1 << 20)
    schedule = choose(pointwise(pixels, channels, out), cpu)
    panels = -(-out // (schedule.vectors * cpu.lanes))
    tiles = -(-pixels // schedule.tile_x) * -(-panels // schedule.panels)
    work = schedule.tile_x * schedule.panels
    assert -(-tiles // threads) * work * threads <= 4 / 3 * pixels * panels


@pytest.mark.parametrize("threads, out, group, chunk", [
    (2, 640, 2, 128), (4, 640, 1, 128), (20, 1280, 2, 128), (2, 32, 1, 128)])
def test_winograd_by_tile_takes_two_panels_where_no_thread_waits(threads: int, out: int,
                                                                 group: int, chunk: int) -> None:
    kernel = kernel_of(lambda g: g.apply(
        "conv", g.input("x", (2, 1280, 32, 32)), g.parameter("w", (out, 1280, 3, 3)),
        pads=(1, 1, 1, 1)))
    bounds = limits(LEVELS["avx512"], threads, 48 << 10, 1 << 20)
    found = choose(kernel, bounds, growth_max=0)
    assert found.winograd.transformed == TILE and found.winograd.shared
    taken = found.winograd.group
    assert (taken, found.chunk, found.panels % taken) == (group, chunk, 0)


def test_what_can_be_read_in_place_is_not_staged() -> None:
    cpu = limits(LEVELS["avx512"], 2, 48 << 10, 1 << 20)
    def algorithm(depth: int):
        return choose(pointwise(196, depth, 576), cpu).algorithm

    assert algorithm(96) == InPlace()
    assert algorithm(1024) == Direct(), "14 rows of 4096 bytes share a cache set"
    assert algorithm(9000) == Direct(), "a panel of weights is larger than caches"


def test_the_planes_of_a_picture_are_staged_as_they_are() -> None:
    cpu = limits(LEVELS["avx512"], 2, 48 << 10, 1 << 20)

    def stem(channels: int) -> ContractionSchedule:
        return choose(kernel_of(lambda g: g.apply(
            "conv", g.input("x", (1, channels, 224, 224)), g.parameter("w", (32, channels, 3, 3)),
            pads=(0, 0, 1, 1), strides=(2, 2))), cpu)

    assert (stem(3).algorithm, stem(3).tile_x) == (Planar(), 112)
    assert stem(16).algorithm != Planar()


@examples(EXAMPLES)
@given(CPUS, st.lists(st.sampled_from([1, 2, 3, 7, 64, 1000]), min_size=0, max_size=4))
def test_maps(cpu: Limits, shape: list[int]) -> None:
    kernel = kernel_of(lambda g: g.input("x", tuple(shape)) + g.input("y", tuple(shape[-1:])))
    schedule = choose(kernel, cpu)
    axes, _ = map_axes(kernel)
    rows = axes[-1 - schedule.inner][1] if len(axes) > schedule.inner else 1
    assert isinstance(schedule, MapSchedule) and 1 <= schedule.grain <= rows


@examples(EXAMPLES)
@given(CPUS, EXTENTS, EXTENTS, st.sampled_from([1, 7, 40, 64, 160]))
def test_attentions(cpu: Limits, queries: int, keys: int, depth: int) -> None:
    def build(g: Graph):
        k = g.input("k", (1, keys, 2 * depth))
        return g.apply("attention", g.input("q", (1, queries, 2 * depth)), k, k, num_heads=2)

    schedule = choose(kernel_of(build), cpu)
    schedule.check(cpu)
    assert isinstance(schedule, AttentionSchedule) and 1 <= schedule.keys <= keys
    assert schedule.groups == 1 or (schedule.groups - 1) * schedule.vectors * cpu.lanes < queries


@pytest.mark.parametrize("depth, l2_bytes, causal, keys", [
    (128, 1 << 20, False, 216), (128, 256 << 10, False, 56), (128, 1 << 20, True, 28),
    (40, 1 << 20, False, 68)])
def test_keys_of_a_block(depth: int, l2_bytes: int, causal: bool, keys: int) -> None:
    """Where the first-level cache holds few, as many as a part of the second does, but where those
    behind a query are left out."""
    kernel = kernel_of(lambda g: g.apply(
        "attention", *(g.input(name, (1, 1280, 2 * depth)) for name in "qkv"), num_heads=2,
        is_causal=int(causal)))
    cpu = Limits(16, 32, l1_bytes=32 << 10, l2_bytes=l2_bytes)
    schedule = choose(kernel, cpu)
    assert isinstance(schedule, AttentionSchedule) and schedule.keys == keys


@examples(EXAMPLES)
@given(CPUS, st.integers(1, 70), st.integers(1, 70), st.integers(1, 8))
def test_statistics(cpu: Limits, height: int, width: int, groups: int) -> None:
    group = kernel_of(lambda g: g.apply(
        "group_normalization", g.input("x", (1, 8 * groups, height, width)),
        g.parameter("s", (8 * groups,)), g.parameter("b", (8 * groups,)), num_groups=groups))
    schedule = choose(group, cpu)
    assert isinstance(schedule, MomentsSchedule) and height * width % schedule.parts == 0
    layer = kernel_of(lambda g: g.apply(
        "layer_normalization", g.input("x", (height, width)), g.parameter("s", (width,)),
        g.parameter("b", (width,))))
    assert 1 <= choose(layer, cpu).grain <= height
    heads = kernel_of(lambda g: g.apply(
        "rms_normalization", g.input("x", (2, height, groups, width)), g.parameter("s", (width,))))
    assert 1 <= choose(heads, cpu).grain <= height


CONTRACTION = ContractionSchedule(1, 1, 14, 1, 8, 14, 2)
PAIRS = replace(CONTRACTION, dtype="bf16", weights="bf16")
ATTENTION = AttentionSchedule(2, 56, 14)


@pytest.mark.parametrize("schedule, cpu, why", [
    (CONTRACTION, "avx2", "14 x 2 accumulators need 31 vector registers, there are 16"),
    (replace(CONTRACTION, rows=16), "avx512", "need 35 vector registers, there are 32"),
    (replace(CONTRACTION, chunk=6), "avx512", "6 channels is no multiple of 4"),
    (replace(PAIRS, chunk=12), "avx512_bf16", "12 channels is no multiple of 8"),
    (PAIRS, "avx512", "multiplies pairs"),
    (replace(PAIRS, weights="f32"), "avx512_bf16", "need bf16 weights"),
    (ATTENTION, "avx2", "14 x 2 accumulators need 31 vector registers, there are 16"),
    (replace(ATTENTION, vectors=4), "avx512", "need 61 vector registers, there are 32"),
])
def test_what_a_cpu_cannot_run_is_illegal(schedule, cpu: str, why: str) -> None:
    with pytest.raises(IllegalSchedule, match=why):
        schedule.check(limits(LEVELS[cpu]))


@pytest.mark.parametrize("schedule, cpu", [
    (CONTRACTION, "avx512"), (replace(CONTRACTION, rows=6), "avx2"),
    (PAIRS, "avx512_bf16"), (replace(PAIRS, dtype="f32"), "avx512"), (ATTENTION, "avx512"),
    (replace(ATTENTION, rows=6), "avx2")])
def test_what_a_cpu_can_run_is_legal(schedule, cpu: str) -> None:
    assert schedule.check(limits(LEVELS[cpu])) is None


def test_schedules_are_frozen_hashable_and_print_as_they_are_written() -> None:
    for schedule in (CONTRACTION, ATTENTION, MapSchedule(4), MomentsSchedule(8, 1),
                     DepthwiseSchedule(7, 2, 14), ReductionSchedule(1, 4)):
        assert eval(str(schedule)) == schedule
        assert len({schedule, replace(schedule)}) == 1
        with pytest.raises(FrozenInstanceError):
            setattr(schedule, fields(schedule)[0].name, 9)


@examples(EXAMPLES)
@given(st.integers(1, 5000), st.integers(1, 300))
def test_even_tiles(extent: int, most: int) -> None:
    tile = even(extent, most)
    assert 1 <= tile <= min(extent, most)
    assert -(-extent // tile) == -(-extent // most)


@examples(EXAMPLES)
@given(st.integers(1, 4), st.integers(1, 600), st.integers(1, 600), st.integers(1, 100), CPUS)
def test_tiles_hold_a_bounded_number_of_pixels(b: int, y: int, x: int, channels: int,
                                               cpu: Limits) -> None:
    tile_x, tile_y, tile_b = pixel_tile(b, y, x)
    assert tile_x <= x and tile_y <= y and b % tile_b == 0
    assert tile_x * tile_y * tile_b <= 256
    vectors, rows = micro_tile(b * y * x, channels, cpu)
    assert vectors * rows + vectors + 1 <= cpu.vectors
    assert vectors == 1 or channels > cpu.lanes
