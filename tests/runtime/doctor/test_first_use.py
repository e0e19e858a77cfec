"""GPUs that nobody has checked: kernels of the first programs are compared with the CPU's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from broken_gpus import FAULTS, LARGE, BrokenGpu

import smalti
from smalti.compiler.samples import alone, product
from smalti.errors import DeviceError, DeviceLostError
from smalti.graph import Graph
from smalti.runtime.choice import chosen
from smalti.runtime.doctor import first_use, verdict
from smalti.runtime.doctor.found import Finding
from smalti.runtime.doctor.verdict import Verdict
from smalti.runtime.drivers import driver
from smalti.runtime.gpu import opened
from smalti.runtime.gpu.compilation import compile_for
from smalti.runtime.gpu.recipe import recipe_for
from smalti.runtime.gpu.removals import (
    DEVICE,
    SUBGROUP_OPERATIONS,
    TIMES,
    matrix_shape,
)
from smalti.runtime.vulkan import VulkanAdapter
from smalti.runtime.vulkan.driver import found

NOT_RELIED = "A broken GPU: The matrix unit for 16x16x16 f16 to f32 cannot be relied on here"
NOTHING = Verdict("A broken GPU", "broken 1.0", "broken", "", "2026-11-22", 3, 1.0)


@pytest.fixture(autouse=True)
def alone_here(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Nothing is known of any device, and checks in processes find nothing."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    for name in ("_running", "_users", "_found"):
        monkeypatch.setattr(first_use, name, {})
    monkeypatch.setattr(first_use, "_right", set())
    monkeypatch.setattr(first_use, "supervised", lambda device, driver, start: replace(
        NOTHING, identity=device.identity, unfinished="tests need none"))


def outputs(gpu: BrokenGpu, graph: smalti.Graph) -> tuple[np.ndarray, np.ndarray]:
    """What a program of a GPU gives, and what it should."""
    rng = np.random.default_rng(0)
    program = compile_for(gpu, graph, precision="f16")
    weights = {name: rng.standard_normal(value.shape).astype(np.float32)
               for name, value in graph.parameters.items()}
    given = {name: rng.standard_normal(shape).astype(np.float32)
             for name, shape in program.inputs.items()}
    program.bind(weights)
    reference = smalti.compile(graph, device="cpu")
    reference.bind(weights)
    return program.run(given)["y"], reference.run(given)["y"]


def off_by(gpu: BrokenGpu, graph: smalti.Graph) -> float:
    result, expected = outputs(gpu, graph)
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


def test_a_sound_device_is_used_as_it_is() -> None:
    gpu = BrokenGpu(FAULTS["nothing"])
    limits = gpu.limits
    assert off_by(gpu, product((64,), 64, 64)) < 2e-3
    assert gpu.limits is limits and first_use._right


@pytest.mark.parametrize("fault, graph", [
    ("products of a shape are off by 1 %", product((64,), 64, 64)),
    ("far shuffles give nothing", alone("softmax", (4, 200), axis=-1)),
    ("arithmetic in f16 is coarse", product((64,), 64, 64))])
def test_the_first_result_of_a_broken_device_is_right(fault, graph, caplog) -> None:
    gpu = BrokenGpu(FAULTS[fault])
    with caplog.at_level(logging.WARNING):
        assert off_by(gpu, graph) < 4e-3
    if fault.startswith("products"):
        assert LARGE not in gpu.limits.matrices
        assert NOT_RELIED in caplog.text


def test_a_device_on_which_nothing_helps_is_refused() -> None:
    with pytest.raises(DeviceError, match="The device cannot be relied on .*Pictures are made"):
        compile_for(BrokenGpu(FAULTS["the last element is not written"]), product((16,), 16, 32))


def test_a_device_that_is_lost_is_said_to_be() -> None:
    with pytest.raises(DeviceLostError, match="was lost while a kernel was compared"):
        compile_for(BrokenGpu(FAULTS["the device is always lost"]), product((16,), 16, 32))


def kernels_of(graph: smalti.Graph) -> list:
    """What is chosen to be compared of a graph's program."""
    gpu = BrokenGpu(FAULTS["nothing"])
    return first_use.chosen(recipe_for(gpu, graph).module(gpu.target))


def test_the_largest_kernels_of_each_form_are_compared() -> None:
    graph = Graph("two")
    x = graph.input("x", (64, 64))
    small, large = (graph.parameter(name, (64, n)) for name, n in (("a", 32), ("b", 256)))
    graph.output("y", graph.apply("softmax", graph.apply("mat_mul", x, small), axis=-1))
    graph.output("z", graph.apply("mat_mul", x, large))
    found = {kernel.form: kernel for kernel in kernels_of(graph)}
    assert found["contraction"].buffer("out").shape[-1] == 256 and len(found) > 1


@pytest.mark.parametrize("graph", [
    alone("reduce_sum", (64, 64), axes=(0, 1), keepdims=0), alone("floor", (64, 64)),
    alone("greater", (64, 64), (64, 64))], ids=["one sum", "steps", "answers"])
def test_what_roundings_change_much_is_not_compared(graph: smalti.Graph) -> None:
    assert kernels_of(graph) == []


@pytest.mark.parametrize("known", ["off", "kept", "cpu"])
def test_what_is_known_is_not_compared(known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = BrokenGpu(FAULTS["the last element is not written"])
    if known == "off":
        monkeypatch.setenv("SMALTI_DOCTOR", "off")
    elif known == "kept":
        verdict.keep(replace(NOTHING, code=verdict.emitters()))
    else:
        gpu.device = replace(gpu.device, kind="cpu")
    compile_for(gpu, product((16,), 16, 32))
    assert not first_use._right and not first_use._running


def test_a_check_begins_by_itself_and_holds_from_then_on(
        monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    finding = Finding("product, f16", "the result is off", (matrix_shape(LARGE),))
    monkeypatch.setattr(first_use, "supervised", lambda device, driver, start: replace(
        NOTHING, code=verdict.emitters(), findings=(finding,)))
    gpu = BrokenGpu(FAULTS["nothing"])
    program = compile_for(gpu, product((16,), 16, 32))
    first_use._running["broken"].join()
    assert verdict.kept("broken").findings == (finding,)
    assert gpu.outdated and program.lost
    assert NOT_RELIED in caplog.text


def test_a_finding_of_the_first_use_is_kept_with_the_verdict(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use, "supervised", lambda device, driver, start: replace(
        NOTHING, code=verdict.emitters()))
    monkeypatch.setattr("smalti.runtime.gpu.compilation.begin", lambda gpu: None)
    gpu = BrokenGpu(FAULTS["products of a shape are off by 1 %"])
    compile_for(gpu, product((64,), 64, 64), precision="f16")
    assert first_use._found["broken"]
    first_use._check(gpu.device, "")
    assert verdict.kept("broken").removals[0].what == matrix_shape(LARGE)


@pytest.fixture
def judged(adapter: VulkanAdapter, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Verdicts on the best adapter of Vulkan hold in this process."""
    monkeypatch.setattr(opened, "_open", {})
    yield
    found.cache_clear()


def keep(adapter: VulkanAdapter, removed: str) -> None:
    verdict.keep(replace(NOTHING, identity=adapter.identity, code=verdict.emitters(), findings=(
        Finding("a probe", "it is wrong", (removed,)),)))


def test_a_verdict_holds_where_a_device_is_opened(adapter: VulkanAdapter, judged: None) -> None:
    keep(adapter, SUBGROUP_OPERATIONS)
    gpu = driver("vulkan").opened("vulkan:0")
    assert not gpu.limits.subgroup_operations and adapter.limits.subgroup_operations
    assert SUBGROUP_OPERATIONS in [each.what for each in gpu.device.removals]


def test_a_clock_that_is_removed_times_nothing(adapter: VulkanAdapter, judged: None) -> None:
    keep(adapter, TIMES)
    gpu = driver("vulkan").opened("vulkan:0")
    gpu.record([]).close()
    with pytest.raises(DeviceError, match="nothing can be timed on .*: The device's clock can"):
        gpu.record([], timed=True)


def test_a_device_that_is_removed_is_listed_and_not_used(
        adapter: VulkanAdapter, judged: None) -> None:
    keep(adapter, DEVICE)
    (listed, *_) = driver("vulkan").found()
    assert listed.id == "vulkan:0" and chosen("auto") != "vulkan:0"
    with pytest.raises(DeviceError, match="is not used: The device cannot .* .a probe: it is wr"):
        driver("vulkan").opened("vulkan:0")
