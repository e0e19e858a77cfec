"""Convolutions and matrix products as group programs, against the interpreter of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from contraction_graphs import CONV_CASES, CONVS, PRODUCTS, Conv, fitting, linear
from examples import examples
from group_kernels import execute, relative_error
from hypothesis import given, note
from hypothesis import strategies as st

from smalti.codegen.gpu.form import (
    Barrier,
    GroupLoad,
    GroupProgram,
    Loop,
    Op,
    Statement,
    expressions,
)
from smalti.codegen.gpu.lower import lower
from smalti.codegen.gpu.ranges import Ranges
from smalti.codegen.gpu.weight_layout import Packed
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.fuse.precision import held, stored_in
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.runtime.gpu.interface import Gpu
from smalti.schedule import GroupLimits, choose_group
from smalti.schedule.group import GroupContraction, MatrixShape
from smalti.schedule.space_group import schedules

SMALL = GroupContraction(16, 16, 16, 4, 4)
MATRIX = replace(SMALL, block_m=16, block_n=16, pad=8, dtype="f16", weights="f16",
                 matrix="16x16x16", subgroup=32)
SCHEDULES = {
    "plain": SMALL,
    "ahead": replace(SMALL, tile_m=8, block_m=2, block_n=8, tile_k=8, ahead=True),
    "two buffers": replace(SMALL, ahead=True, buffers=2),
    "ways": replace(SMALL, ways=4),
    "split": replace(SMALL, tile_k=4, split=2),
    "direct": replace(SMALL, tile_m=2, block_m=2, ways=2, direct=True),
    "prepared": replace(SMALL, prepared=True),
    "uneven": replace(SMALL, tile_m=12, tile_n=24, tile_k=12, pad=0),
    "halves": replace(SMALL, dtype="f16", weights="f16"),
    "matrices": MATRIX,
    "small matrices": replace(MATRIX, tile_m=16, tile_n=32, block_m=8, matrix="8x8x8", subgroup=8,
                              ahead=True),
    "spare invocations": replace(MATRIX, tile_m=40, tile_k=32, block_m=8, block_n=8, matrix="8x8x8",
                                 subgroup=8, ahead=True),
    "placed matrices": replace(MATRIX, tile_m=16, tile_n=8, block_m=8, block_n=8, matrix="8x8x8",
                               subgroup=8, direct=True),
    "placed ahead": replace(MATRIX, tile_m=8, tile_n=32, tile_k=32, block_m=8, matrix="8x16x16",
                            subgroup=16, ahead=True, direct=True),
    "wide matrices": replace(MATRIX, tile_n=32, block_m=8, block_n=32, matrix="8x16x16",
                             subgroup=16, ahead=True, buffers=2),
}
FIRST = ("ahead", "split", "direct", "prepared", "halves", "matrices", "placed matrices",
         "wide matrices")
"""Those with which every run of the tests tries products; the sweep tries all."""
EACH_SCHEDULE = pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in FIRST else pytest.mark.sweep) for name in SCHEDULES])
SHAPES = tuple(MatrixShape(*shape, "f16", "f32")
               for shape in ((8, 8, 8), (16, 16, 16), (8, 16, 16)))
LIMITS = GroupLimits(shared_bytes=48 << 10, invocations=1024, bindings=16, f16=True, bf16=True,
                     subgroup_choice=True, matrices=SHAPES)
DTYPES = ("f32", "f16", "bf16")


def contractions(graph: Graph, values: str = "f32", weights: str = "f32") -> list[Kernel]:
    """The contractions of a graph; `values` and `weights` say how those are stored."""
    found = partition(graph)
    if values != "f32":
        seen = {view.storage for region in found.regions for view in region.views.values()}
        found = stored_in(found, {s: replace(s, dtype=values) for s in seen
                                  if s.dtype == "f32" and s.kind in ("arena", "input")})
    if weights != "f32":
        found = held(found, dict.fromkeys(graph.parameters, weights), elements_min=0)
    return [p.kernel for p in found.regions if p.kernel.form == "contraction"]


def weight_of(kernel: Kernel) -> np.ndarray:
    """Seeded values for the weight, so small that products keep a size of one."""
    shape = kernel.buffer("weight").shape
    return np.random.default_rng(1).standard_normal(shape) / np.sqrt(np.prod(shape[-3:]))


def check(kernel: Kernel, schedule: GroupContraction, limits: GroupLimits = LIMITS,
          gpu: Gpu | None = None) -> None:
    """Assert that a schedule of a kernel computes what the kernel means."""
    found, means = execute(kernel, schedule, {"weight": weight_of(kernel)}, limits,
                           schedule.subgroup or 32, gpu)
    narrow = {schedule.dtype, schedule.weights, *(b.dtype for b in kernel.buffers)} & {
        "f16", "bf16"}
    allowed = 1e-5 if not narrow else 2e-3 if narrow == {"f16"} else 1e-2
    for name, expected in means.items():
        error = relative_error(found[name], expected)
        assert error < allowed, f"{name} is off by {error:.3g} with {schedule}\n{kernel}"


def fits(kernel: Kernel, schedule: GroupContraction, limits: GroupLimits = LIMITS) -> bool:
    """Whether a kernel can have a schedule of the tests."""
    try:
        lower(kernel, schedule, limits)
    except IllegalSchedule as error:
        known = "too few", "only packed", "words of two halves", "behind the last"
        assert limits != LIMITS or any(reason in str(error) for reason in known)
        return False
    return True


@EACH_SCHEDULE
@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_convolutions(name: str, half: int) -> None:
    """Each schedule with every third convolution, so that all are met by four of them: half of
    these in each run, the others, which take most of the time, in the sweep. Where a schedule fits
    none of its third, all are tried."""
    cases = [case for case in CONVS if case.channels < 1000]
    checked = 0
    for some in (cases[list(SCHEDULES).index(name) % 3::3][half::2], cases):
        for case in some:
            for kernel in contractions(case.graph()):
                if fits(kernel, SCHEDULES[name]):
                    check(kernel, SCHEDULES[name])
                    checked += 1
        if checked:
            break
    assert checked


@EACH_SCHEDULE
def test_linear_with_its_neighbours(name: str) -> None:
    for behind in ("normalized", "gathered", "resized", "geglu", "embedded", "residual"):
        for kernel in contractions(linear((2, 9), 24, 40, behind)):
            if fits(kernel, SCHEDULES[name]):
                check(kernel, SCHEDULES[name])


def test_who_brings_nothing_reads_no_row_number() -> None:
    """Half of the invocations of a work-group are behind its one row, and the last row is too."""
    (kernel,) = contractions(linear((1, 2), 50, 2, "gathered"))
    check(kernel, GroupContraction(1, 64, 128, 1, 4, ways=8, direct=True))


@pytest.mark.parametrize("name", ["plain", "ahead", "split", "uneven", "small matrices"])
@pytest.mark.parametrize("parts", [2, 3])
def test_gated_products(name: str, parts: int) -> None:
    """Slices of the channels that meet in the epilogue, in one kernel, at odd extents."""
    for rows, channels, width in ((5, 40, 7), (37, 24, 20)):
        g = Graph("gated")
        both = g.apply("mat_mul", g.input("x", (1, rows, channels)),
                       g.parameter("w", (channels, parts * width)))
        first, *gates = (g.apply("slice", both, axis=2, start=k * width, end=(k + 1) * width)
                         for k in range(parts))
        for gate in gates:
            first = first * g.apply("gelu", gate)
        g.output("y", first)
        (kernel,) = contractions(g)
        check(kernel, SCHEDULES[name])


@pytest.mark.parametrize("name", ["plain", "ahead", "ways", "split", "uneven", "matrices",
                                  "wide matrices"])
def test_weights_that_are_computed(name: str) -> None:
    """Values as weights, one for all rows, or one for each row or image."""
    for shapes in PRODUCTS[:1] + PRODUCTS[2:]:
        g = Graph("product")
        y = g.apply("mat_mul", *(g.input(x, shape) for x, shape in zip("ab", shapes, strict=True)))
        g.output("y", g.apply("relu", y + g.input("r", y.shape)))
        for kernel in contractions(g):
            if fits(kernel, SCHEDULES[name]):
                check(kernel, SCHEDULES[name])
    g = Graph("heads")
    q, k = (g.input(x, (2, t, 3, 24)) for x, t in zip("qk", (33, 20), strict=True))
    g.output("y", g.apply("mat_mul", q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1)))
    w = g.apply("silu", g.input("w", (24, 4, 3, 3)))
    x = g.input("x", (1, 4, 10, 10))
    g.output("conv", g.apply("conv", x, w, pads=(1, 1, 1, 1)))
    for kernel in contractions(g):
        check(kernel, SCHEDULES[name])


@pytest.mark.parametrize(("tile", "block"), [
    ((32, 32), (16, 16)), ((64, 16), (16, 16)), ((16, 64), (16, 64)), ((48, 48), (16, 48))])
def test_who_brings_what_of_a_short_depth(tile: tuple[int, int], block: tuple[int, int]) -> None:
    """All of it in one chunk: whole subgroups a row, several turns a row, and neither."""
    (kernel,) = contractions(Conv(4, 8, 10, 72, behind="residual").graph())
    short = replace(MATRIX, tile_m=tile[0], tile_n=tile[1], tile_k=48, block_m=block[0],
                    block_n=block[1])
    for schedule in (short, replace(short, ahead=True)):
        check(kernel, schedule)


def test_a_short_depth_is_one_chunk() -> None:
    """Of a window over the channels of a latent, whose loop drivers would write out."""
    (kernel,) = contractions(Conv(4, 32, 32, 320).graph())
    schedule = choose_group(kernel, LIMITS, "f16")
    assert schedule.matrix and schedule.tile_k == 48


@pytest.mark.sampled
@pytest.mark.parametrize("values", DTYPES)
@pytest.mark.parametrize("weights", DTYPES)
def test_values_and_weights_of_every_dtype(values: str, weights: str) -> None:
    kept = {"f32": ("plain",), "f16": ("plain", "matrices"), "bf16": ("plain",)}
    case = Conv(12, 6, 7, 20, before="normalized", behind="residual")
    for kernel in contractions(case.graph(), values, weights):
        for name in kept[weights]:
            check(kernel, replace(SCHEDULES[name], weights=weights))
    for kernel in contractions(linear((33,), 24, 40), values, weights):
        for name in ("two buffers", "direct"):
            check(kernel, replace(SCHEDULES[name], weights=weights))


def test_images_of_planes_are_read_and_written_along_their_rows() -> None:
    """Channels-first: neighbouring invocations take neighbouring pixels, not channels."""
    (kernel,) = contractions(Conv(8, 6, 20, 12).graph())
    turned = {"x0": (960, 120, 20, 1), "out": (1440, 20, 1, 120)}
    assert kernel.buffer("x0").shape == (1, 8, 6, 20)
    kernel = replace(kernel, buffers=tuple(
        replace(b, strides=turned.get(b.name, b.strides)) for b in kernel.buffers))
    for name in ("plain", "split", "matrices", "direct"):
        check(kernel, SCHEDULES[name])


def test_contractions_on_a_device(vulkan: Gpu) -> None:
    """Every schedule that the driver here can run, in SPIR-V."""
    cases = [Conv(12, 6, 7, 20, before="normalized", behind="residual").graph(),
             linear((2,), 40, 33), linear((2, 9), 24, 40, "geglu")]
    ran = set()
    for i, name in enumerate(SCHEDULES):
        for kernel in contractions(cases[0 if name == "direct" else i % 3]):
            if fits(kernel, SCHEDULES[name], vulkan.limits):
                check(kernel, SCHEDULES[name], vulkan.limits, vulkan)
                ran.add(name)
    (kernel,) = contractions(cases[2], "f16", "f16")
    check(kernel, choose_group(kernel, vulkan.limits, "f16"), vulkan.limits, vulkan)
    (kernel,) = contractions(Conv(48, 6, 5, 48, batch=2, before="normalized").graph(), "f16")
    small = SCHEDULES["small matrices"]  # loops over the places of a window, and their chunks
    for schedule in (replace(small, tile_m=40, tile_n=48, tile_k=16),
                     replace(small, tile_m=40, tile_n=48, direct=True),
                     replace(small, tile_m=8, tile_n=48, tile_k=24, direct=True, split=2)):
        if fits(kernel, schedule, vulkan.limits):
            check(kernel, schedule, vulkan.limits, vulkan)
            ran.add("places")
    assert ("places" in ran) == (MatrixShape(8, 8, 8, "f16", "f32") in vulkan.limits.matrices)
    assert {name for name, s in SCHEDULES.items() if not s.matrix and s.dtype == "f32"} <= ran


# ---------------------------------------------------------------------- choosing


DEVICES = {
    "least": GroupLimits(bindings=16),
    "large": LIMITS,
    "matrices": replace(LIMITS, subgroup_min=32, subgroup_max=32, units=132),
}


@pytest.mark.sampled
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", DTYPES)
def test_chosen_schedules_compute_the_same(device: str, precision: str) -> None:
    graphs = [Conv(40, 5, 6, 24, before="normalized", behind="time").graph(),
              linear((1,), 64, 48), linear((20,), 32, 80, "geglu")]
    for kernel in (k for g in graphs for k in contractions(g)):
        check(kernel, choose_group(kernel, DEVICES[device], precision), DEVICES[device])


def test_choices_fit_the_work() -> None:
    """Few rows read weights where they are, few tiles split the depth, halves use matrices."""
    device = DEVICES["matrices"]

    def chosen(graph: Graph, precision: str) -> GroupContraction:
        (kernel,) = contractions(graph)
        return choose_group(kernel, device, precision)

    assert chosen(linear((1,), 1280, 1280), "f32").direct
    deep = chosen(Conv(1280, 8, 8, 1280).graph(), "f32")
    assert deep.split > 1 and not deep.matrix
    wide = chosen(linear((4096,), 4096, 4096), "f16")
    assert wide.matrix == "16x16x16" and wide.split == 1
    assert min(wide.tile_m, wide.tile_n) >= 64


def test_subgroups_are_those_that_matrix_units_want() -> None:
    """Intel's matrices of 8 rows take subgroups of as many as there are columns. A device that
    gives no choice of subgroups multiplies in registers."""
    (kernel,) = contractions(linear((256,), 256, 256))
    intel = replace(LIMITS, subgroup_min=8, subgroup_max=32, matrices=SHAPES[2:])
    found = choose_group(kernel, intel, "f16")
    assert (found.matrix, found.subgroup) == ("8x16x16", 16)
    check(kernel, found, intel)
    assert choose_group(kernel, replace(intel, subgroup_choice=False), "f16").matrix == ""
    amd = replace(LIMITS, subgroup_min=32, subgroup_max=64, matrices=SHAPES[1:2])
    assert choose_group(kernel, amd, "f16").subgroup == 32


@pytest.mark.parametrize("change, why", [
    ({"tile_m": 10}, "do not divide a tile"), ({"tile_k": 6}, "whole vectors of 4"),
    ({"ways": 3}, "whole vectors of 4"), ({"buffers": 2}, "loaded ahead"),
    ({"tile_m": 256, "tile_n": 256}, "invocations"), ({"tile_k": 1024}, "shared memory"),
    ({"dtype": "i8"}, "multiplied with bytes"), ({"dtype": "i8", "weights": "i8"}, "are not"),
    ({"dtype": "i16"}, "no products of i16"), ({"weights": "i8"}, "held as i8"),
    ({"weights": "q3"}, "weights held as q3"),
    ({"weights": "q8"}, "f32 is not held as q8"),
    ({"split": 99}, "too few"), ({"split": 2, "prepared": True}, "not both"),
    ({"matrix": "4x4x4", "dtype": "f16", "pad": 8}, "no 4x4x4 of f16"),
    ({"matrix": "16x16x16", "dtype": "f16"}, "16 bytes"),
    ({"matrix": "16x16x16", "dtype": "f16", "pad": 8}, "do not divide blocks"),
    ({"matrix": "16x16x16", "dtype": "f16", "pad": 8, "block_m": 16, "block_n": 16},
     "subgroups of 0"),
])
def test_impossible_schedules_are_refused(change: dict, why: str) -> None:
    (kernel,) = contractions(Conv(24, 9, 11, 45).graph())
    with pytest.raises(IllegalSchedule, match=why):
        lower(kernel, replace(SMALL, **change), LIMITS)


def test_what_a_device_lacks_is_refused() -> None:
    (kernel,) = contractions(linear((40,), 32, 24))
    for lacking, why in ((replace(LIMITS, f16=False), "compute with f16"),
                         (replace(LIMITS, matrices=()), "no 16x16x16"),
                         (replace(LIMITS, subgroup_choice=False), "cannot be asked for")):
        with pytest.raises(IllegalSchedule, match=why):
            lower(kernel, MATRIX, lacking)


@examples(10)
@given(st.data(), CONV_CASES.map(fitting), st.sampled_from(["f32", "f16"]))
def test_any_schedule_of_the_space_computes_the_same(data: st.DataObject, case: Conv,
                                                     precision: str) -> None:
    for kernel in contractions(case.graph()):
        found = list(schedules(kernel, LIMITS, precision))
        schedule = data.draw(st.sampled_from(found))
        note(f"{schedule}\n{kernel}")
        check(kernel, schedule)


def loops(body: Iterable[Statement]) -> Iterator[Loop]:
    """The loops of a block, outer ones first."""
    for each in body:
        if isinstance(each, Loop):
            yield each
            yield from loops(each.body)


def test_borders_stay_in_the_loop_over_the_chunks_of_a_tap() -> None:
    """In the inner loop nothing is divided, and nothing compared but the number of a chunk with how
    many there are: a place is one sum, of which no part takes a division by the lanes of a vector.
    """
    (kernel,) = contractions(Conv(64, 6, 5, 16, batch=2).graph())
    for schedule in (replace(MATRIX, tile_k=16, ahead=True),
                     replace(MATRIX, tile_k=16, ahead=True, direct=True),
                     replace(MATRIX, tile_m=48, tile_k=16, ahead=True, direct=True)):
        check(kernel, schedule)
        (program,) = lower(kernel, schedule, LIMITS).steps
        taps, chunks = (each for each in loops(program.body) if any(
            isinstance(inner, Barrier) for inner in (*each.body, *(
                part for loop in loops(each.body) for part in loop.body))))

        def asked(loop: Loop) -> list[str]:
            return [each.instruction for each in expressions(loop.body) if isinstance(each, Op)]

        compared = {"less", "max", "div", "rem"}
        assert not compared.intersection(asked(chunks)) and asked(chunks).count("min") == 1
        assert compared.intersection(asked(taps))
        ranges = Ranges(program)
        for each in loads_of(replace(program, body=chunks.body), 2 * 6 * 5 * 64):
            assert ranges.vectors(each.index, 4)[0]


@pytest.mark.parametrize("channels", [32, 64, 48])  # chunks for a place of the window: 1, 2, 1.5
@pytest.mark.parametrize(("height", "times"), [(8, 1), (6, 2)])
def test_statistics_of_an_image_are_loaded_once_for_its_rows(channels: int, height: int,
                                                             times: int) -> None:
    """A tile of 32 rows of pixels is in one image of 8 x 8, and in two of 6 x 8: then each of the
    rows that an invocation brings may be of another image."""
    conv = Conv(channels, height, 8, 16, batch=2, before="normalized")
    (kernel,) = contractions(conv.graph(), "f16")
    schedule = replace(MATRIX, tile_m=32, tile_k=32, ahead=True)
    check(kernel, schedule)
    (program,) = lower(kernel, schedule, LIMITS).steps
    inner = [each for each in loops(program.body) if any(
        isinstance(part, Barrier) for part in each.body)][-1]
    found = replace(program, body=inner.body)
    assert len(loads_of(found, 2 * channels)) == 2 * times


@pytest.mark.parametrize(("channels", "tile_k"), [(128, 128), (256, 128)])
def test_statistics_are_read_by_all_where_only_some_bring_a_vector(channels: int, tile_k: int
                                                                   ) -> None:
    """The second vector of an invocation is of the same image as the first; where both images are
    in a tile, it may be behind the last one."""
    conv = Conv(channels, 4, 4, 80, batch=2, before="normalized")
    (kernel,) = contractions(conv.graph(), "f16")
    for tile_m, times in ((16, 1), (32, 2)):
        schedule = replace(MATRIX, tile_m=tile_m, block_m=tile_m, tile_n=80, tile_k=tile_k,
                           ahead=True, direct=True)
        check(kernel, schedule)
        (program,) = lower(kernel, schedule, LIMITS).steps
        inner = [each for each in loops(program.body) if any(
            isinstance(part, Barrier) for part in each.body)][-1]
        found = loads_of(replace(program, body=inner.body), 2 * channels)
        spots = -(-tile_m * tile_k // 8 // schedule.invocations)
        assert len(found) == 2 * (spots if times > 1 else 1)
        assert tile_m * tile_k // 8 % schedule.invocations


def loads_of(program: GroupProgram, elements: int) -> list[GroupLoad]:
    """What a program reads of the bindings of so many elements."""
    names = {each.name for each in program.bindings if each.elements == elements}
    return [each for each in expressions(program.body)
            if isinstance(each, GroupLoad) and each.buffer in names]


def test_a_bias_is_loaded_once_for_all_rows() -> None:
    """An invocation has four neighbouring columns of two rows, in a branch each as 24 columns are
    no two whole tiles."""
    (kernel,) = contractions(Conv(32, 8, 8, 24).graph())
    check(kernel, MATRIX)
    (program,) = lower(kernel, MATRIX, LIMITS).steps
    assert len(loads_of(program, 24)) == 1


def test_nothing_is_loaded_behind_the_depth() -> None:
    """Of 12 vectors of 4 along a depth of 36, two invocations bring 6 each; the last brings zeros.
    """
    (kernel,) = contractions(Conv(4, 8, 8, 16).graph())
    schedule = replace(MATRIX, tile_k=48)
    check(kernel, schedule)
    (program,) = lower(kernel, schedule, LIMITS).steps
    assert len(loads_of(program, 4 * 8 * 8)) == 5 * 4


def test_a_part_of_the_depth_may_begin_inside_of_a_tap() -> None:
    (kernel,) = contractions(Conv(64, 6, 5, 16).graph())
    for split in (2, 5, 12):
        check(kernel, replace(MATRIX, tile_k=16, ahead=True, split=split))
        check(kernel, replace(MATRIX, tile_k=16, ahead=True, direct=True, split=split))


def test_equal_layouts_are_equal_bytes() -> None:
    """A layout says all that packing depends on."""
    (kernel,) = contractions(Conv(6, 5, 5, 10).graph())
    given = weight_of(kernel)
    found: dict[Packed, bytes] = {}
    for schedule in (SMALL, replace(SMALL, tile_n=32), replace(SMALL, tile_k=8),
                     replace(SMALL, tile_k=32), replace(SMALL, weights="f16")):
        packed = lower(kernel, schedule, LIMITS).packed
        data = packed.pack(given).tobytes()
        assert found.setdefault(packed, data) == data
        assert len(data) == packed.elements * (2 if packed.dtype == "f16" else 4)
    assert len(found) == 3


def test_matrices_that_cannot_be_used_leave_the_other_schedules() -> None:
    (kernel,) = contractions(linear((3, 26), 52, 10))
    limits = replace(LIMITS, bf16=False, matrices=(MatrixShape(16, 16, 16, "bf16", "f32"),))
    schedule = choose_group(kernel, limits, "bf16")
    assert not schedule.matrix
    check(kernel, schedule, limits)
