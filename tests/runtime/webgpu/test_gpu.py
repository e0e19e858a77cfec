"""Programs through `wgpu`: memory, recordings, times, and everything that can go wrong."""

from __future__ import annotations

import _thread
import gc
import math
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gpu_devices import chain, filled, increment, uses_of_another
from webgpu_devices import plain_webgpu, webgpu  # noqa: F401

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import U32, GroupProgram
from smalti.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    InputError,
    VerificationError,
)
from smalti.runtime.gpu.interface import Copy, DeviceBuffer, Dispatch, Gpu, Recording
from smalti.runtime.gpu.pacing import SUBMISSION_SECONDS
from smalti.runtime.webgpu import WebGpu, adapters, open_device
from smalti.runtime.webgpu import library as wgpu_library
from smalti.runtime.webgpu import recording as web_recording


def busy(turns: int) -> GroupProgram:
    """A count to `turns` by many invocations."""
    b = Builder("busy", 64)
    y = b.binding("y", "u32", 64, "write")
    total = b.variable(1, type=U32)
    with b.loop(turns) as k:
        b.set(total, total * 1664525 + k)
    b.store(y, b.invocation, total)
    return b.finish((256, 1, 1))


def zeros(gpu: Gpu) -> DeviceBuffer:
    """Room for two times 100 numbers."""
    return filled(gpu, np.zeros(200, np.float32))


def recorded(gpu: Gpu, length: int, seconds: float = 0.0) -> tuple[Recording, DeviceBuffer]:
    """Launches that each add 1 to 100 numbers, and where these are."""
    arena = zeros(gpu)
    return gpu.record(chain(gpu.pipeline(increment(100)), arena, length, seconds)), arena


def numbers(gpu: Gpu, arena: DeviceBuffer, half: int) -> np.ndarray:
    """One half of the numbers."""
    return gpu.read(arena, 400 * half, 400).view(np.float32)


# ---------------------------------------------------------------------- memory


def test_memory_keeps_any_bytes(webgpu: WebGpu) -> None:  # noqa: F811
    rng = np.random.default_rng(0)
    expected = rng.integers(0, 256, 1003).astype(np.uint8)
    buffer = webgpu.buffer(1003)
    webgpu.write(buffer, 0, expected)
    for _ in range(20):
        start = int(rng.integers(0, 1003))
        count = int(rng.integers(0, 1004 - start))
        expected[start:start + count] = rng.integers(0, 256, count)
        webgpu.write(buffer, start, expected[start:start + count].copy())
        assert np.array_equal(webgpu.read(buffer, start, count), expected[start:start + count])
    assert np.array_equal(webgpu.read(buffer, 0, 1003), expected)


def test_what_is_long_is_copied_in_parts(webgpu: WebGpu,  # noqa: F811
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.runtime.webgpu.gpu.COPY_BYTES", 64)
    data = np.arange(1000, dtype=np.uint8)
    buffer = webgpu.buffer(1000)
    webgpu.write(buffer, 0, data)
    assert np.array_equal(webgpu.read(buffer, 3, 991), data[3:994])


def test_what_is_of_another_driver_is_an_input_error(webgpu: WebGpu) -> None:  # noqa: F811
    for refused in uses_of_another(webgpu):
        with pytest.raises(InputError, match="another device"):
            refused()


def test_memory_is_counted_and_given_back(webgpu: WebGpu) -> None:  # noqa: F811
    free = webgpu.free_bytes()
    closed, dropped = webgpu.buffer(1 << 20), webgpu.buffer(1 << 20, kind="host")
    assert webgpu.free_bytes() == free - (2 << 20)
    closed.close()
    closed.close()
    del dropped
    assert webgpu.free_bytes() == free


def test_too_much_memory_is_refused(webgpu: WebGpu,  # noqa: F811
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceMemoryError, match="holds 2147483632"):
        webgpu.buffer(1 << 31)
    monkeypatch.setattr(webgpu, "free_bytes", lambda: 100)
    with pytest.raises(DeviceMemoryError, match="101 bytes .* 100 of"):
        webgpu.buffer(101)


def test_accesses_outside_of_a_buffer_are_refused(webgpu: WebGpu) -> None:  # noqa: F811
    buffer = webgpu.buffer(100)
    with pytest.raises(ValueError, match="99 to 101"):
        webgpu.read(buffer, 99, 2)
    with pytest.raises(ValueError, match="96 to 104"):
        webgpu.write(buffer, 96, np.zeros(8, np.uint8))
    pipeline = webgpu.pipeline(increment(25))
    for offset in (4, 2):
        with pytest.raises(VerificationError, match=f"100 bytes from {offset} on"):
            webgpu.record([Dispatch(pipeline, ((buffer, 0), (buffer, offset)))])


# ---------------------------------------------------------------------- runs


def test_a_recording_runs_again_and_again(webgpu: WebGpu,  # noqa: F811
                                          plain_webgpu: WebGpu) -> None:  # noqa: F811
    for gpu in (webgpu, plain_webgpu):
        recording, arena = recorded(gpu, 30)
        for times in (1, 2, 3):
            gpu.run(recording)
            assert (numbers(gpu, arena, 0) == 30 * times).all()


class SlowWebGpu:
    """The native library, with launches of 20 ms for a work-group by its own clock."""

    def __init__(self, gpu: WebGpu, monkeypatch: pytest.MonkeyPatch) -> None:
        self._native, self.now = gpu.library.native, 0.0
        self.group_seconds, self.launched = 0.02, []
        monkeypatch.setattr(gpu, "library", gpu.library._replace(native=self))
        monkeypatch.setattr(web_recording, "perf_counter", lambda: self.now)

    def __getattr__(self, name: str) -> object:
        return getattr(self._native, name)

    def wgpuComputePassEncoderDispatchWorkgroups(self, work: object, *groups: int) -> None:
        self.launched.append(self.group_seconds * math.prod(groups))
        self.now += self.launched[-1]
        self._native.wgpuComputePassEncoderDispatchWorkgroups(work, *groups)


@pytest.mark.parametrize("kind", ["webgpu", "plain_webgpu"])
def test_no_launch_is_longer_than_a_watchdog_allows(
        kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that is 100 times slower than predicted, and then becomes slower still."""
    gpu, groups = request.getfixturevalue(kind), 300
    slow, half = SlowWebGpu(gpu, monkeypatch), 256 * groups
    monkeypatch.setattr(web_recording, "WATCHED_RUNS", 2)
    arena = gpu.buffer(2 * half)
    gpu.write(arena, 0, np.zeros(128 * groups, np.float32))
    pipeline = gpu.pipeline(increment(64 * groups, 1.25))
    there = gpu.record([Dispatch(pipeline, ((arena, 0), (arena, half)), 0.06),
                        Dispatch(pipeline, ((arena, half), (arena, 0)), 0.06)])
    for times in (1, 2, 3):
        gpu.run(there)
        assert (gpu.read(arena, 0, half).view(np.float32) == 2.5 * times).all()
        assert sum(slow.launched) == pytest.approx(times * 2 * groups * 0.02)
    assert max(slow.launched) <= SUBMISSION_SECONDS + 1e-9 and len(slow.launched) > 90
    slow.group_seconds = 0.1
    for _ in range(2):  # one of which is watched
        gpu.run(there)
    slow.launched.clear()
    for times in (6, 7):
        gpu.run(there)
        assert (gpu.read(arena, 0, half).view(np.float32) == 2.5 * times).all()
    assert max(slow.launched) <= SUBMISSION_SECONDS + 1e-9


def test_copies_stand_in_their_place(webgpu: WebGpu) -> None:  # noqa: F811
    pipeline = webgpu.pipeline(increment(16))
    one, other = webgpu.buffer(128), webgpu.buffer(128)
    webgpu.write(one, 0, np.arange(32, dtype=np.float32))
    recording = webgpu.record([
        Dispatch(pipeline, ((one, 0), (one, 64))), Copy(one, 64, other, 0, 64),
        Copy(other, 0, other, 64, 64), Dispatch(pipeline, ((other, 64), (one, 0)))])
    webgpu.run(recording)
    counted = np.arange(16, dtype=np.float32)
    assert np.array_equal(webgpu.read(other, 64, 64).view(np.float32), counted + 1)
    assert np.array_equal(webgpu.read(one, 0, 64).view(np.float32), counted + 2)


def test_launches_are_timed_where_that_is_asked(webgpu: WebGpu) -> None:  # noqa: F811
    short, long = webgpu.pipeline(increment(16)), webgpu.pipeline(busy(20000))
    memory = webgpu.buffer(256)
    launches = [Dispatch(short, ((memory, 0), (memory, 64))), Copy(memory, 0, memory, 128, 64),
                Dispatch(long, ((memory, 0),))]
    recording = webgpu.record(launches, timed=True)
    with pytest.raises(DeviceError, match="have not run"):
        recording.seconds()
    webgpu.run(recording)
    seconds = recording.seconds()
    assert len(seconds) == 3 and min(seconds) >= 0 and seconds[2] > seconds[0]
    untimed = webgpu.record(launches[:1])
    webgpu.run(untimed)
    with pytest.raises(DeviceError, match="timed=True"):
        untimed.seconds()


def test_programs_are_compiled_once_and_side_by_side(webgpu: WebGpu) -> None:  # noqa: F811
    programs = [increment(64, by) for by in (1.5, 2.5, 3.5, 1.5)]
    with ThreadPoolExecutor(4) as pool:
        pipelines = list(pool.map(webgpu.pipeline, programs))
    assert webgpu.pipeline(increment(64, 1.5)) is pipelines[0] is pipelines[3]
    assert len({id(pipeline.handle) for pipeline in pipelines}) == 3
    assert [binding.writes for binding in pipelines[0].bindings] == [False, True]
    assert pipelines[0].bindings[0].bytes == 256 and pipelines[0].bindings[0].item_bytes == 4
    forgotten = weakref.ref(pipelines[1].handle)
    del pipelines
    gc.collect()
    assert forgotten() is None  # what nobody holds is given back


def test_what_programs_become_is_shown(webgpu: WebGpu,  # noqa: F811
                                       monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SMALTI_SHOW", "asm")
    webgpu.pipeline(increment(32, 7.5))
    shown = capsys.readouterr().out
    assert shown.startswith("increment:\nstruct Offsets") and "+ 7.5f)" in shown


@pytest.mark.usefixtures("interruptible")
def test_waiting_can_be_interrupted(webgpu: WebGpu,  # noqa: F811
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def wgpuDevicePoll(self, *_: object) -> bool:
            return False

    with monkeypatch.context() as patch:
        patch.setattr(webgpu, "library", webgpu.library._replace(native=Busy()))
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.02, _thread.interrupt_main).start()
            webgpu.wait()
    webgpu.wait()


# ---------------------------------------------------------------------- what goes wrong


def test_what_is_closed_does_not_run(webgpu: WebGpu) -> None:  # noqa: F811
    recording, arena = recorded(webgpu, 2)
    arena.close()
    with pytest.raises(DeviceError, match="buffer of the recording is closed"):
        webgpu.run(recording)
    recording.close()
    with pytest.raises(DeviceError, match="recording is closed"):
        webgpu.run(recording)


def test_a_device_that_is_lost_can_be_opened_anew() -> None:
    lost = open_device("wgpu:0")
    recording, arena = recorded(lost, 3)
    lost.run(recording)
    lost.wait()
    lost.native.destroy()
    for use in (lambda: lost.run(recording), lambda: lost.buffer(64),
                lambda: lost.pipeline(increment(7))):
        with pytest.raises(DeviceLostError, match="opened anew"):
            use()
    with open_device("wgpu:0") as anew:
        recording, arena = recorded(anew, 3)
        anew.run(recording)
        assert (numbers(anew, arena, 1) == 3).all()
    with pytest.raises(DeviceError, match="is closed"):
        anew.buffer(64)
    anew.close()


def test_what_the_driver_refuses_is_said(webgpu: WebGpu) -> None:  # noqa: F811
    b = Builder("crowd", 4 * webgpu.limits.invocations)
    b.store(b.binding("y", "u32", b.size, "write"), b.invocation, b.invocation)
    with pytest.raises(DeviceError, match="compiling crowd"):
        webgpu.pipeline(b.finish((1, 1, 1)))
    assert (numbers(webgpu, zeros(webgpu), 0) == 0).all()  # and the device goes on


def test_devices_say_what_they_are(webgpu: WebGpu) -> None:  # noqa: F811
    assert webgpu.device.id == "wgpu:0" and webgpu.device.name == adapters()[0].name
    assert webgpu.device.memory_bytes > 1 << 30 and webgpu.limits.shared_bytes >= 16 << 10
    with pytest.raises(DeviceError, match=r"no device wgpu:99: wgpu finds \d"):
        open_device("wgpu:99")


def test_without_the_package_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    load = wgpu_library.load.__wrapped__
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "wgpu", None)
        with pytest.raises(DeviceError, match=r"pip install 'smalti\[wgpu\]'"):
            load()
    monkeypatch.setattr(load().package, "__version__", "0.31.0")
    with pytest.raises(DeviceError, match=r"is 0\.31\.0; 0\.32 is needed"):
        load()
