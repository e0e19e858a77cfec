"""Memory of devices of `wgpu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smalti.errors import InputError
from smalti.runtime.gpu.interface import DeviceBuffer

WORD = 4
"""Bytes; copies of WebGPU are of whole words."""


class WebBuffer(DeviceBuffer):
    """Memory, in a buffer that has room for the last element's whole word; `hold` counts what is
    held, with a negative number what no longer is."""

    def __init__(self, hold: Callable[[int], None], handle: Any, bytes: int) -> None:
        self.bytes, self.handle, self._hold = bytes, handle, hold

    def close(self) -> None:
        if self.handle is not None:
            self._hold(-self.bytes)
            self.handle.destroy()
            self.handle = None

    def __del__(self) -> None:
        if self.handle is not None:
            self._hold(-self.bytes)


def own(buffer: DeviceBuffer) -> WebBuffer:
    """`buffer`, as `wgpu` knows it. Raises InputError where it is of another driver."""
    if not isinstance(buffer, WebBuffer):
        raise InputError("the buffer is of another device")
    return buffer


def inside(buffer: DeviceBuffer, start: int, stop: int) -> WebBuffer:
    """The same. Raises ValueError where a range of bytes lies outside of it."""
    if not 0 <= start <= stop <= buffer.bytes:
        raise ValueError(f"bytes {start} to {stop} of a buffer of {buffer.bytes}")
    return own(buffer)
