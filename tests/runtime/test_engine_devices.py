"""Engine files hold code for GPUs, too: for any of them, or for one with all that it can do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from webgpu_devices import plain_webgpu, webgpu  # noqa: F401

import smalti
from smalti.codegen.gpu.target import LEAST
from smalti.errors import EngineError, InputError
from smalti.graph import Graph, evaluate
from smalti.runtime import compile_graph, engine
from smalti.runtime.cpu.adapter import available_levels
from smalti.runtime.drivers import driver_of
from smalti.runtime.engine_file import EngineFile
from smalti.runtime.vulkan import VulkanAdapter
from smalti.runtime.webgpu import WebGpu
from smalti.schedule.group import GroupLimits, MatrixShape

RNG = np.random.default_rng(3)
WEIGHTS = {"w": RNG.standard_normal((24, 16, 3, 3), np.float32)}
INPUTS = {"x": RNG.standard_normal((1, 16, 6, 7), np.float32)}
LEVEL = available_levels()[:1]
WHOLE = GroupLimits(shared_bytes=64 << 10, invocations=1024, subgroup_min=32, subgroup_max=32,
                    subgroup_operations=True, f16=True, storage16=True, bindings=16,
                    matrices=(MatrixShape(16, 16, 16, "f16", "f32"),))


def graph() -> Graph:
    g = Graph("anywhere")
    x = g.apply("conv", g.input("x", (1, 16, 6, 7)), g.parameter("w", (24, 16, 3, 3)),
                pads=(1, 1, 1, 1))
    g.output("y", g.apply("softmax", g.apply("silu", x), axis=1))
    return g


@pytest.fixture
def device(adapter: VulkanAdapter) -> str:
    """The id of a device of Vulkan."""
    return "vulkan:0"


def test_a_file_of_the_cpu_holds_code_that_runs_on_any_gpu(tmp_path: Path, device: str) -> None:
    path = tmp_path / "any.smalti"
    compile_graph(graph(), threads=1).save(path, targets=(*LEVEL, "vulkan", "wgpu"),
                                           weights=WEIGHTS, with_weights=True)
    file = EngineFile(path)
    assert file.targets == (*LEVEL, "spirv", "wgsl")
    assert file.module("spirv").limits == file.module("wgsl").limits == LEAST
    wanted = evaluate(graph(), INPUTS, WEIGHTS)["y"]
    for asked in (device, "cpu"):
        program = smalti.load(path, device=asked)
        assert program.device == asked and program.bound
        np.testing.assert_allclose(program.run(INPUTS)["y"], wanted, rtol=1e-4, atol=1e-6)
    assert smalti.load(path).device == "cpu", "what computes on the CPU is never the fastest"


def test_code_for_any_gpu_runs_through_wgpu(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, webgpu: WebGpu,  # noqa: F811
        plain_webgpu: WebGpu) -> None:  # noqa: F811
    """Devices without immediates, which are younger than WGSL, have a target of their own."""
    wanted = evaluate(graph(), INPUTS, WEIGHTS)["y"]
    driver = driver_of("wgpu:0")

    def saved(target: str) -> Path:
        path = tmp_path / f"{target}.smalti"
        compile_graph(graph(), threads=1).save(path, targets=[target], weights=WEIGHTS,
                                               with_weights=True)
        return path

    for gpu, target in ((webgpu, "wgpu"), (plain_webgpu, "wgsl without immediates")):
        here = replace(driver, opened=lambda device, gpu=gpu: gpu)
        monkeypatch.setattr(engine, "driver_of", lambda device, here=here: here)
        program = smalti.load(saved(target), device="wgpu:0")
        np.testing.assert_allclose(program.run(INPUTS)["y"], wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(EngineError, match="compile --target 'wgsl without immediates'`"):
        smalti.load(tmp_path / "wgpu.smalti", device="wgpu:0")


def test_a_file_of_a_gpu_has_all_that_it_can_do_and_code_for_the_cpu(
        tmp_path: Path, device: str) -> None:
    path = tmp_path / "own.smalti"
    program = compile_graph(graph(), device=device, precision="f32")
    program.bind(WEIGHTS)
    program.save(path, targets=("vulkan", *LEVEL))
    file = EngineFile(path)
    assert file.module("spirv").limits == program.gpu.limits
    again = smalti.load(path, device=device)
    again.bind(WEIGHTS)
    assert again.run(INPUTS)["y"].tobytes() == program.run(INPUTS)["y"].tobytes()
    native = smalti.load(path, device="cpu")
    native.bind(WEIGHTS)
    np.testing.assert_allclose(native.run(INPUTS)["y"], again.run(INPUTS)["y"], rtol=1e-4,
                               atol=1e-6)


def test_code_for_a_device_that_can_do_more_is_refused(tmp_path: Path, device: str,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "more.smalti"
    program = compile_graph(graph(), device=device, precision="f32")
    program.save(path)
    less = replace(program.gpu.limits, shared_bytes=program.gpu.limits.shared_bytes - 1)
    monkeypatch.setattr(program.gpu, "limits", less)
    with pytest.raises(EngineError, match="spirv was made for a device that can do more than .*"
                                          "--target vulkan.*recompile=True"):
        smalti.load(path, device=device)
    monkeypatch.setattr(engine, "chosen", lambda asked: device if asked == "auto" else asked)
    with pytest.raises(EngineError, match="holds code for spirv, and .* has"):
        smalti.load(path)
    assert smalti.load(path, device=device, recompile=True).device == device


def test_a_device_that_the_file_has_no_code_for_is_told_what_there_is(tmp_path: Path,
                                                                      device: str) -> None:
    path = tmp_path / "cpu.smalti"
    compile_graph(graph(), threads=1).save(path, targets=LEVEL)
    with pytest.raises(EngineError, match=f"holds code for {LEVEL[0]}, and {device} runs spirv"):
        smalti.load(path, device=device)
    with pytest.raises(InputError, match="no device is named 'vulkan:99'"):
        smalti.load(path, device="vulkan:99")


def test_a_precision_that_a_target_lacks_is_refused_by_name(tmp_path: Path) -> None:
    program = compile_graph(graph(), threads=1, precision="bf16")
    with pytest.raises(InputError, match="any device of vulkan does not store 16 bits"):
        program.save(tmp_path / "a.smalti", targets=("vulkan",))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("less", [
    {"shared_bytes": 1}, {"invocations": 512}, {"f16": False}, {"subgroup_operations": False},
    {"subgroup_max": 64}, {"matrices": ()}, {"grid": (65535, 65535, 1)}, {"bindings": 8},
    {"offset_alignment": 512}])
def test_limits_cover_what_has_no_more(less: dict) -> None:
    assert WHOLE.covers(WHOLE) and WHOLE.covers(GroupLimits())
    assert not replace(WHOLE, **less).covers(WHOLE)
    assert replace(WHOLE, units=7, registers=64, unified=True).covers(WHOLE)
