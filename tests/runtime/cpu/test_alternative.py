"""Kernels under other schedules take the place of a program's own, and give the same bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.graph import Graph
from smalti.runtime import compile_graph
from smalti.runtime.cpu.adapter import available_levels, cpu
from smalti.runtime.cpu.alternative import Alternative
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.cpu.recording import Table, TableRow
from smalti.runtime.cpu.threads import driver_entry
from smalti.schedule import arithmetic, parse
from smalti.schedule.space import space

LEVELS = available_levels()
RANDOM = np.random.default_rng(0)
WEIGHTS = {"w": RANDOM.standard_normal((48, 32, 3, 3), np.float32),
           "v": RANDOM.standard_normal((40, 48, 1, 1), np.float32),
           "s": RANDOM.standard_normal(48, dtype=np.float32)}
INPUTS = {"x": RANDOM.standard_normal((1, 32, 12, 12), np.float32)}


def graph() -> Graph:
    """WinogradTransform, a product, statistics, and a row of means."""
    g = Graph("kinds")
    h = g.apply("conv", g.input("x", (1, 32, 12, 12)), g.parameter("w", (48, 32, 3, 3)),
                pads=(1, 1, 1, 1))
    s = g.parameter("s", (48,))
    h = g.apply("silu", g.apply("group_normalization", h, s, s, num_groups=8, epsilon=1e-5))
    h = g.apply("conv", h, g.parameter("v", (40, 48, 1, 1)))
    g.output("y", g.apply("reduce_mean", h, axes=(2, 3)))
    return g


def bound(name: str, threads: int = 2) -> tuple[NativeProgram, list]:
    """The program of `graph` with weights, and its kernels."""
    program = compile_graph(graph(), threads=threads, target=name)
    program.bind(WEIGHTS)
    return program, [region.kernel for region in partition(graph()).regions]


@pytest.mark.parametrize("name", LEVELS)
def test_alternatives_of_all_regions_at_once_change_no_byte(name: str) -> None:
    program, kernels = bound(name)
    expected = program.run(INPUTS)["y"]
    limit = limits(level(name), 2, cpu().l1_bytes, cpu().l2_bytes)
    spaces = [space(kernel, limit, parse(info.schedule))
              for kernel, info in zip(kernels, program.module.regions, strict=True)]
    assert max(map(len, spaces)) > 8
    for turn in range(4):
        others = {region: Alternative(program.module, region, kernels[region],
                                     members[(37 * turn + 1) % len(members)], WEIGHTS.__getitem__)
                  for region, members in enumerate(spaces)}
        assert program.run(INPUTS, others)["y"].tobytes() == expected.tobytes()
        assert (program.kernel_seconds() > 0).all()
        outputs, beside = program.run_beside(INPUTS, others)
        assert outputs["y"].tobytes() == expected.tobytes()
        assert all(each.same and each.seconds > 0 and each.other_seconds > 0
                   for each in beside.values()) and beside.keys() == others.keys()
        assert (program.kernel_seconds() > 0).all()
    assert program.run(INPUTS)["y"].tobytes() == expected.tobytes()


def test_another_arithmetic_is_told_by_its_bytes() -> None:
    program, kernels = bound(LEVELS[-1])
    first = parse(program.module.regions[0].schedule)
    assert first.winograd_size == 4
    limit = limits(level(LEVELS[-1]), 2)
    other = next(s for s in space(kernels[0], limit, first, algorithms=True)
                 if s.winograd_size == 2)
    assert arithmetic(kernels[0], other) != arithmetic(kernels[0], first)
    made = Alternative(program.module, 0, kernels[0], other, WEIGHTS.__getitem__)
    expected = program.run(INPUTS)["y"]
    outputs, beside = program.run_beside(INPUTS, {0: made})
    assert not beside[0].same and outputs["y"].tobytes() == expected.tobytes()
    assert program.run(INPUTS, {0: made})["y"].tobytes() != expected.tobytes()


def test_weights_in_another_layout_have_to_be_read() -> None:
    program, kernels = bound(LEVELS[0])
    product = next(n for n, kernel in enumerate(kernels) if kernel.form == "contraction" and n)
    now = parse(program.module.regions[product].schedule)
    Alternative(program.module, product, kernels[product], replace(now, tile_x=5))
    with pytest.raises(IllegalSchedule, match="read again"):
        Alternative(program.module, product, kernels[product],
                    replace(now, vectors=3 - now.vectors, rows=2))


def test_the_driver_is_made_once_however_many_ask_first() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: driver_entry(), range(64)))) == 1
    table = Table([[], []], 1, 0, 0)
    assert table.threads == 1 and TableRow(0, (), 0).barrier


def test_a_kernel_takes_a_tick_at_least_though_the_counter_stands_still() -> None:
    table = Table([[TableRow(0, (), 1)], [], [TableRow(0, (), 1)] * 2], 1, 0, 0)
    table._range, table._stamps[:] = (0, 3), (70, 70, 70, 73)
    assert table.ticks().tolist() == [1, 0, 3]


def test_results_that_nobody_writes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    program, kernels = bound(LEVELS[-1])
    program.run(INPUTS)
    now = parse(program.module.regions[0].schedule)
    idle = Alternative(program.module, 0, kernels[0], now)
    assert program.run_beside(INPUTS, {0: idle})[1][0].same
    monkeypatch.setattr(idle, "rows", lambda pointers: [])
    expected = program.run(INPUTS)["y"]
    outputs, beside = program.run_beside(INPUTS, {0: idle})
    assert not beside[0].same, "what an earlier run has left is no result"
    assert outputs["y"].tobytes() == expected.tobytes()
