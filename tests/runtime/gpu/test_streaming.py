"""Weights are on the stage when they are read, and come while another launch runs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from interpreted_gpu import Memory

from smalti.codegen.shader import BufferUse
from smalti.runtime.gpu.interface import ComputePipeline, Copy, Dispatch
from smalti.runtime.gpu.streaming import stage_bytes, streamed


class Reader(ComputePipeline):
    def __init__(self, sizes: list[int]) -> None:
        self.bindings = tuple(BufferUse(size, 4, writes=False) for size in sizes)


def weights(count: int) -> list[Memory]:
    made = [Memory(1024, "host") for _ in range(count)]
    for number, each in enumerate(made):
        each.memory[:] = np.random.default_rng(number).integers(0, 256, 1024)
    return made


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 100), st.integers(1, 150)),
                         max_size=3), max_size=12))
def test_launches_read_what_they_would_have_read(uses: list) -> None:
    host, inside = weights(4), Memory(1024)
    inside.memory[:] = 7
    buffers = [*host, inside]
    launches = [Dispatch(Reader([4 * size for _, _, size in use]),
                         tuple((buffers[number], 4 * offset) for number, offset, _ in use))
                for use in uses]
    stage = Memory(2 * stage_bytes(launches, set(host)))
    numbered = streamed(list(enumerate(launches)), set(host), stage)
    made = [(n, each) for n, each in numbered if isinstance(each, Dispatch)]
    assert [n for n, _ in made] == list(range(len(launches)))
    for number, launch in numbered:
        if isinstance(launch, Copy):
            stage.memory[launch.target_offset:launch.target_offset + launch.bytes] = \
                launch.source.memory[launch.source_offset:launch.source_offset + launch.bytes]
            continue
        before = launches[number]
        for (buffer, offset), (other, place), binding in zip(
                before.operands, launch.operands, launch.pipeline.bindings, strict=True):
            assert other is (stage if buffer in host else buffer)
            assert np.array_equal(other.memory[place:place + binding.bytes],
                                  buffer.memory[offset:offset + binding.bytes])


def test_weights_come_beside_the_launch_before_theirs() -> None:
    host = weights(3)
    launches = [Dispatch(Reader([1024]), ((each, 0),)) for each in host]
    stage = Memory(2 * stage_bytes(launches, set(host)))
    order = [(n, type(each).__name__) for n, each in
             streamed(list(enumerate(launches)), set(host), stage)]
    assert order == [(0, "Copy"), (0, "Dispatch"), (1, "Copy"), (1, "Dispatch"), (2, "Copy"),
                     (2, "Dispatch")]
    places = [each.target_offset for _, each in streamed(
        list(enumerate(launches)), set(host), stage) if isinstance(each, Copy)]
    assert places == [1024, 0, 1024]


def test_weights_that_two_launches_share_come_once() -> None:
    (host,) = weights(1)
    launches = [Dispatch(Reader([512]), ((host, 256),))] * 2
    made = streamed(list(enumerate(launches)), {host}, Memory(1024))
    assert [type(each).__name__ for _, each in made] == ["Copy", "Dispatch", "Dispatch"]
