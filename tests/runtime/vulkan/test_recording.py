"""Launches are recorded once, run often, and in the order that they depend on each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_devices import chain, filled, increment, uses_of_another
from slow_device import SlowDevice

from smalti.codegen.shader import BufferUse
from smalti.codegen.spirv.emit import emit
from smalti.errors import DeviceError, InputError
from smalti.runtime.gpu import pieces
from smalti.runtime.gpu.interface import Copy, DeviceBuffer, Dispatch, Gpu
from smalti.runtime.gpu.pacing import DISPATCH_SECONDS_MAX, SUBMISSION_SECONDS
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu, recording


def values(gpu: Gpu, buffer: DeviceBuffer, offset: int, count: int) -> np.ndarray:
    return gpu.read(buffer, offset, 4 * count).view(np.float32)


@pytest.mark.parametrize("read,write", [(0, 1024), (4, 1028), (12, 2052), (252, 1020), (260, 4)])
def test_operands_begin_at_any_element(vulkan: Gpu, read: int, write: int) -> None:
    x = np.arange(1024, dtype=np.float32)
    buffer = filled(vulkan, x)
    pipeline = vulkan.pipeline(increment(61))
    vulkan.run(vulkan.record([Dispatch(pipeline, ((buffer, read), (buffer, write)))]))
    expected = x.copy()
    expected[write // 4:write // 4 + 61] = x[read // 4:read // 4 + 61] + 1
    assert np.array_equal(values(vulkan, buffer, 0, 1024), expected)


def test_a_recording_runs_again_and_again(vulkan: Gpu) -> None:
    buffer = filled(vulkan, np.zeros(128, np.float32))
    twice = vulkan.record(chain(vulkan.pipeline(increment(64)), buffer, 2))
    for _ in range(50):
        vulkan.run(twice)
    assert np.all(values(vulkan, buffer, 0, 64) == 100)


def test_launches_that_depend_wait_for_each_other(vulkan: Gpu) -> None:
    n = 4096
    buffer = filled(vulkan, np.zeros(2 * n, np.float32))
    vulkan.run(vulkan.record(chain(vulkan.pipeline(increment(n)), buffer, 200)))
    assert np.all(values(vulkan, buffer, 0, n) == 200)


@pytest.fixture
def slow(adapter: VulkanAdapter, monkeypatch: pytest.MonkeyPatch) -> SlowDevice:
    """A device on which time is told by how many work-groups run."""
    device = SlowDevice(0.02)
    monkeypatch.setattr(recording, "perf_counter", device.clock)
    return device


GROUPS = 1000


@pytest.mark.parametrize("predicted", [0.0, 0.2, 20.0, 2000.0])
def test_no_launch_is_longer_than_a_watchdog_allows_nor_the_first(
        slow: SlowDevice, predicted: float) -> None:
    n = 64 * GROUPS  # 20 s a launch; the second prediction is a hundredth of that
    with VulkanGpu(slow.adapter()) as gpu:
        buffer = filled(gpu, np.zeros(2 * n, np.float32))
        made = gpu.record(chain(gpu.pipeline(increment(n)), buffer, 2, predicted))
        for run in range(1, 4):
            gpu.run(made)
            assert np.all(values(gpu, buffer, 0, n) == 2 * run)
            assert sum(slow.launches) == pytest.approx(run * 2 * GROUPS * slow.group_seconds)
        assert max(slow.submissions) <= SUBMISSION_SECONDS + 1e-9
        assert made.submissions == 200


@pytest.mark.parametrize("clock", [True, False])
def test_a_device_that_slows_down_is_cut_anew(slow: SlowDevice, clock: bool,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    n, found = 64 * GROUPS, slow.adapter()
    monkeypatch.setattr(recording, "WATCHED_RUNS", 1)
    if not clock:
        found = replace(found, families=tuple(
            replace(family, timestamp_bits=0) for family in found.families))
    with VulkanGpu(found) as gpu:
        buffer = filled(gpu, np.zeros(2 * n, np.float32))
        made = gpu.record(chain(gpu.pipeline(increment(n)), buffer, 2))
        for seconds in (1e-3, 1e-3, 5e-3):
            slow.group_seconds = seconds
            gpu.run(made)
            gpu.wait()
        slow.submissions.clear()
        for run in (4, 5):
            gpu.run(made)
            assert np.all(values(gpu, buffer, 0, n) == 2 * run)
        assert max(slow.submissions) <= DISPATCH_SECONDS_MAX


def test_short_launches_share_a_submission(slow: SlowDevice) -> None:
    slow.group_seconds = 1e-6
    with VulkanGpu(slow.adapter()) as gpu:
        buffer = filled(gpu, np.zeros(128, np.float32))
        made = gpu.record(chain(gpu.pipeline(increment(64)), buffer, 400))
        for run in range(1, 4):
            gpu.run(made)
            assert np.all(values(gpu, buffer, 0, 64) == 400 * run)
        assert made.submissions <= 2


def test_long_copies_are_cut(vulkan: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "COPY_BYTES_MAX", 100)
    data = np.arange(256, dtype=np.float32)
    source, target = filled(vulkan, data), filled(vulkan, np.zeros(256, np.float32))
    vulkan.run(vulkan.record([Copy(source, 4, target, 8, 1016)]))
    assert np.array_equal(values(vulkan, target, 8, 254), data[1:255])


def test_an_empty_recording_does_nothing(vulkan: Gpu) -> None:
    empty = vulkan.record([])
    vulkan.run(empty)
    vulkan.wait()
    assert empty.launches == ()


def test_copies_are_launches_too(vulkan: Gpu) -> None:
    buffer, other = (filled(vulkan, np.arange(128, dtype=np.float32) * sign) for sign in (1, -1))
    up = Dispatch(vulkan.pipeline(increment(64)), ((other, 256), (buffer, 256)))
    vulkan.run(vulkan.record([Copy(buffer, 0, other, 256, 256), up, Copy(buffer, 256, buffer, 0,
                                                                         256)]))
    assert np.array_equal(values(vulkan, buffer, 0, 64), np.arange(64) + 1)


def test_launches_are_timed(vulkan: VulkanGpu) -> None:
    n = 1 << 18
    small, large = vulkan.pipeline(increment(64)), vulkan.pipeline(increment(n))
    buffer = filled(vulkan, np.zeros(2 * n, np.float32))
    timed = vulkan.record([launch for _ in range(300) for launch in (
        *chain(small, buffer, 1), *chain(large, buffer, 1))], timed=True)
    for _ in range(3):
        vulkan.run(timed)
        seconds = np.array(timed.seconds())
        assert seconds.shape == (600,) and np.all(seconds >= 0) and seconds.max() < 1
        assert np.median(seconds[1::2]) > np.median(seconds[::2])


def test_times_that_nobody_took_are_not_told(vulkan: Gpu) -> None:
    buffer = filled(vulkan, np.zeros(128, np.float32))
    launches = chain(vulkan.pipeline(increment(64)), buffer, 1)
    plain = vulkan.record(launches)
    vulkan.run(plain)
    for each in (plain, vulkan.record(launches, timed=True)):
        with pytest.raises(DeviceError, match="no times"):
            each.seconds()


def test_operands_that_do_not_fit_are_input_errors(vulkan: Gpu) -> None:
    pipeline, buffer = vulkan.pipeline(increment(64)), vulkan.buffer(512)
    for operands, why in [
            (((buffer, 0),), "1 operands for 2 bindings"),
            (((buffer, 0), (buffer, 260)), "256 bytes at 260 do not lie in a buffer of 512"),
            (((buffer, 2), (buffer, 256)), "operand 0 begins at byte 2, .* multiple of 4")]:
        with pytest.raises(InputError, match=why):
            vulkan.record([Dispatch(pipeline, operands)])


def test_what_is_of_another_device_is_an_input_error(vulkan: Gpu, staged: Gpu) -> None:
    pipeline, buffer = vulkan.pipeline(increment(64)), staged.buffer(512)
    with pytest.raises(InputError, match="another device"):
        vulkan.record(chain(pipeline, buffer, 1))
    with pytest.raises(InputError, match="another device"):
        staged.record(chain(pipeline, buffer, 1))
    with pytest.raises(InputError, match="another device"):
        staged.run(vulkan.record([]))


def test_what_is_of_another_driver_is_an_input_error(vulkan: Gpu) -> None:
    for refused in uses_of_another(vulkan):
        with pytest.raises(InputError, match="another device"):
            refused()


def test_a_recording_that_was_closed_does_not_run(vulkan: Gpu) -> None:
    buffer = filled(vulkan, np.zeros(128, np.float32))
    made = vulkan.record(chain(vulkan.pipeline(increment(64)), buffer, 3))
    vulkan.run(made)
    made.close()
    made.close()
    assert np.all(values(vulkan, buffer, 256, 64) == 3)
    with pytest.raises(InputError, match="was closed"):
        vulkan.run(made)


def test_a_recording_whose_buffer_was_closed_does_not_run(vulkan: Gpu) -> None:
    buffer = filled(vulkan, np.zeros(128, np.float32))
    made = vulkan.record(chain(vulkan.pipeline(increment(64)), buffer, 300))
    vulkan.run(made)
    buffer.close()
    with pytest.raises(InputError, match="a buffer that the recording uses was closed"):
        vulkan.run(made)
    vulkan.wait()


def test_operands_larger_than_a_binding_can_see_are_refused(
        vulkan: VulkanGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = vulkan._logical.adapter
    monkeypatch.setattr(vulkan._logical, "adapter", replace(
        adapter, limits=replace(adapter.limits, buffer_range=1024)))
    pipeline = vulkan.pipeline_from(emit(increment(64), vulkan.limits), [BufferUse(1028, 4)] * 2,
                                    (1, 1, 1), name="all")
    buffer = vulkan.buffer(1028)
    with pytest.raises(DeviceError, match="1,028 bytes; a binding sees 1,024 at most"):
        vulkan.record([Dispatch(pipeline, ((buffer, 0), (buffer, 0)))])
