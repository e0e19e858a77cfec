"""Schedules are tried on GPUs as they are on the CPU: in runs of the program, byte by byte."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from interpreted_gpu import LIMITS, InterpretedGpu

import smalti
from smalti.errors import DeviceLostError, IllegalSchedule, InputError, VerificationError
from smalti.graph import Graph
from smalti.kernel.text import parse as parse_kernel
from smalti.runtime import compile_graph
from smalti.runtime.cpu.trials import CpuTrials
from smalti.runtime.gpu.alternative import GpuAlternative
from smalti.runtime.gpu.compilation import compile_for
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.program import DeviceProgram
from smalti.runtime.gpu.trials import GpuTrials
from smalti.runtime.known import scope_of_gpu, store
from smalti.runtime.reference import ReferenceProgram
from smalti.runtime.supervisor import Supervisor
from smalti.runtime.tuner import Tuner, entries
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu
from smalti.schedule import parse

RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.standard_normal((24, 16, 3, 3), np.float32),
           "v": RNG.standard_normal((24, 40), np.float32)}
INPUTS = {"x": RNG.standard_normal((1, 16, 6, 7), np.float32)}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache and a store of the test's own."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))


def graph() -> Graph:
    """A convolution, a call of the host in the middle, a product and a softmax."""
    g = Graph("tried")
    x = g.apply("conv", g.input("x", (1, 16, 6, 7)), g.parameter("w", (24, 16, 3, 3)),
                pads=(1, 1, 1, 1))
    x = g.apply("transpose", g.apply("reshape", g.apply("silu", x), shape=(24, 42)), perm=(1, 0))
    x = g.apply("mat_mul", g.apply("cum_sum", x, axis=0, exclusive=0, reverse=0),
                g.parameter("v", (24, 40)))
    g.output("y", g.apply("softmax", x, axis=-1))
    return g


@pytest.fixture(params=["interpreter", "vulkan"])
def gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    """Work-groups in numpy, which needs no driver, and a driver."""
    if request.param == "interpreter":
        yield InterpretedGpu(replace(LIMITS, invocations=128))
        return
    with VulkanGpu(request.getfixturevalue("adapter")) as opened:
        yield opened


def compiled(gpu: Gpu, precision: str = "f32", of: Graph | None = None) -> DeviceProgram:
    program = compile_for(gpu, of or graph(), precision=precision)
    program.bind(WEIGHTS, strict=False)
    return program


def small_graph() -> Graph:
    """A product and two maps around a call of the host."""
    g = Graph("small")
    x = g.apply("exp", g.input("x", (9, 24)))
    x = g.apply("cum_sum", x, axis=0, exclusive=0, reverse=0)
    g.output("y", g.apply("tanh", g.apply("mat_mul", x, g.parameter("v", (24, 40)))))
    return g


SMALL_INPUTS = {"x": RNG.standard_normal((9, 24), np.float32)}


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_a_kernel_under_another_schedule_gives_the_same_bytes(gpu: Gpu, precision: str) -> None:
    program = compiled(gpu, precision)
    wanted, trials, tried = program.run(INPUTS)["y"], GpuTrials(program), 0
    for number, region in enumerate(program.module.regions):
        if region.kernel < 0:
            continue
        kernel = parse_kernel(program.module.kernels[region.kernel])
        found = trials.candidates(kernel, parse(region.schedule))
        assert found[0] == parse(region.schedule) and len(found) > 1
        for schedule in found[1::max(1, len(found) // 3)]:
            try:
                other = trials.alternative(number, kernel, schedule, WEIGHTS.__getitem__)
            except IllegalSchedule:
                continue
            tried += 1
            assert program.run(INPUTS, {number: other})["y"].tobytes() == wanted.tobytes()
            outputs, beside = program.run_beside(INPUTS, {number: other})
            assert beside[number].same and outputs["y"].tobytes() == wanted.tobytes()
            assert beside[number].seconds > 0 and beside[number].other_seconds > 0
    assert tried > 8
    assert program.run(INPUTS)["y"].tobytes() == wanted.tobytes()


def test_a_weight_in_another_layout_is_refused() -> None:
    program = compiled(InterpretedGpu(), "f16")
    number = next(n for n, r in enumerate(program.module.regions) if r.form == "contraction")
    region = program.module.regions[number]
    kernel = parse_kernel(program.module.kernels[region.kernel])
    other = replace(parse(region.schedule), weights="f32")
    with pytest.raises(IllegalSchedule, match="would have to lie in another layout"):
        GpuTrials(program).alternative(number, kernel, other, None)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take longer the more invocations there are in a work-group."""
    running: dict[int, GpuAlternative] = {}
    run = DeviceProgram.run

    def noted(self, inputs, instead=None):
        running.clear()
        running.update(instead or {})
        return run(self, inputs, instead)

    def seconds(self) -> np.ndarray:
        return np.array([0.0 if region.form == "host" else size_of(
            running[number].schedule if number in running else parse(region.schedule))
            for number, region in enumerate(self.module.regions)])

    monkeypatch.setattr(DeviceProgram, "run", noted)
    monkeypatch.setattr(DeviceProgram, "kernel_seconds", seconds)


def size_of(schedule) -> float:
    """Invocations of a work-group."""
    return float(getattr(schedule, "invocations", 0) or schedule.size)


def test_what_tuning_finds_is_used_by_the_next_program(timed: None) -> None:
    gpu = InterpretedGpu(replace(LIMITS, invocations=128))
    program = compiled(gpu, of=small_graph())
    wanted = program.run(SMALL_INPUTS)["y"]
    tuner = Tuner(GpuTrials(program), SMALL_INPUTS, WEIGHTS.__getitem__)
    tuner._repeats, turns = 1, 0
    while tuner.turn() and turns < 200:
        turns += 1
    gained = [row for row in tuner.rows() if row.best != row.schedule]
    assert len(gained) == 2 and all(row.best_seconds < row.seconds for row in gained)
    assert len(store().best(scope_of_gpu(gpu.device, "text", "f32"))) == 2
    again = compiled(gpu, of=small_graph())
    assert {row.best for row in gained} <= {region.schedule for region in again.module.regions}
    assert again.run(SMALL_INPUTS)["y"].tobytes() == wanted.tobytes()
    gpu.device = replace(gpu.device, driver="another")
    assert [region.schedule for region in compiled(gpu, of=small_graph()).module.regions] == [
        region.schedule for region in program.module.regions]


def test_other_bytes_are_a_bug_that_is_named() -> None:
    program = compiled(InterpretedGpu())
    tuner = Tuner(GpuTrials(program), INPUTS, WEIGHTS.__getitem__)
    number = next(n for n, r in enumerate(program.module.regions) if r.form == "contraction")
    entry = next(each for each in tuner.entries if number in each.regions)
    wrong = parse_kernel(entry.text.replace("silu(", "relu("))
    assert wrong != entry.kernel
    made = GpuAlternative(program.gpu, program.module, number, wrong,
                          parse(program.module.regions[number].schedule))
    outputs, beside = program.run_beside(INPUTS, {number: made})
    assert not beside[number].same
    assert outputs["y"].tobytes() == program.run(INPUTS)["y"].tobytes()
    with pytest.raises(VerificationError, match="other bytes come of GroupContraction"):
        tuner._blame({number: (entry, made)})


def test_results_are_the_same_under_a_supervisor(timed: None) -> None:
    program = compiled(InterpretedGpu(replace(LIMITS, invocations=128)), of=small_graph())
    wanted = program.run(SMALL_INPUTS)["y"]
    watched = Supervisor(program)
    for _ in range(30):
        watched.begin()
        watched.account.spent = 1e6  # so that every run may lose some time
        assert watched.run_checked(SMALL_INPUTS)["y"].tobytes() == wanted.tobytes()
    assert watched.tried > 0 and watched.chosen > 0


def test_a_device_that_is_lost_beside_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compiled(InterpretedGpu(), of=small_graph())
    number = next(n for n, r in enumerate(program.module.regions) if r.form == "contraction")
    region = program.module.regions[number]
    kernel = parse_kernel(program.module.kernels[region.kernel])
    other = GpuTrials(program).alternative(number, kernel, parse(region.schedule), None)

    def lost(*_: object) -> None:
        raise DeviceLostError("gone")

    monkeypatch.setattr(program.gpu, "run", lost)
    with pytest.raises(DeviceLostError):
        program.run_beside(SMALL_INPUTS, {number: other})
    assert program.lost


def test_kernels_are_timed_where_that_is_asked_for(gpu: Gpu) -> None:
    program = compiled(gpu)
    with pytest.raises(InputError, match="no run was timed; call profile first"):
        program.kernel_seconds()
    seconds = program.profile(INPUTS)
    hosted = [region.form == "host" for region in program.module.regions]
    assert (seconds[hosted] == 0).all() and (seconds[np.logical_not(hosted)] > 0).all()
    assert np.array_equal(program.kernel_seconds(), seconds)
    program.run(INPUTS, {})
    assert len(entries(GpuTrials(program), program.kernel_seconds(), 0.0, math.inf)) >= 4


def test_programs_without_kernels_are_not_tried() -> None:
    g = Graph("twice")
    x = g.input("x", (2, 16))
    g.output("y", x + x)
    assert isinstance(compile_graph(g, threads=1).trials(), CpuTrials)
    assert ReferenceProgram(g).trials() is None


@pytest.mark.sweep
def test_pictures_are_the_same_with_and_without_a_supervisor_on_a_gpu(
        adapter: VulkanAdapter, model_path: Path) -> None:
    def picture(supervise: bool) -> bytes:
        pipe = smalti.Pipeline.load(model_path, device="vulkan:0", precision="f32",
                                    supervise=supervise)
        return np.asarray(pipe("a red apple", steps=3, width=64, height=64).images[0]).tobytes()

    assert picture(True) == picture(False)
