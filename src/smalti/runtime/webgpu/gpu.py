"""A device that is open through `wgpu`."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smalti.codegen.shader import Shader
from smalti.codegen.wgsl.emit import ENTRY, OWN_WORDS
from smalti.compiler.targets import TARGETS
from smalti.errors import DeviceError, DeviceMemoryError, InputError
from smalti.runtime.cpu.adapter import cpu
from smalti.runtime.device import Device
from smalti.runtime.gpu.architecture import with_rates
from smalti.runtime.gpu.interface import DeviceBuffer, Gpu, Launch, Recording
from smalti.runtime.gpu.removals import require_clock
from smalti.runtime.webgpu.adapter import (
    GRANULE,
    IMMEDIATES,
    MAPPABLE,
    TIMES,
    WebAdapter,
    adapters,
)
from smalti.runtime.webgpu.library import caught, load, refusals, trusted_module
from smalti.runtime.webgpu.memory import WORD, WebBuffer, inside
from smalti.runtime.webgpu.pipelines import WebPipeline
from smalti.runtime.webgpu.recording import WebRecording

COPY_BYTES = 32 << 20  # of what is staged at once
POLL_SECONDS = 1e-3  # the longest pause between two questions to a busy device


class WebGpu(Gpu):
    """`adapter`, open under the number that it has among `adapters()`.

    Raises DeviceError where the driver refuses.
    """

    def __init__(self, adapter: WebAdapter, number: int = 0) -> None:
        self.adapter, self.library = adapter, load()
        self.limits = with_rates(adapter.limits, adapter.name)
        self.device, self.immediates = device_of(adapter, number), IMMEDIATES in adapter.features
        self.target = TARGETS["wgsl" if self.immediates else "wgsl without immediates"]
        self._held_bytes = 0
        with refusals(f"opening {adapter.name}"):
            self._native = adapter.handle.request_device_sync(
                required_features=sorted(adapter.features))
        self._lock = threading.RLock()  # of a thread that holds it, the collector may close buffers
        self._layouts: dict[int, tuple[Any, Any]] = {}
        self._built: weakref.WeakValueDictionary[tuple[Shader, bytes], WebPipeline]
        self._compiled: weakref.WeakValueDictionary[bytes, Any]
        self._built, self._compiled = (weakref.WeakValueDictionary(),
                                       weakref.WeakValueDictionary())
        self._buffers: weakref.WeakSet[WebBuffer] = weakref.WeakSet()

    @property
    def native(self) -> Any:
        """The device of the package. Raises DeviceError where it is closed."""
        if self._native is None:
            raise DeviceError(f"{self.adapter.name} is closed")
        return self._native

    # ------------------------------------------------------------------ programs

    def build(self, shader: Shader, code: bytes) -> WebPipeline:
        found = self._built.get((shader, code))
        if found is None:
            layout, pipeline_layout = self._layout(len(shader.bindings))
            handle = self._compiled.get(code) or self._compile(shader, code, pipeline_layout)
            found = WebPipeline(shader, handle, layout)
            with self._lock:
                self._compiled.setdefault(code, handle)
                found = self._built.setdefault((shader, code), found)
        return found

    def _compile(self, shader: Shader, code: bytes, layout: Any) -> Any:
        with refusals(f"compiling {shader.name}"):
            module = trusted_module(self.native, code.decode())
            return self.native.create_compute_pipeline(
                layout=layout, compute={"module": module, "entry_point": ENTRY})

    def _layout(self, count: int) -> tuple[Any, Any]:
        """The layouts of that many bindings, and of a pipeline with them."""
        with self._lock:
            if count not in self._layouts:
                kinds = ["storage"] * count + ([] if self.immediates else ["uniform"])
                stage = self.library.package.ShaderStage.COMPUTE
                with refusals("laying out bindings"):
                    layout = self.native.create_bind_group_layout(entries=[
                        {"binding": n, "visibility": stage, "buffer": {"type": kind}}
                        for n, kind in enumerate(kinds)])
                    self._layouts[count] = layout, self.native.create_pipeline_layout(
                        bind_group_layouts=[layout],
                        immediate_size=WORD * (count + OWN_WORDS) if self.immediates else 0)
            return self._layouts[count]

    # ------------------------------------------------------------------ memory

    def buffer(self, bytes: int, *, kind: str = "device") -> WebBuffer:
        if bytes > self.limits.buffer_bytes:
            raise DeviceMemoryError(f"a buffer of {bytes} bytes was asked for; one of "
                                    f"{self.adapter.name} holds {self.limits.buffer_bytes}")
        if bytes > self.free_bytes():
            raise DeviceMemoryError(f"{bytes} bytes were asked for; {self.free_bytes()} of "
                                    f"{self.adapter.name} are free")
        flags = self.library.package.BufferUsage
        usage = flags.STORAGE | flags.COPY_SRC | flags.COPY_DST
        if kind == "host" and MAPPABLE in self.adapter.features:
            usage |= flags.MAP_WRITE
        with refusals(f"asking {self.adapter.name} for {bytes} bytes"):
            handle = self.native.create_buffer(size=max(1, -(-bytes // GRANULE)) * GRANULE,
                                               usage=usage)
        made = WebBuffer(self.hold, handle, bytes)
        self.hold(bytes)
        self._buffers.add(made)
        return made

    def write(self, buffer: DeviceBuffer, offset: int, data: memoryview | np.ndarray) -> None:
        bytes = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        start, stop = offset, offset + bytes.size
        buffer = inside(buffer, start, stop)
        before, behind = start % WORD, -stop % WORD
        if before or behind:
            around = [self.read(buffer, start - before, before), bytes]
            room = max(0, min(behind, buffer.bytes - stop))
            around += [self.read(buffer, stop, room), np.zeros(behind - room, np.uint8)]
            bytes = np.concatenate(around)
        queue = self.native.queue
        with refusals("writing to memory"):
            for first in range(0, bytes.size, COPY_BYTES):
                queue.write_buffer(buffer.handle, start - before + first,
                                   bytes[first:first + COPY_BYTES])
                if bytes.size > COPY_BYTES:
                    queue.submit([])  # so that what is staged can be given back

    def read(self, buffer: DeviceBuffer, offset: int, bytes: int) -> np.ndarray:
        buffer = inside(buffer, offset, offset + bytes)
        found = np.empty(bytes, np.uint8)
        self.wait()
        start, stop = offset - offset % WORD, offset + bytes
        with refusals("reading memory"):
            for first in range(start, stop, COPY_BYTES):
                count = min(COPY_BYTES, -(-(stop - first) // WORD) * WORD)
                part = np.frombuffer(
                    self.native.queue.read_buffer(buffer.handle, first, count), np.uint8)
                begin = max(offset, first)
                end = min(stop, first + count)
                found[begin - offset:end - offset] = part[begin - first:end - first]
        return found

    def hold(self, bytes: int) -> None:
        """Count memory that is held from now on, or with a negative number, no more."""
        with self._lock:
            self._held_bytes += bytes

    def free_bytes(self) -> int:
        return max(0, self.device.memory_bytes - self._held_bytes)

    # ------------------------------------------------------------------ runs

    def record(self, launches: Sequence[Launch], *, timed: bool = False) -> WebRecording:
        if timed and TIMES not in self.adapter.features:
            raise DeviceError(f"{self.adapter.name} tells no times of launches")
        if timed:
            require_clock(self.adapter.name, self.adapter.removals)
        return WebRecording(self, launches, timed)

    def run(self, recording: Recording) -> None:
        if not isinstance(recording, WebRecording):
            raise InputError("the recording is of another device")
        recording.run()

    def wait(self) -> None:
        device, pause = self.native._internal, POLL_SECONDS / 64
        with caught("waiting for the device"):
            while not self.library.native.wgpuDevicePoll(device, False, self.library.ffi.NULL):
                time.sleep(pause)
                pause = min(POLL_SECONDS, 2 * pause)

    def close(self) -> None:
        if self._native is not None:
            if self.lost:
                adapters.cache_clear()  # what is found next may be another one
            else:
                self.wait()
            for buffer in list(self._buffers):
                buffer.close()
            self._built.clear()
            self._compiled.clear()
            self._layouts.clear()
            self._native = None


def open_device(name: str, changed: Callable[[WebAdapter], WebAdapter] = lambda adapter: adapter
                ) -> WebGpu:
    """The device that is called "wgpu:0", "wgpu:1" …, its adapter `changed` before.

    Raises DeviceError for one that is not here, or that its driver does not open.
    """
    number, found = int(name.removeprefix("wgpu:")), adapters()
    if number >= len(found):
        raise DeviceError(f"no device {name}: wgpu finds {len(found)}")
    return WebGpu(changed(found[number]), number)


def device_of(adapter: WebAdapter, number: int) -> Device:
    """What is said of the device `wgpu:number`. WebGPU tells of no memory: main memory bounds what
    a device holds that has none of its own, and is a guess for others."""
    limits = adapter.limits
    features = [name for name, has in (("f16", limits.f16),
                                       ("subgroups", limits.subgroup_operations)) if has]
    return Device(f"wgpu:{number}", adapter.name, adapter.kind, cpu().memory_bytes,
                  tuple(features), driver=f"{adapter.backend}, {adapter.driver}".rstrip(", "),
                  removals=adapter.removals, identity=adapter.identity)
