"""A device on which work-groups take as long as a test says, by a clock that nobody waits for.

    device = SlowDevice(0.02)
    monkeypatch.setattr(recording, "perf_counter", device.clock)

What is computed is computed by the driver of this machine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from vulkan_layer import Layer

from smalti.runtime.vulkan import structures as vk


class SlowDevice(Layer):
    """`launches` are the seconds that each launch took, `submissions` those of all submissions that
    had any; `group_seconds` may be changed at any time."""

    def __init__(self, group_seconds: float) -> None:
        self.group_seconds, self._now = group_seconds, 0.0
        self.launches: list[float] = []
        self.submissions: list[float] = []
        self._commands: dict[int, list[Callable[[], None]]] = {}
        self._stamps: dict[tuple[int, int], float] = {}
        super().__init__(
            vkBeginCommandBuffer=self._begin, vkCmdDispatch=self._dispatch,
            vkCmdDispatchBase=self._dispatch_base, vkCmdWriteTimestamp=self._stamp,
            vkQueueSubmit=self._submit, vkGetQueryPoolResults=self._results)

    def clock(self) -> float:
        """Seconds since the beginning, as the host sees them."""
        return self._now

    def _begin(self, real: Callable, commands: int, info: int) -> int:
        self._commands[commands] = []
        return real(commands, info)

    def _dispatch(self, real: Callable, commands: int, x: int, y: int, z: int) -> None:
        self._commands[commands].append(lambda: self._compute(x * y * z))
        real(commands, x, y, z)

    def _dispatch_base(self, real: Callable, commands: int, *numbers: int) -> None:
        x, y, z = numbers[3:]
        self._commands[commands].append(lambda: self._compute(x * y * z))
        real(commands, *numbers)

    def _stamp(self, real: Callable, commands: int, stage: int, pool: int, query: int) -> None:
        self._commands[commands].append(
            lambda: self._stamps.__setitem__((pool, query), self._now))
        real(commands, stage, pool, query)

    def _compute(self, groups: int) -> None:
        self.launches.append(groups * self.group_seconds)
        self._now += groups * self.group_seconds

    def _submit(self, real: Callable, queue: int, count: int, info: int, fence: int) -> int:
        before = self._now
        for submission in (vk.SubmitInfo * count).from_address(info):
            for commands in (ctypes.c_void_p * submission.commandBufferCount).from_address(
                    submission.pCommandBuffers):
                for run in self._commands.get(commands, ()):
                    run()
        if self._now > before:
            self.submissions.append(self._now - before)
        return real(queue, count, info, fence)

    def _results(self, real: Callable, device: int, pool: int, first: int, count: int, size: int,
                 data: int, stride: int, flags: int) -> int:
        found = (ctypes.c_uint64 * count).from_address(data)
        for number in range(count):
            found[number] = round(self._stamps[pool, first + number] / self.period)
        return 0

    @property
    def period(self) -> float:
        """Seconds of a tick of the device's clock."""
        return self.adapter().timestamp_seconds
