"""Times of kernels on a CPU: limits, known traffic, and that more work takes longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smalti import machine
from smalti.compiler.targets import TARGETS
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.kernel.build import Window, attention, contraction, map_over
from smalti.kernel.form import Buffer, Call, Kernel, Load, axis
from smalti.machine import cpu
from smalti.machine.cpu.residency import ARENA, Residency
from smalti.machine.cpu.work import Work
from smalti.machine.detection import at_level
from smalti.schedule import choose
from smalti.schedule.schedule import Limits

DEVICE = machine.device("ryzen_9_9950x")
WIDE = Limits(16, 32, 48 << 10, 1 << 20, 4, True)


def conv(channels: int = 64, filters: int = 64, side: int = 32, window: int = 3) -> Kernel:
    """A convolution of a channels-last image, its border padded."""
    b, y, x, c, o = map(axis, "byxco")
    pad = window // 2
    buffers = [
        Buffer("x0", "input", (1, channels, side, side),
               (side * side * channels, 1, side * channels, channels)),
        Buffer("weight", "parameter", (filters, channels, window, window),
               (channels * window**2, window**2, window, 1)),
        Buffer("out", "output", (1, side, side, filters),
               (side * side * filters, side * filters, filters, 1))]
    return contraction(
        Window(1, side, side, channels, side, side, filters, window, window, pad=(pad, pad)),
        Load("x0", (b, c, y.plus(-pad), x.plus(-pad))), Load("sum", (b, y, x, o)), buffers)


def silu(count: int) -> Kernel:
    """silu of rows of 1000 numbers, which lie apart."""
    rows, strides = count // 1000, (1024, 1)
    buffers = [Buffer("x0", "input", (rows, 1000), strides),
               Buffer("out", "output", (rows, 1000), strides)]
    value = Call("silu", (Load("x0", (axis("i"), axis("j"))),))
    return map_over([("i", rows), ("j", 1000)], value, buffers)


def heads(tokens: int, depth: int = 64) -> Kernel:
    """Self-attention with 4 heads."""
    q, k, v, out = (Buffer(name, role, (1, tokens, 4, depth), (tokens * 4 * depth, 4 * depth,
                                                               depth, 1))
                    for name, role in (("q", "input"), ("k", "input"), ("v", "input"),
                                       ("out", "output")))
    return attention(q, k, v, out, scale=0.125, causal=False)


def seconds(kernel: Kernel, threads: int = 4, device: machine.DeviceModel = DEVICE,
            winograd: int = 4) -> float:
    """The expected time under the first schedule."""
    limits = replace(WIDE, threads=threads)
    schedule = choose(kernel, limits, "f32", winograd)
    return cpu.estimate_kernel(device, kernel, schedule, threads).seconds


@pytest.mark.parametrize("smaller, larger", [
    (conv(64), conv(128)), (conv(filters=64), conv(filters=128)), (conv(side=32), conv(side=64)),
    (conv(window=1), conv(window=3)), (silu(10_000), silu(100_000)), (heads(256), heads(512)),
    (heads(256, 32), heads(256, 64)),
])
def test_more_work_takes_longer(smaller: Kernel, larger: Kernel) -> None:
    assert seconds(smaller) < seconds(larger)


@pytest.mark.parametrize("kernel", [conv(256, 256), heads(1024), silu(1_000_000)],
                         ids=lambda k: k.form)
def test_more_threads_take_less_time_but_not_less_than_their_share(kernel: Kernel) -> None:
    alone, four = seconds(kernel, 1), seconds(kernel, 4)
    assert alone / 4.5 < four < alone


def test_no_direct_contraction_beats_the_multiply_adds() -> None:
    for channels in (64, 128, 512):
        kernel, flops = conv(channels, channels, 32), 2 * 9 * channels**2 * 32 * 32
        least = flops / (DEVICE.vector["f32"] * 4 / DEVICE.units)
        assert least < seconds(kernel, winograd=0) < 3 * least


def test_bytes_in_pairs_take_twice_the_time_of_one_instruction_and_less_than_words() -> None:
    """Of a large product, by targets with and without VNNI, and by words."""
    def product(paired: int, target: str) -> float:
        g = Graph("bytes")
        g.output("y", g.apply("mat_mul_rounded", g.input("x", (512, 3072), "u8"), g.parameter(
            "w", (3072, 3072)), g.constant(128, "u8"), paired=paired))
        kernel, limits = partition(g).regions[0].kernel, TARGETS[target].usual
        return cpu.estimate_kernel(DEVICE, kernel, choose(kernel, limits), 1).seconds

    one, pairs, words = product(0, "avx512_vnni"), product(1, "avx512"), product(0, "avx512")
    assert 1.7 * one < pairs < 2.3 * one and pairs < 0.85 * words


def test_bytes_are_copied_into_a_patch_unless_they_get_a_sign() -> None:
    """By `sdot` both factors have one; those that have it as they are stored become f32, too."""
    def staged(dtype: str, target: str) -> float:
        g = Graph("bytes")
        g.output("y", g.apply(
            "conv_integer", g.input("x", (1, 128, 32, 32), dtype), g.parameter(
                "w", (16, 128, 3, 3), "i8"), g.constant(3, dtype), g.constant(0, "i8"),
            pads=(1, 1, 1, 1)))
        kernel, limits = partition(g).regions[0].kernel, TARGETS[target].usual
        device = at_level(machine.device("graviton_3"), limits.lanes, limits.pairs)
        return cpu.estimate_kernel(device, kernel, choose(kernel, limits), 1).seconds

    assert staged("u8", "neon_dot") == staged("i8", "neon_dot")
    assert staged("u8", "neon_bf16") < 0.95 * staged("i8", "neon_bf16")


def test_winograd_is_expected_to_be_faster_than_the_direct_form() -> None:
    kernel = conv(256, 256, 64)
    assert 0.2 < seconds(kernel) / seconds(kernel, winograd=0) < 0.8


def test_slower_memory_makes_what_it_binds_slower_and_nothing_else() -> None:
    slow = replace(DEVICE, bandwidth=DEVICE.bandwidth / 8)
    one = conv(1280, 1280, 4, 1)
    assert seconds(one, device=slow) > 2 * seconds(one)
    assert seconds(heads(1024), device=slow) == pytest.approx(seconds(heads(1024)))
    schedule = choose(one, WIDE)
    assert cpu.estimate_kernel(slow, one, schedule, 4).binds == "memory"


def test_bytes_are_those_of_weights_that_are_in_memory() -> None:
    kernel = conv(256, 512, 16, 1)
    schedule = choose(kernel, WIDE)
    found = cpu.estimate_kernel(DEVICE, kernel, schedule, 4)
    assert found.bytes == 4 * 256 * 512
    cached = cpu.estimate_kernel(DEVICE, kernel, schedule, 4, {"weight": cpu.WARM})
    assert cached.bytes == 0 and cached.seconds < found.seconds


def test_a_copy_moves_what_it_reads_and_twice_what_it_writes() -> None:
    kernel = silu(64_000_000)
    schedule = choose(kernel, WIDE)
    found = cpu.estimate_kernel(DEVICE, kernel, schedule, 4, {"x0": cpu.COLD, "out": cpu.COLD})
    assert found.bytes == 3 * 4 * 64_000_000 and found.binds == "memory"


def test_a_program_finds_what_the_kernel_before_has_left() -> None:
    def chained(count: int) -> cpu.ProgramEstimate:
        kernel = silu(count)
        schedule, size = choose(kernel, WIDE), 4 * count
        places = [(ARENA, size * (n % 2)) for n in range(3)]
        launches = [cpu.TimedLaunch(kernel, schedule, {"x0": here, "out": there})
                    for here, there in zip(places, places[1:])]
        return cpu.estimate_program(DEVICE, launches, 4, 2 * size)

    assert chained(100_000).bytes == 0
    assert chained(100_000_000).bytes == pytest.approx(2 * 3 * 4 * 100_000_000, rel=0.1)


def test_a_program_is_the_sum_of_its_kernels() -> None:
    kernel = conv()
    launches = [cpu.TimedLaunch(kernel, choose(kernel, WIDE))] * 3
    found = cpu.estimate_program(DEVICE, launches, 4)
    assert len(found.kernels) == 3
    assert found.seconds == pytest.approx(sum(k.seconds for k in found.kernels))
    assert found.energy_joules == pytest.approx(sum(k.energy_joules for k in found.kernels))


def test_fewer_cores_at_work_take_less_power() -> None:
    kernel = heads(1024)
    one, four = (cpu.estimate_kernel(DEVICE, kernel, choose(kernel, replace(WIDE, threads=n)), n)
                 for n in (1, 4))
    assert one.energy_joules / one.seconds < four.energy_joules / four.seconds < DEVICE.watts


def test_values_sink_as_others_are_touched() -> None:
    core = cpu.core_of(DEVICE)
    residency = Residency(core, 1)
    size = core.l2_bytes / 4
    assert residency.shares(("a", 0), size) == (0, 0)
    residency.touch(("a", 0), size)
    assert residency.shares(("a", 0), size) == (1, 0)
    residency.touch(("b", 0), 2 * core.l2_bytes)
    assert residency.shares(("a", 0), size) == (0, 1)
    residency.touch(("c", 0), 2 * core.l3_bytes)
    assert residency.shares(("a", 0), size) == (0, 0)


def test_an_arena_pushes_out_no_more_than_it_holds() -> None:
    core = cpu.core_of(DEVICE)
    residency = Residency(core, 1, 1 << 20)
    residency.touch(("weight", 0), 1 << 20)
    for _ in range(1000):
        residency.touch((ARENA, 0), 1 << 20)
    assert sum(residency.shares(("weight", 0), 1 << 20)) == pytest.approx(1)


def test_steps_of_shared_winograd_are_two() -> None:
    kernel = conv(320, 320, 16)
    schedule = choose(kernel, WIDE)
    works = cpu.works(kernel, schedule, cpu.core_of(DEVICE))
    assert schedule.winograd.shared and [type(work) for work in works] == [Work, Work]
    assert works[0].tiles == schedule.tile_b * -(-320 // schedule.chunk)
