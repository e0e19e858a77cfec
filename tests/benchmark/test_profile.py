"""Roofline arithmetic, tables and traces from given times; profiles of small programs."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from interpreted_gpu import InterpretedGpu
from tiny_suite import TINY_CASES

from smalti import machine
from smalti.benchmark.profile import (
    KernelTime,
    Profile,
    profiled,
    seeded_inputs,
    table,
    total,
    trace,
)
from smalti.benchmark.roofline import Roofline, measure, published
from smalti.errors import DeviceError
from smalti.graph import Graph
from smalti.runtime import compile_graph
from smalti.runtime.cpu.adapter import available_levels
from smalti.runtime.device import Device
from smalti.runtime.gpu.compilation import compile_for
from smalti.runtime.reference import ReferenceProgram

ROOFLINE = Roofline("2 threads", "f32", flops_per_second=100e9, bytes_per_second=10e9)
PRODUCT = KernelTime("a.product", "contraction", "tile 8", (0.02, 0.01, 0.05), 1_000_000_000,
                     20_000_000)
COPY = KernelTime("a.copy", "map", "", (0.02, 0.02, 0.01), 1_000_000, 100_000_000)
PROFILE = Profile("a", (COPY, PRODUCT), (0.05, 0.04, 0.07))


def test_a_kernel_is_bound_by_the_longer_of_both() -> None:
    assert PRODUCT.median == 0.02 and PRODUCT.fraction(ROOFLINE) == pytest.approx(0.5)
    assert COPY.fraction(ROOFLINE) == pytest.approx(0.5)


def test_sums_are_made_run_by_run() -> None:
    whole = total("total", PROFILE.kernels)
    assert whole.seconds == pytest.approx((0.04, 0.03, 0.06))
    assert whole.flops == 1_001_000_000 and whole.bytes == 120_000_000
    assert [(count, group.form) for count, group in PROFILE.by_form()] \
        == [(1, "map"), (1, "contraction")]


def test_the_table_shows_the_slowest_and_all_forms() -> None:
    text = table(PROFILE, ROOFLINE, top=1)
    assert text.startswith("a: 50.0 ms a run, median of 3")
    assert "a.copy" in text and "a.product" not in text
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
             for line in text.splitlines() if line.startswith("|")}
    assert cells["contraction"] == ["1", "20.0 ms", "50.0%", "50.0", "1.0", "50.0", "50%"]
    assert cells["total"][0] == "2"


def test_a_trace_has_an_event_for_each_kernel_in_each_run() -> None:
    found = json.loads(json.dumps(trace([PROFILE])))["traceEvents"]
    events = [event for event in found if event["ph"] == "X"]
    assert [(e["tid"], e["name"]) for e in events[:3]] \
        == [(0, "a.copy"), (0, "a.product"), (1, "a.copy")]
    assert len(events) == 6
    for before, after in zip(events, events[1:], strict=False):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"])
    assert events[-1]["dur"] == pytest.approx(50_000) and events[0]["args"]["bytes"] == 100_000_000


def test_a_program_is_profiled_kernel_by_kernel() -> None:
    case = TINY_CASES["decode"]
    program = compile_graph(case.graph(), threads=1)
    program.bind(case.read())
    found = profiled(program, case.inputs(), runs=3)
    assert len(found.kernels) == len(program.module.regions)
    for kernel in found.kernels:
        assert len(kernel.seconds) == 3 and min(kernel.seconds) > 0 and kernel.bytes > 0
    whole = total("total", found.kernels)
    assert all(inside <= outside
               for inside, outside in zip(whole.seconds, found.seconds, strict=True))


def test_a_program_of_a_gpu_is_timed_by_its_clock() -> None:
    case = TINY_CASES["clip_l"]
    program = compile_for(InterpretedGpu(), case.graph(), precision="f32")
    program.bind(case.read())
    inputs = seeded_inputs(program)
    assert inputs["tokens"].dtype == np.int32 and inputs["tokens"].max() < 96
    found = profiled(program, inputs, runs=1)
    assert len(found.kernels) == len(program.module.regions) and len(found.seconds) == 1
    assert total("total", found.kernels).seconds[0] == pytest.approx(
        1e-6 * len(program.module.launches))
    text = table(found, None, top=2)
    assert "roofline" not in text and "| contraction " in text


def test_peaks_of_a_gpu_are_published_where_it_is_known() -> None:
    device = Device("vulkan:0", "AMD Radeon RX 7600 (RADV NAVI33)", "discrete", 8 << 30, ())
    found, line = published(device, "f16"), machine.device("rx_7600")
    assert found == Roofline(line.name, "f16", line.vector["f16"], line.bandwidth)
    with_matrices = published(replace(device, matrices=("16x16x16",)), "f16")
    assert with_matrices.flops_per_second == line.rate("f16")
    assert published(replace(device, name="Somebody's"), "f32") is None
    assert published(replace(device, kind="cpu"), "f32") is None


def test_kernels_of_weights_only_take_no_part() -> None:
    case = TINY_CASES["mobilenet_v2"]
    program = compile_graph(case.graph(), threads=1)
    program.bind(case.read())
    found = profiled(program, case.inputs(), runs=1)
    assert 0 < len(found.kernels) < len(program.module.regions)


def test_inputs_are_rows_that_tables_have() -> None:
    case = TINY_CASES["clip_l"]
    program = compile_graph(case.graph(), threads=1)
    program.bind(case.read())
    ids = seeded_inputs(program)["tokens"]
    assert ids.shape == (1, 77) and 0 <= ids.min() and ids.max() < 96
    assert len(profiled(program, {"tokens": ids}, runs=1).seconds) == 1


def test_the_reference_has_nothing_to_profile() -> None:
    graph = Graph("twice")
    x = graph.input("x", (2,))
    graph.output("y", x + x)
    with warnings.catch_warnings(action="ignore"):
        program = ReferenceProgram(graph)
    with pytest.raises(DeviceError, match="numpy reference"):
        profiled(program, {"x": np.zeros(2, np.float32)}, 1)


@pytest.mark.parametrize("name", available_levels())
def test_peaks_are_those_of_a_computer(name: str) -> None:
    found = measure(name, "f32", 1)
    assert 1e9 < found.flops_per_second < 1e13 and 1e8 < found.bytes_per_second < 1e13
    assert "GFLOP/s in f32" in str(found)
