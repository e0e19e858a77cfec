"""What contractions are expected to take on GPUs, and the schedules that are chosen by it."""

from dataclasses import replace

import pytest
from contraction_graphs import Conv, linear

from smalti import machine
from smalti.compiler.targets import TARGETS
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.machine.unit_rates import unit_rates
from smalti.schedule import GroupLimits, choose_group
from smalti.schedule.group import GroupContraction, MatrixShape
from smalti.schedule.group_work import GroupWork
from smalti.schedule.space_group import schedules


def device(name: str, shape: tuple[int, int, int], subgroup: int, registers: int) -> GroupLimits:
    """The limits of a device of the library, as its driver tells them."""
    found = machine.device(name)
    return GroupLimits(
        shared_bytes=48 << 10, invocations=1024, subgroup_min=subgroup, subgroup_max=subgroup,
        subgroup_choice=True, subgroup_operations=True, bindings=16, f16=True, storage16=True,
        matrices=(MatrixShape(*shape, "f16", "f32"),), registers=registers, units=found.units,
        architecture=found.architecture, rates=unit_rates(found))


DEVICES = {
    "rx_7900_xtx": device("rx_7900_xtx", (16, 16, 16), 32, 256),
    "rx_9070_xt": device("rx_9070_xt", (16, 16, 16), 32, 256),
    "rtx_4070": device("rtx_4070", (16, 16, 16), 32, 256),
    "arc_b580": device("arc_b580", (8, 16, 16), 16, 128),
    "arc_a770": device("arc_a770", (8, 8, 16), 8, 128),
}


def contraction(graph: Graph) -> Kernel:
    (kernel,) = [p.kernel for p in partition(graph).regions if p.kernel.form == "contraction"]
    return kernel


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("graph", [
    linear((4096,), 1024, 1024), linear((2048,), 640, 640), linear((8192,), 320, 320, "residual"),
    Conv(320, 32, 32, 320).graph()])
def test_chosen_sums_fit_the_registers(name: str, graph: Graph) -> None:
    """A quarter of the registers are sums at most, and what is expected to be held is there."""
    limits, kernel = DEVICES[name], contraction(graph)
    s, work = choose_group(kernel, limits, "f16"), GroupWork.of(kernel, limits)
    assert s.matrix and s.block_m * s.block_n <= limits.registers / 4 * s.subgroup
    assert work.held(s) <= limits.registers
    if limits.registers == 128:  # who has nothing to bring has a pad to bring it to: no branches
        assert not work.partial(s)


@pytest.mark.parametrize("channels", [160, 192, 320, 640])
def test_little_of_a_tile_is_beyond_the_channels(channels: int) -> None:
    """Also where channels are no power of two."""
    for limits in DEVICES.values():
        tile = choose_group(contraction(linear((8192,), 2560, channels)), limits, "f16").tile_n
        assert -(-channels // tile) * tile <= 1.2 * channels, tile


@pytest.mark.parametrize("rate", ["matrix", "cache", "last", "shared", "memory", "factors"])
def test_slower_units_take_longer(rate: str) -> None:
    """Whatever it is that is slower: it is what bounds the product when it is slow enough."""
    limits, kernel = DEVICES["rtx_4070"], contraction(linear((4096,), 4096, 4096))
    s = choose_group(kernel, limits, "f16")
    clocks = [GroupWork.of(kernel, replace(limits, rates=replace(
        limits.rates, **{rate: getattr(limits.rates, rate) / slower}))).clocks(s)
        for slower in (1, 8, 64)]
    assert clocks[0] <= clocks[1] < clocks[2]


def test_weights_are_read_again_from_the_nearest_cache_that_holds_them() -> None:
    """A weight of 2 MiB, of 64 rows of tiles of which 16 are in flight: four times from memory
    where no cache holds it, four times from the last one where that does, else once."""
    limits, kernel = DEVICES["rx_9070_xt"], contraction(linear((4096,), 1024, 1024))
    s = GroupContraction(64, 64, 32, 32, 32, pad=8, dtype="f16", weights="f16", ahead=True,
                         matrix="16x16x16", subgroup=32)

    rest, weight = 4 * 4096 * (1024 + 1024), 2 << 20  # a patch and results of f32

    def traffic(near: int, last: int) -> float:
        rates = replace(limits.rates, cache_bytes=near << 20, last_bytes=last << 20, last=4.0,
                        memory=3.5, shared_bytes=4 * s.shared_bytes())
        work = replace(GroupWork.of(kernel, replace(limits, units=64, rates=rates)), unit=None)
        assert work.resident(s) == 4
        return work.traffic(s) * 64

    assert traffic(8, 64) == pytest.approx((rest + weight) / 3.5)
    assert traffic(1, 1) == pytest.approx((rest + 4 * weight) / 3.5)
    assert traffic(1, 64) == pytest.approx((rest + 4 * weight) / 4.0)


def test_occupancy_is_what_registers_and_shared_memory_leave() -> None:
    limits = DEVICES["rx_7900_xtx"]
    work = GroupWork.of(contraction(linear((4096,), 1024, 1024)), limits)
    small = GroupContraction(64, 64, 32, 32, 32, pad=8, dtype="f16", weights="f16", ahead=True,
                             matrix="16x16x16", subgroup=32)
    large = replace(small, tile_m=256, tile_n=128, block_m=64, block_n=32)
    assert work.resident(small) > work.resident(large) >= 1
    unit, shared = work.unit, small.shared_bytes()
    assert unit is not None
    assert replace(work, unit=replace(unit, shared_bytes=unit.taken(shared))).resident(small) == 1
    unknown = replace(work, unit=None)
    assert unknown.resident(small) > unknown.resident(large) >= 1
    few = replace(unknown, rates=replace(work.rates, shared_bytes=shared))
    assert few.resident(small) == 1


def test_of_equal_schedules_subgroups_read_less_than_they_multiply() -> None:
    """77 tokens on RDNA 4: 64 invocations are all lanes of a unit there, and take larger blocks."""
    s = choose_group(contraction(linear((154,), 768, 320)), DEVICES["rx_9070_xt"], "f16")
    assert isinstance(s, GroupContraction) and s.matrix and s.block_m * s.block_n > 16 * 16


@pytest.mark.parametrize("name", DEVICES)
def test_few_work_groups_may_stage_deeper(name: str) -> None:
    """Where each only waits for its chunks; not where most rows of a matrix would be empty."""
    def deepest(rows: int) -> int:
        kernel = contraction(linear((rows,), 768, 320))
        return max(s.tile_k for s in schedules(kernel, DEVICES[name], "f16")
                   if s.matrix and not s.direct)

    assert deepest(77) >= deepest(8192) == deepest(4)
    assert deepest(77) > deepest(8192) or name == "arc_a770"  # which has no registers for it


@pytest.mark.parametrize("name", ["arc_b580", "arc_a770"])
def test_matrices_of_few_rows_or_one_chunk_may_be_read_where_they_are(name: str) -> None:
    """A deep product of many rows stages its weight: each of its subgroups would read it again."""
    def placed(graph: Graph) -> bool:
        return any(s.matrix and s.direct
                   for s in schedules(contraction(graph), DEVICES[name], "f16"))

    assert placed(linear((2,), 1280, 1280)) and placed(Conv(4, 64, 64, 320).graph())
    assert not placed(linear((4096,), 1280, 1280))
    assert not placed(linear((2,), 1280, 1281))  # whose matrices reach behind the last column


def test_chunks_may_be_as_deep_as_all_invocations_bring_as_many_vectors() -> None:
    """Of 16 pixels five subgroups bring 2 vectors of 8 channels each where a chunk is 160 deep, and
    some bring fewer in all that are a power of two; four subgroups need no such chunk."""
    kernel, limits = contraction(Conv(320, 8, 8, 320).graph()), DEVICES["rx_9070_xt"]
    work, deep = GroupWork.of(kernel, limits), {}
    for s in schedules(kernel, limits, "f16"):
        if s.direct and s.block_m == s.tile_m == 16 and s.block_n == 32:
            deep.setdefault(s.tile_n, set()).add((s.tile_k, work.even(s)))
    assert deep[160] == {(32, False), (64, False), (128, False), (160, True)}
    assert {tile_k for tile_k, _ in deep[64]} == {32, 64, 128}


@pytest.mark.parametrize("depth", [4, 8, 16])
def test_a_product_that_is_shallower_than_a_matrix_has_schedules(depth: int) -> None:
    for kernel in (contraction(linear((64,), depth, 64)), of_bytes("rtx_4070", depth)[0]):
        limits = replace(DEVICES["rtx_4070"], matrices=(
            *DEVICES["rtx_4070"].matrices, MatrixShape(16, 16, 32, "i8", "i32")))
        found = [s for s in schedules(kernel, limits, "f16") if s.matrix]
        assert found and not any(s.direct and s.tile_k >= 2 * depth for s in found)


@pytest.mark.parametrize(("name", "half"), [("rx_9070_xt", True), ("rtx_4070", False),
                                            ("arc_b580", True), ("arc_a770", True)])
def test_half_of_the_registers_are_sums_where_the_matrix_unit_waits(name: str, half: bool) -> None:
    """Of a product of one chunk: more sums are fewer subgroups, which is of use only where
    other instructions take turns with the unit, or take longer."""
    limits = DEVICES[name]
    most = max(s.block_m * s.block_n / s.subgroup
               for s in schedules(contraction(Conv(4, 64, 64, 320, batch=2).graph()), limits, "f16")
               if s.matrix)
    assert most == limits.registers / (2 if half else 4)


@pytest.mark.parametrize(("name", "ahead"), [("rx_9070_xt", True), ("rtx_4070", True),
                                             ("arc_b580", False), ("arc_a770", False)])
def test_chunks_are_loaded_ahead_where_registers_are_left(name: str, ahead: bool) -> None:
    kernel = contraction(Conv(320, 32, 32, 320).graph())
    assert all(s.ahead == ahead for s in schedules(kernel, DEVICES[name], "f16") if s.matrix)


WHOLE = {"rx_7900_xtx": (16, 16, 16), "rx_9070_xt": (16, 16, 16), "rtx_4070": (16, 16, 32),
         "arc_b580": (8, 16, 32), "arc_a770": (8, 8, 32)}
"""Products of bytes in the matrix units of these devices."""


def of_bytes(name: str, depth: int = 1280) -> tuple[Kernel, GroupLimits]:
    """A product of bytes, on a device that has dot products and a matrix unit for them."""
    g = Graph("bytes")
    x, w = g.input("x", (4096, depth), "u8"), g.parameter("w", (depth, 640), "i8")
    sums = g.apply("mat_mul_integer", x, w, g.constant(3, "u8"), g.constant(0, "i8"))
    g.output("y", g.apply("cast", sums, to="f32"))
    functions = TARGETS["spirv"].functions
    (kernel,) = [p.kernel for p in partition(g, (), functions).regions]
    shape = MatrixShape(*WHOLE[name], "i8", "i32")
    return kernel, replace(DEVICES[name], matrices=(shape,), dot_i8=True, fast_dot_i8=True)


@pytest.mark.parametrize("name", WHOLE)
def test_products_of_bytes_are_in_the_matrix_unit_by_its_rate(name: str) -> None:
    kernel, limits = of_bytes(name)
    found, work = choose_group(kernel, limits, "f16"), GroupWork.of(kernel, limits)
    assert (found.dtype, found.weights, found.matrix) == ("i8", "i8", limits.matrices[0].text)
    assert found.block_m * found.block_n <= limits.registers / 4 * found.subgroup
    assert work.held(found) <= limits.registers
    slow = replace(limits, rates=replace(limits.rates, matrix_bytes=limits.rates.dots / 4))
    assert not choose_group(kernel, slow, "f16").matrix
    assert work.clocks(found) < GroupWork.of(kernel, slow).clocks(found)


def test_drivers_load_matrices_of_bytes_where_invocations_hold_known_lines() -> None:
    """Only of halves an invocation reads its column itself."""
    kernel, limits = of_bytes("arc_a770")
    known = replace(limits, right_lines="columns")
    found = choose_group(kernel, limits, "f16")
    assert choose_group(kernel, known, "f16") == found
    clocks = [GroupWork.of(kernel, each).clocks(found) for each in (limits, known)]
    assert clocks[0] == clocks[1]
