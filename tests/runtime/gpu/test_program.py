"""Programs of devices, on the one that numpy interprets: memory, weights, calls of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from interpreted_gpu import InterpretedGpu

from smalti import machine
from smalti.compiler.encode import from_bytes, to_bytes
from smalti.compiler.module import HostCall, Launch
from smalti.compiler.select import Selection
from smalti.compiler.verify import verify
from smalti.errors import (
    DeviceLostError,
    DeviceMemoryError,
    InputError,
    NumericsError,
    UnsupportedError,
    VerificationError,
)
from smalti.graph import Graph, evaluate
from smalti.runtime import choice
from smalti.runtime.device import Device
from smalti.runtime.gpu import opened
from smalti.runtime.gpu.compilation import compile_for
from smalti.runtime.gpu.interface import Copy
from smalti.runtime.gpu.program import SMALL_BYTES
from smalti.runtime.vulkan import driver

RNG = np.random.default_rng(3)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def scaled(shape: tuple[int, ...] = (2, 3, 8, 4), width: int = 3) -> Graph:
    """y = tanh(x * w + 1)."""
    g = Graph("scaled")
    x = g.input("x", shape)
    g.output("y", g.apply("tanh", x * g.parameter("w", (width, 1, 1)) + 1.0))
    return g


def test_what_is_computed_is_what_is_meant() -> None:
    program = compile_for(InterpretedGpu(), scaled(), precision="f32")
    x, w = numbers(2, 3, 8, 4), numbers(3, 1, 1)
    assert not program.bound
    with pytest.raises(InputError, match="no weights are bound"):
        program.run({"x": x})
    program.bind({"w": w})
    for _ in range(2):
        found = program.run({"x": x})["y"]
        np.testing.assert_allclose(found, np.tanh(x * w + 1), atol=1e-6)
    with pytest.raises(InputError, match=r"shape \[3\]"):
        program.run({"x": numbers(3)})
    with pytest.raises(InputError, match="is missing: the inputs of scaled"):
        program.run({})


def test_launches_are_recorded_once() -> None:
    gpu = InterpretedGpu()
    program = compile_for(gpu, scaled(), precision="f32")
    program.bind({"w": numbers(3, 1, 1)})
    program.run({"x": numbers(2, 3, 8, 4)})
    parts = next(iter(part for part in program._parts.values() if part))
    before = gpu.launched
    program.run({"x": numbers(2, 3, 8, 4)})
    assert gpu.launched - before == len(program.module.launches)
    assert next(iter(part for part in program._parts.values() if part)) is parts


def test_submissions_are_told_how_long_launches_may_take() -> None:
    g = Graph("product")
    g.output("y", g.apply("mat_mul", g.input("x", (64, 80)), g.parameter("w", (80, 96))))
    program = compile_for(InterpretedGpu(), g, precision="f32")
    program.bind({"w": np.ones((80, 96), np.float32)})
    program.run({"x": np.ones((64, 80), np.float32)})
    launches = [launch for parts in program._parts.values() for part in parts
                for launch in part.recording.launches]
    assert sum(launch.seconds for launch in launches) == pytest.approx(2 * 64 * 80 * 96 / 100e9)


def branching() -> Graph:
    """Six values of 24 KiB, all of which live until the last one is there."""
    g = Graph("branching")
    x = g.input("x", (6, 1024))
    found = [g.apply("softmax", x * float(n), axis=-1) for n in range(1, 6)]
    g.output("y", sum(found[1:], found[0]))
    g.output("z", found[0] - found[4])
    return g


@pytest.mark.parametrize("kind", ["interpreted", "vulkan", "staged"])
def test_what_lies_between_kernels_may_be_larger_than_a_buffer(
        kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = InterpretedGpu() if kind == "interpreted" else request.getfixturevalue(kind)
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, buffer_bytes=40_000))
    asked, buffer = [], gpu.buffer
    monkeypatch.setattr(gpu, "buffer", lambda bytes, **more: asked.append(bytes) or buffer(
        bytes, **more))
    program = compile_for(gpu, branching(), precision="f32")
    x = np.random.default_rng(5).standard_normal((6, 1024)).astype(np.float32)
    expected = evaluate(branching(), {"x": x}, {})
    for _ in range(3):
        for name, found in program.run({"x": x}).items():
            np.testing.assert_allclose(found, expected[name], atol=1e-6)
    assert program.arena_bytes > 80_000 and len(program._arena) >= 3
    assert max(asked) <= 40_000 and all(each.bytes % 256 == 0 for each in program._arena[:-1])
    assert program.first_nonfinite({"x": x}) is None
    module = from_bytes(to_bytes(program.module))
    assert module.segment_bytes == 39_936
    module.limits = replace(module.limits, buffer_bytes=30_000)
    with pytest.raises(VerificationError, match="24576 bytes at .* lie in two segments of 29952"):
        verify(module)


def test_a_value_that_is_larger_than_a_buffer_is_named() -> None:
    gpu = InterpretedGpu()
    gpu.limits = replace(gpu.limits, buffer_bytes=20_000)
    with pytest.raises(UnsupportedError, match="buffers of 19,968 bytes.*smaller picture") as error:
        compile_for(gpu, branching(), precision="f32")
    assert "24,704 bytes in one value" in str(error.value)


def test_other_weights_and_some_of_them() -> None:
    g = Graph("two")
    x = g.input("x", (4, 6))
    g.output("y", x * g.parameter("a", (6,)) + g.parameter("b", (6,)))
    program = compile_for(InterpretedGpu(), g, precision="f32")
    x, a, b, c = numbers(4, 6), numbers(6), numbers(6), numbers(6)
    program.bind({"a": a, "b": b})
    np.testing.assert_allclose(program.run({"x": x})["y"], x * a + b, rtol=1e-6)
    program.bind({"b": c, "a": c}, only=["b"])
    np.testing.assert_allclose(program.run({"x": x})["y"], x * a + c, rtol=1e-6)
    with pytest.raises(NumericsError, match="'a'"):
        program.bind({"a": a * np.nan, "b": b})
    with pytest.raises(InputError, match="'b' is missing"):
        program.bind({"a": a})


def test_two_shapes_share_weights_until_one_changes() -> None:
    gpu = InterpretedGpu()
    one, two = (compile_for(gpu, scaled(shape), precision="f32")
                for shape in ((2, 3, 8, 4), (1, 3, 2, 2)))
    w, v, x = numbers(3, 1, 1), numbers(3, 1, 1), numbers(1, 3, 2, 2)
    one.bind({"w": w})
    two.bind({"w": v}, like=one)  # the very same weights, by promise: they are not read
    assert two._weights[0].buffer is one._weights[0].buffer
    np.testing.assert_allclose(two.run({"x": x})["y"], np.tanh(x * w + 1), atol=1e-6)
    two.bind({"w": v}, only=["w"])
    np.testing.assert_allclose(two.run({"x": x})["y"], np.tanh(x * v + 1), atol=1e-6)
    x = numbers(2, 3, 8, 4)
    np.testing.assert_allclose(one.run({"x": x})["y"], np.tanh(x * w + 1), atol=1e-6)


def test_weights_that_differ_are_not_shared() -> None:
    gpu = InterpretedGpu()
    one, two = (compile_for(gpu, scaled(shape), precision="f32")
                for shape in ((2, 3, 8, 4), (1, 3, 2, 2)))
    w, v, x = numbers(3, 1, 1), numbers(3, 1, 1), numbers(1, 3, 2, 2)
    one.bind({"w": w})
    two.bind({"w": v}, like=one, differing=["w"])
    np.testing.assert_allclose(two.run({"x": x})["y"], np.tanh(x * v + 1), atol=1e-6)


def test_what_depends_on_weights_or_held_inputs_is_computed_when_they_change() -> None:
    g = Graph("held")
    x, context = g.input("x", (4, 8)), g.input("context", (4, 8))
    known = g.apply("tanh", context * g.apply("exp", g.parameter("w", (8,))))
    g.output("y", g.apply("relu", x + known))
    gpu = InterpretedGpu()
    program = compile_for(gpu, g, precision="f32", held=["context"])
    w, x, context = numbers(8), numbers(4, 8), numbers(4, 8)
    program.bind({"w": w})
    launched = []
    for given in (context, context, 2 * context):
        before = gpu.launched
        found = program.run({"x": x, "context": given})["y"]
        launched.append(gpu.launched - before)
        np.testing.assert_allclose(found, np.maximum(x + np.tanh(given * np.exp(w)), 0), atol=1e-6)
    assert launched[0] > launched[2] > launched[1] == 1


def test_the_host_computes_what_no_kernel_does() -> None:
    g = Graph("hosted")
    x = g.input("x", (3, 8))
    order = g.apply("cum_sum", g.apply("exp", x), axis=1)
    g.output("y", g.apply("tanh", order))
    program = compile_for(InterpretedGpu(), g, precision="f32")
    x = numbers(3, 8)
    np.testing.assert_allclose(program.run({"x": x})["y"], np.tanh(np.cumsum(np.exp(x), 1)),
                               atol=1e-6)
    assert "host" in program.explain() and "1 operations on the host" in program.explain()


def test_rows_are_looked_up_by_64_bit_numbers() -> None:
    g = Graph("rows")
    g.output("y", g.apply("gather", g.parameter("table", (5, 4)), g.input("i", (3,), "i64")) * 2.0)
    program = compile_for(InterpretedGpu(), g, precision="f32")
    table, i = numbers(5, 4), np.array([4, 0, 2])
    program.bind({"table": table})
    np.testing.assert_array_equal(program.run({"i": i})["y"], 2 * table[i])
    with pytest.raises(InputError, match="rows 0 to 4"):
        program.run({"i": np.array([5, 0, 0])})


def test_truth_values_come_back_as_such() -> None:
    g = Graph("asked")
    x = g.input("x", (3, 5))
    g.output("y", g.apply("less", x, g.constant(np.float32(0))))
    found = compile_for(InterpretedGpu(), g, precision="f32").run({"x": (x := numbers(3, 5))})["y"]
    assert found.dtype == bool and (found == (x < 0)).all()


@pytest.mark.parametrize("precision, error", [("f32", 1e-6), ("f16", 1e-3), ("bf16", 8e-3)])
def test_halves_are_how_values_are_stored(precision: str, error: float) -> None:
    g = Graph("wide")
    x = g.apply("cum_sum", g.apply("tanh", g.input("x", (64, 512))), axis=0)
    x = g.apply("tanh", x)
    for k in range(5):  # too many readers to compute it again
        g.output(f"y{k}", g.apply("exp", x * float(k + 1)))
    program = compile_for(InterpretedGpu(), g, precision=precision)
    x = numbers(64, 512)
    found, expected = program.run({"x": x})["y1"], np.exp(2 * np.tanh(np.cumsum(np.tanh(x), 0)))
    off = np.abs(found / expected - 1).max()
    assert off < 4 * error and (off > 1e-5) == (precision != "f32")
    stored = {place.dtype for region in program.module.regions for place in region.results}
    assert stored == {"f32", precision}


def test_the_first_kernel_that_makes_nan_is_named() -> None:
    g = Graph("bad")
    with g.scope("one"):
        x = g.apply("log", g.input("x", (4, 4)))
        x = g.apply("cum_sum", x, axis=1)
    with g.scope("two"):
        g.output("y", x + 1.0)
    program = compile_for(InterpretedGpu(), g, precision="f32")
    with pytest.raises(NumericsError, match="first in the map of one"):
        program.run_checked({"x": np.full((4, 4), -1, np.float32)})


class Small(InterpretedGpu):
    """A device that has few bytes for weights."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def buffer(self, bytes: int, *, kind: str = "device"):
        if kind == "device":
            if bytes > self.left:
                raise DeviceMemoryError(f"{bytes} of {self.left} bytes")
            self.left -= bytes
        return super().buffer(bytes, kind=kind)

    def free_bytes(self) -> int:
        return self.left


def large(count: int, size: int = SMALL_BYTES // 4) -> Graph:
    """y = softmax(softmax(x * w0) * w1) ..., with weights that are no small ones."""
    g = Graph("large")
    value = g.input("x", (1, size))
    for number in range(count):
        value = g.apply("softmax", value * g.parameter(f"w{number}", (size,)), axis=1)
    g.output("y", value)
    return g


@pytest.mark.parametrize("left, most, kinds, stage", [
    (3 << 20, None, ["device", "device"], False), (6 << 20, SMALL_BYTES, ["device", "host"], True),
    (3 << 19, None, ["device", "host"], False),
])
def test_weights_that_do_not_fit_stay_in_main_memory(
        left: int, most: int | None, kinds: list[str], stage: bool) -> None:
    gpu, graph = Small(left), large(2)
    program = compile_for(gpu, graph, precision="f32")
    gpu.left += program.arena_bytes
    weights = {name: numbers(SMALL_BYTES // 4) for name in ("w0", "w1")}
    program.bind(weights, bytes_max=most)
    assert sorted(held.buffer.kind for held in program._weights) == kinds
    assert (program._stage is not None) == stage
    x = numbers(1, SMALL_BYTES // 4)
    expected = evaluate(graph, {"x": x}, weights)["y"]
    for _ in range(2):
        np.testing.assert_allclose(program.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", ["interpreted", "staged"])
def test_streamed_weights_give_the_same_bytes(kind: str, request: pytest.FixtureRequest) -> None:
    gpu = InterpretedGpu() if kind == "interpreted" else request.getfixturevalue(kind)
    graph, weights = large(3), {f"w{n}": numbers(SMALL_BYTES // 4) for n in range(3)}
    found, x = [], numbers(1, SMALL_BYTES // 4)
    for most in (None, SMALL_BYTES, 0):
        program = compile_for(gpu, graph, precision="f32")
        program.bind(weights, bytes_max=most)
        found.append([program.run({"x": x})["y"].tobytes() for _ in range(2)])
        (part,) = (part for parts in program._parts.values() for part in parts)
        copies = [each for each in part.recording.launches if isinstance(each, Copy)]
        outside = {held.buffer for held in program._weights if held.outside}
        assert {each.source for each in copies} == outside
        assert len(outside) == {None: 0, SMALL_BYTES: 2, 0: 3}[most]
        seconds = program.profile({"x": x})
        assert seconds.shape == (len(program.module.regions),)
    assert len({each for pair in found for each in pair}) == 1


def test_memory_is_given_back_and_taken_again() -> None:
    program = compile_for(InterpretedGpu(), scaled(), precision="f32")
    x, w = numbers(2, 3, 8, 4), numbers(3, 1, 1)
    program.bind({"w": w})
    before = program.run({"x": x})["y"]
    program.release()
    assert not program.bound
    program.bind({"w": w})
    assert program.run({"x": x})["y"].tobytes() == before.tobytes()


def test_times_of_kernels_are_explained() -> None:
    program = compile_for(InterpretedGpu(), scaled(), precision="f32")
    program.bind({"w": numbers(3, 1, 1)})
    seconds = program.profile({"x": numbers(2, 3, 8, 4)})
    assert seconds.shape == (1,) and seconds[0] > 0
    assert "ms" in program.explain() and "expected" not in program.explain()


class Known(InterpretedGpu):
    """A device whose name the library has."""

    def __init__(self) -> None:
        super().__init__()
        self.device = replace(self.device, name="NVIDIA GeForce RTX 4060/PCIe/SSE2",
                              kind="discrete")


def test_a_known_device_is_expected_to_take_as_long_as_its_vendors_library() -> None:
    g = Graph("product")
    x = g.apply("mat_mul", g.input("x", (64, 80)), g.parameter("w", (80, 96)))
    g.output("y", g.apply("softmax", x, axis=1))
    program = compile_for(Known(), g, precision="f32")
    program.bind({"w": np.ones((80, 96), np.float32)})
    expected = program._expected()
    line = machine.device("rtx_4060")
    assert sorted(expected) == list(range(len(program.module.regions)))
    assert expected[0].seconds == pytest.approx(
        1e-6 * machine.estimate(replace(line, matrix={}), "mat_mul", m=64, n=96, k=80).microseconds)
    text = program.explain(all=True)
    assert text.count(" ms expected, ") == len(expected) and "profiled" not in text
    program.profile({"x": np.ones((64, 80), np.float32)})
    assert "vendor's library: " in program.explain()
    assert "; profiled: 0.00" in program.explain()
    program.run({"x": np.ones((64, 80), np.float32)})
    launches = [launch for parts in program._parts.values() for part in parts
                for launch in part.recording.launches]
    regions = program.module.regions
    assert sum(launch.seconds for launch in launches) == pytest.approx(10 * sum(
        max(region.flops / line.vector["f32"], region.bytes / line.bandwidth)
        for region in regions))


def test_precisions_that_are_not_there() -> None:
    with pytest.raises(InputError, match="f12"):
        compile_for(InterpretedGpu(), scaled(), precision="f12")
    with pytest.raises(InputError, match="no input"):
        compile_for(InterpretedGpu(), scaled(), held=["z"])


class Failing(InterpretedGpu):
    """A device that stops working at a launch."""

    def run(self, recording) -> None:
        raise DeviceLostError("interpreter was lost; open it anew")


def test_a_lost_device_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Failing()
    monkeypatch.setitem(opened._open, "vulkan:7", failing)
    assert driver.opened("vulkan:7") is failing
    program = compile_for(failing, scaled(), precision="f32")
    program.bind({"w": numbers(3, 1, 1)})
    assert not program.lost
    with pytest.raises(DeviceLostError):
        program.run({"x": numbers(2, 3, 8, 4)})
    assert program.lost
    fresh = InterpretedGpu()
    monkeypatch.setattr(driver, "adapter_of", lambda number: None)  # the driver is asked again
    monkeypatch.setattr(driver, "checked", lambda adapter: adapter)
    monkeypatch.setattr(driver, "usable", lambda adapter: adapter)
    monkeypatch.setattr(driver, "VulkanGpu", lambda adapter, number: fresh)
    assert driver.opened("vulkan:7") is fresh


@pytest.mark.parametrize(("name", "kind", "units", "least", "most"), [
    ("NVIDIA GeForce RTX 4060 Laptop GPU", "discrete", 24, 1e13, 1e14),
    ("AMD Radeon RX 7800 XT (RADV NAVI32)", "discrete", 60, 5e13, 1e14),
    ("Intel(R) Arc(tm) A770 Graphics (DG2)", "discrete", 1, 1e14, 2e14),
    ("Apple M2 Pro", "integrated", 1, 5e12, 1e13), ("NVIDIA H200", "discrete", 132, 9e14, 1e15),
    ("NVIDIA GeForce RTX 9090", "discrete", 200, 5e13, 1e14),
    ("Intel(R) UHD Graphics 630 (CFL GT2)", "integrated", 1, 5e11, 2e12),
    ("llvmpipe (LLVM 15.0.6, 256 bits)", "cpu", 1, 0, 0)])
def test_names_of_drivers_have_rates(name: str, kind: str, units: int, least: float,
                                     most: float) -> None:
    found = Device("vulkan:0", name, kind, 8 << 30, (), units, matrices=("16x16x16 f16 to f32",))
    assert least <= choice.rate(found) <= most


def test_a_result_that_lies_over_its_operand_is_known_to_the_driver() -> None:
    g = Graph("over")
    x = g.apply("cum_sum", g.input("x", (4, 8)), axis=1)
    g.output("y", g.apply("tanh", x))
    plan = compile_for(InterpretedGpu(), g, precision="f32").module
    (launch,) = [each for each in plan.launches if isinstance(each, Launch)]
    shader = plan.shaders[launch.function]
    assert launch.operands[0] == launch.operands[1]
    assert [(b.reads, b.writes) for b in shader.bindings] == [(True, True), (False, True)]


def mixed(width: int = 8) -> Graph:
    """A convolution, a depthwise one, what the host computes, a constant and a halved weight."""
    g = Graph("mixed")
    x = g.input("x", (1, 4, 6, 6))
    x = g.apply("conv", x, g.parameter("a", (width, 4, 3, 3)), pads=(1, 1, 1, 1))
    x = g.apply("conv", x, g.parameter("b", (width, 1, 3, 3)), group=width,
                pads=(1, 1, 1, 1))
    x = x * g.constant(np.linspace(1, 2, 36, dtype=np.float32).reshape(6, 6))
    g.output("y", g.apply("cum_sum", x, axis=1))
    return g


def test_a_second_start_lowers_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    weights = {"a": numbers(8, 4, 3, 3), "b": numbers(8, 1, 3, 3).astype(np.float16)}
    x = numbers(1, 4, 6, 6)

    def result(**options) -> bytes:
        program = compile_for(InterpretedGpu(), mixed(), precision="f32", **options)
        program.bind(weights)
        return program.run({"x": x})["y"].tobytes()

    expected = result(weights={"b": "f16"})
    plan = compile_for(InterpretedGpu(), mixed(), precision="f32", weights={"b": "f16"}).module
    assert any(isinstance(each, HostCall) for each in plan.launches)
    assert from_bytes(to_bytes(plan)) == plan

    def never(*_: object) -> None:
        raise AssertionError("lowered again")

    with monkeypatch.context() as patch:
        patch.setattr(Selection, "lowered", never)
        assert result(weights={"b": "f16"}) == expected
        for other in (lambda: result(), lambda: compile_for(
                InterpretedGpu(), mixed(), precision="f16", weights={"b": "f16"})):
            with pytest.raises(AssertionError, match="lowered again"):
                other()
    entries = sorted(tmp_path.rglob("*.entry"))
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-1])
    assert result(weights={"b": "f16"}) == expected


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: data[:9],
                                    lambda data: data.replace(b"launches", b"lunches")])
def test_a_damaged_plan_is_refused(damage: Callable[[bytes], bytes]) -> None:
    data = to_bytes(compile_for(InterpretedGpu(), scaled(), precision="f32").module)
    with pytest.raises(InputError, match="compile it again"):
        from_bytes(damage(data))
