"""What is written is read again, of any size and from any offset, before and after launches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gpu_devices import chain, filled, increment

from smalti.errors import InputError
from smalti.runtime.gpu.interface import Dispatch, Gpu
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu, transfers
from smalti.runtime.vulkan.logical import Queue, Submission


@pytest.fixture(params=["vulkan", "staged"])
def gpu(request: pytest.FixtureRequest) -> Gpu:
    """A device whose memory the CPU sees, and one whose memory it does not."""
    return request.getfixturevalue(request.param)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of which many are needed."""
    monkeypatch.setattr(transfers, "CHUNK_BYTES", 1 << 20)


def random_bytes(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, count, np.uint8)


@pytest.mark.parametrize("count,offset", [
    (0, 0), (1, 0), (3, 5), (4097, 1), (1 << 20, 0), ((1 << 20) + 1, 3), (7_000_001, 13)])
def test_bytes_come_back_as_they_were(gpu: Gpu, count: int, offset: int) -> None:
    data = random_bytes(count)
    buffer = gpu.buffer(count + offset + 7)
    gpu.write(buffer, offset, data)
    assert np.array_equal(gpu.read(buffer, offset, count), data)
    assert np.array_equal(gpu.read(buffer, offset + count // 2, count - count // 2),
                          data[count // 2:])


def test_a_later_write_wins(gpu: Gpu) -> None:
    buffer = gpu.buffer(1000)
    expected = np.zeros(1000, np.uint8)
    for begin, end, value in [(0, 1000, 1), (10, 500, 2), (499, 700, 3), (499, 501, 4)]:
        gpu.write(buffer, begin, np.full(end - begin, value, np.uint8))
        expected[begin:end] = value
    assert np.array_equal(gpu.read(buffer, 0, 1000), expected)


def test_data_may_change_after_they_were_written(gpu: Gpu) -> None:
    data = random_bytes(3 << 20)
    expected, buffer = data.copy(), gpu.buffer(3 << 20)
    gpu.write(buffer, 0, data)
    data[:] = 0
    assert np.array_equal(gpu.read(buffer, 0, data.nbytes), expected)


@pytest.mark.parametrize("make", [lambda x: x[::2], lambda x: memoryview(x.tobytes()),
                                  lambda x: x.reshape(4, -1).T, lambda x: x.astype(">f4")])
def test_any_array_is_written_as_its_elements_follow(gpu: Gpu, make: Callable) -> None:
    data = make(np.arange(64, dtype=np.float32))
    expected = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
    buffer = gpu.buffer(expected.nbytes)
    gpu.write(buffer, 0, data)
    assert np.array_equal(gpu.read(buffer, 0, expected.nbytes), expected)


def test_writes_between_runs_change_what_the_next_one_reads(gpu: Gpu) -> None:
    """Each run must see the write before it, and none the one after it."""
    n = 300_000
    pipeline, buffer = gpu.pipeline(increment(n)), gpu.buffer(8 * n)
    outputs = [gpu.buffer(4 * n) for _ in range(6)]
    recordings = [gpu.record([*chain(pipeline, buffer, 5), Dispatch(
        pipeline, ((buffer, 4 * n), (output, 0)))]) for output in outputs]
    for number, recording in enumerate(recordings):
        gpu.write(buffer, 0, np.full(n, 10 * number, np.float32))
        gpu.run(recording)
    for number, output in enumerate(outputs):
        assert np.all(gpu.read(output, 0, 4 * n).view(np.float32) == 10 * number + 6), number


def test_what_ran_last_counts_also_when_its_recording_is_gone(gpu: Gpu) -> None:
    n = 300_000
    pipeline, buffer = gpu.pipeline(increment(n)), gpu.buffer(8 * n)
    for number in range(5):
        gpu.write(buffer, 0, np.full(n, number, np.float32))
        gpu.run(gpu.record(chain(pipeline, buffer, 20)))
    assert np.all(gpu.read(buffer, 0, 4 * n).view(np.float32) == 24)


def test_a_write_waits_for_those_only_who_use_its_buffer(
        staged: VulkanGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written beside a run for the next one, as weights that are streamed, overlaps it."""
    used, other = (filled(staged, np.zeros(128, np.float32)) for _ in range(2))
    recording = staged.record(chain(staged.pipeline(increment(64)), used, 2))
    staged.run(recording)  # which finds out how long its launches take
    submitted = []
    submit = Queue.submit

    def watched(self: Queue, submission: Submission, after: int = 0) -> int:
        number = submit(self, submission, after)
        submitted.append((self is staged._logical.transfer, number, after))
        return number

    monkeypatch.setattr(Queue, "submit", watched)
    for buffer in (other, used):
        staged.run(recording)
        staged.write(buffer, 0, np.ones(64, np.float32))
    staged.wait()
    (_, first, _), beside, (_, second, waited), after = submitted
    assert beside[0] and after[0]
    assert (beside[2], waited, after[2]) == (0, beside[1], second) and second == first + 1
    assert np.all(staged.read(used, 0, 256).view(np.float32) == 1)


def test_a_buffer_may_go_before_what_was_written_to_it_has_left(staged: VulkanGpu) -> None:
    for number in range(20):
        staged.write(staged.buffer(4096), 0, np.full(4096, number, np.uint8))
        staged._logical.reap()
    staged.wait()
    assert not staged._logical._given


def test_host_memory_is_read_by_programs(gpu: Gpu) -> None:
    source = gpu.buffer(1024, kind="host")
    gpu.write(source, 0, np.arange(256, dtype=np.float32))
    target = filled(gpu, np.zeros(256, np.float32))
    gpu.run(gpu.record([Dispatch(gpu.pipeline(increment(256)), ((source, 0), (target, 0)))]))
    assert np.array_equal(gpu.read(target, 0, 1024).view(np.float32), np.arange(256) + 1)


@pytest.mark.parametrize("offset,count", [(-1, 4), (60, 5), (0, 65)])
def test_what_lies_outside_is_an_input_error(gpu: Gpu, offset: int, count: int) -> None:
    buffer = gpu.buffer(64)
    with pytest.raises(InputError, match="do not lie in a buffer of 64"):
        gpu.write(buffer, offset, np.zeros(count, np.uint8))
    with pytest.raises(InputError, match="do not lie in a buffer of 64"):
        gpu.read(buffer, offset, count)


def test_what_the_cpu_reads_without_a_cache_is_copied_by_the_device(
        adapter: VulkanAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    with VulkanGpu(adapter) as gpu:
        download = gpu._transfers._download
        monkeypatch.setattr(gpu._transfers, "_download",
                            lambda *what: copied.append(what[2]) or download(*what))
        data = np.arange(1 << 18, dtype=np.float32)
        buffer = filled(gpu, data)
        for cached, count in ((True, 0), (False, 1)):
            buffer.cached = cached
            assert np.array_equal(gpu.read(buffer, 4, data.nbytes - 4).view(np.float32), data[1:])
            assert np.array_equal(gpu.read(buffer, 8, 16).view(np.float32), data[2:6])
            assert len(copied) == count
