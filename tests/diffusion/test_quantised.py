"""A model in GGUF: its linear layers stay quantised in memory, and compute what floats would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from tiny_adapters import write_adapter

from smalti import checkpoint
from smalti.checkpoint import convert
from smalti.checkpoint.adapters import Adapted, AdapterFile, WeightedAdapter
from smalti.checkpoint.blocks import FORMATS
from smalti.codegen.cpu import target
from smalti.codegen.levels import level
from smalti.diffusion import rounding
from smalti.diffusion.submodels import Submodels
from smalti.graph.quantised import FORMATS as HELD
from smalti.graph.quantised import quantised
from smalti.runtime import compile_graph
from smalti.schedule import ContractionSchedule, parse

SHAPE = (1, 4, 4, 77)
HELD_AS = {"q8_0": "q8", "q4_k": "q4_min"}
WIDE = replace(tiny.FAMILIES["sd1"], denoiser=replace(
    tiny.UNET, block_channels=(64, 128), context_dim=64))


def inputs() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {"latent": random.standard_normal((1, 4, 4, 4), np.float32),
            "timesteps": np.full(1, 500, np.float32),
            "context": random.standard_normal((1, 77, 64), np.float32)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_whole(tmp_path_factory.mktemp("sd1") / "whole.safetensors", WIDE)


def converted(whole: Path, folder: Path, precision: str) -> Path:
    container = ".safetensors" if precision == "fp8" else ".gguf"
    path = folder / f"{precision}{container}"
    with open(path, "wb") as stream:
        list(convert.plan(whole, container, precision).write(stream))
    return path


@pytest.mark.parametrize("precision", ["q8_0", "q4_k", *(
    pytest.param(name, marks=pytest.mark.sweep) for name in ("q6_k", "q5_1", "q4_0", "fp8"))])
def test_a_unet_runs_from_quantised_memory(whole: Path, tmp_path: Path, precision: str) -> None:
    opened = checkpoint.load(converted(whole, tmp_path, precision))
    parts = Submodels(opened, threads=1)
    graph = parts.graph("unet", SHAPE)
    program = parts.bound("unet", SHAPE)
    halves = {slot.name: "f16" for slot in program.module.slots if slot.dtype == "f16"}
    plain = compile_graph(graph, threads=1, weights={} if precision == "fp8" else halves)
    plain.bind(lambda name: opened.read(name).astype(
        np.float16 if name in halves else np.float32))
    found = parts.run("unet", SHAPE, **inputs())
    for name, expected in plain.run(inputs()).items():
        np.testing.assert_array_equal(found[name], expected)
    saved = 0.0
    for slot in program.module.slots:
        if slot.dtype in HELD:
            assert FORMATS[opened.dtype(slot.name)].held == slot.dtype
            share = HELD[slot.dtype].element_bytes / 4
            saved += slot.bytes / share - slot.bytes
    if precision == "fp8":
        assert program.weights_bytes < 0.6 * plain.weights_bytes
    else:
        assert saved > 0.25 * plain.weights_bytes
        assert program.weights_bytes == plain.weights_bytes - saved


@pytest.mark.sweep
@pytest.mark.parametrize("precision", HELD_AS)
def test_blocks_of_a_file_are_multiplied_as_integers(whole: Path, tmp_path: Path,
                                                     precision: str) -> None:
    """Where the CPU multiplies bytes; weights keep the scales of their blocks."""
    opened = checkpoint.load(converted(whole, tmp_path, precision))
    large = {**inputs(), "latent": np.random.default_rng(2).standard_normal(
        (1, 4, 16, 16), np.float32)}
    found, shape = {}, (1, 16, 16, 77)
    for how in ("f32", "int8"):
        parts = Submodels(opened, how, threads=1)
        found[how] = parts.run("unet", shape, **large)
    program = parts.bound("unet", shape)
    schedules = [parse(region.schedule) for region in program.module.regions if region.schedule]
    by_group = [s for s in schedules if isinstance(s, ContractionSchedule) and s.by_group]
    assert bool(by_group) == (level(program.module.target).integers == "quads")
    assert not by_group or {s.weights for s in by_group} == {
        HELD_AS[precision]} and HELD_AS[precision] in program.weight_dtypes.values()
    for name, expected in found["f32"].items():
        assert np.linalg.norm(found["int8"][name] - expected) < 0.05 * np.linalg.norm(expected)


@pytest.mark.sweep
@pytest.mark.parametrize("stands", [True, False])
def test_windows_are_held_in_8_bits_beside_integers(
        whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands: bool) -> None:
    """Where no bytes are multiplied; where they do not stand it, as the file has them. They compute
    what these codes would as f32."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    monkeypatch.setenv("SMALTI_TARGET", "avx2")
    monkeypatch.setattr(rounding, "SIDE", 16)
    monkeypatch.setattr(rounding, "SHARED_ERROR_MAX", 0.05 if stands else 0.0)
    monkeypatch.setattr(rounding, "ERROR_MAX", 0.02 if stands else 0.0)
    monkeypatch.setattr(rounding, "STEP_ERROR_MAX", 1.0)
    opened = checkpoint.load(whole)
    parts, plain = Submodels(opened, "int8", threads=1), Submodels(opened, "f32", threads=1)
    found, truth = (each.run("unet", SHAPE, **inputs()) for each in (parts, plain))
    for name, expected in truth.items():
        assert np.linalg.norm(found[name] - expected) < 0.03 * np.linalg.norm(expected)
    held = parts.stored("unet")
    dtypes = parts.bound("unet", SHAPE).weight_dtypes
    assert {name for name, dtype in dtypes.items() if dtype == "q8"} == held
    assert not plain.stored("unet") and bool(held) == stands
    bytes = sum(slot.bytes for slot in parts.bound("unet", SHAPE).module.slots
                if slot.name in held)
    sizes = sum(value.type.size for name, value in parts.graph("unet", SHAPE).parameters.items()
                if name in held)
    assert bytes == sizes * 9 // 8  # all have whole panels of output channels
    if stands:
        codes = {name: quantised(opened.read(name), "q8").floats() for name in held}
        again = compile_graph(parts.graph("unet", SHAPE), precision="int8", threads=1,
                              weights={name: dtype for name, dtype in parts.dtypes(parts.graph(
                                  "unet", SHAPE)).items() if name not in held},
                              kept=parts.kept("unet"))
        again.bind(lambda name: codes[name] if name in codes else opened.given(name))
        for name, expected in again.run(inputs()).items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


def test_adapters_come_and_go_on_four_bits(whole: Path, tmp_path: Path) -> None:
    """What they change is rounded to 8 bits; what they leave has 4."""
    opened = checkpoint.load(converted(whole, tmp_path, "q4_k"))
    adapter = AdapterFile.open(write_adapter(tmp_path / "style.safetensors", WIDE))
    parts = Submodels(opened, threads=1)
    before = parts.run("unet", SHAPE, **inputs())
    changed = parts.adapted([WeightedAdapter(adapter, 0.5)])
    parts = parts.using(changed)
    slots = {slot.name: slot.dtype for slot in parts.bound("unet", SHAPE).module.slots}
    rounded = {name for name, dtype in slots.items() if dtype == "q8_min"}
    assert rounded and rounded <= changed.changed
    found = parts.run("unet", SHAPE, **inputs())

    def floats(name: str) -> np.ndarray:
        values = changed.floats(name)
        if opened.dtype(name) == "Q4_K" and name in changed.changed:
            values = quantised(values, "q8_min").floats()
        return values.astype(np.float16) if slots.get(name) == "f16" else values

    plain = compile_graph(parts.graph("unet", SHAPE), threads=1)
    plain.bind(floats)
    for name, expected in plain.run(inputs()).items():
        np.testing.assert_array_equal(found[name], expected)
        assert not np.array_equal(found[name], before[name])
    parts = parts.using(parts.adapted([]))
    after = parts.run("unet", SHAPE, **inputs())
    assert all(np.array_equal(after[name], before[name]) for name in before)


@pytest.mark.sweep
def test_an_adapter_on_four_bits_costs_what_it_changes(
        whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of other weights are not lowered again, other weights not read again."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / "cache"))
    opened = checkpoint.load(converted(whole, tmp_path, "q4_k"))
    adapter = AdapterFile.open(write_adapter(tmp_path / "style.safetensors", WIDE))
    plain = Submodels(opened, threads=1)
    before = plain.run("unet", SHAPE, **inputs())
    lowered, read = [], []
    lower, given = target.lower, Adapted.given
    monkeypatch.setattr(target, "lower", lambda kernel, *rest: (
        lowered.append(kernel), lower(kernel, *rest))[1])
    monkeypatch.setattr(Adapted, "given", lambda self, name: (
        read.append(name), given(self, name))[1])

    changed = plain.adapted([WeightedAdapter(adapter, 0.5)])
    parts = plain.using(changed)
    program = parts.bound("unet", SHAPE)
    assert 0 < len(lowered) < len(program.module.kernels)
    assert all("q8_min" in {buffer.dtype for buffer in kernel.buffers} for kernel in lowered)
    assert read and set(read) <= changed.changed
    found = parts.run("unet", SHAPE, **inputs())
    fresh = Submodels(opened, threads=1).using(changed).run("unet", SHAPE, **inputs())
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / "another"))
    anew = Submodels(opened, threads=1).using(changed).run("unet", SHAPE, **inputs())
    for name, expected in anew.items():
        np.testing.assert_array_equal(found[name], expected)
        np.testing.assert_array_equal(fresh[name], expected)
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / "cache"))
    lowered.clear()
    read.clear()
    after = parts.using(parts.adapted([])).run("unet", SHAPE, **inputs())
    assert not lowered and set(read) <= changed.changed
    assert all(np.array_equal(after[name], before[name]) for name in before)


def test_an_adapter_on_eight_bits_compiles_nothing(
        whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = checkpoint.load(converted(whole, tmp_path, "q8_0"))
    adapter = AdapterFile.open(write_adapter(tmp_path / "style.safetensors", WIDE))
    plain = Submodels(opened, threads=1)
    program = plain.bound("unet", SHAPE)
    read, given = [], Adapted.given
    monkeypatch.setattr(Adapted, "given", lambda self, name: (
        read.append(name), given(self, name))[1])
    changed = plain.adapted([WeightedAdapter(adapter, 0.5)])
    assert plain.using(changed).bound("unet", SHAPE) is program
    assert read and set(read) <= changed.changed
