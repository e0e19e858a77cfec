"""What every GPU that programs run on can do, whatever language it speaks.

A launch reads and writes storage buffers. Binding number i of set 0 sees its buffer from a byte
offset on; as descriptors begin at multiples of `limits.offset_alignment`, the rest of the offset
reaches the program as push constant (immediate) word i, in elements of the binding's dtype. Those
who emit programs add it to every index.

    gpu.record(launches) → Recording        once, with barriers between launches that depend
    gpu.run(recording)                      as often as wanted; returns when submitted

All calls of one `Gpu` take effect in the order in which they are made: `read` gives what runs
before it have written, `write` changes nothing that a run before it still reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from smalti.codegen.shader import BufferUse, Shader
from smalti.codegen.target import Target
from smalti.dataclass import dataclass
from smalti.runtime.device import Device
from smalti.runtime.gpu.pacing import Pace
from smalti.schedule.group import GroupLimits

if TYPE_CHECKING:
    from smalti.codegen.gpu.form import GroupProgram


class DeviceBuffer(ABC):
    """Memory of a device: `bytes` of it. Its content is undefined until written.

    Given back by `close`, or when nobody holds it any more and nothing that was submitted uses it.
    """

    bytes: int

    @abstractmethod
    def close(self) -> None:
        """Give the memory back once all that was submitted has run; a second call does nothing."""


class ComputePipeline(ABC):
    """A program that the driver has compiled.

    `groups` are the work-groups of a launch along x, y and z, `pace` is how long they take.
    """

    name: str
    bindings: tuple[BufferUse, ...]
    groups: tuple[int, int, int]
    pace: Pace


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A launch of `pipeline`: for each of its bindings, a buffer and a byte offset in it.

    An offset is a multiple of the size of the binding's elements.

    `seconds` is how long it takes by prediction, 0 where nobody knows. It counts until the program
    has run: then its time is known, and no submission is made longer than a watchdog allows.
    """

    pipeline: ComputePipeline
    operands: tuple[tuple[DeviceBuffer, int], ...]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of `bytes` between two buffers, or two ranges of one that do not overlap. Offsets and
    `bytes` are multiples of 4."""

    source: DeviceBuffer
    source_offset: int
    target: DeviceBuffer
    target_offset: int
    bytes: int


Launch = Dispatch | Copy


class Recording(ABC):
    """Launches as commands of the device, to be run any number of times."""

    launches: tuple[Launch, ...]

    @abstractmethod
    def seconds(self) -> tuple[float, ...]:
        """How long each launch of the last run took, which is waited for.

        A launch that has to wait for no other may run beside it; where one is timed, it does not.
        Raises DeviceError where times were not asked for, or nothing has run.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what the commands occupy; a second call does nothing."""


class Gpu(ABC):
    """A device that is open. Its methods may be called from any thread.

    What the device refuses raises DeviceMemoryError or DeviceError, what it no longer can
    DeviceLostError: this object is of no use then, but the device can be opened anew.
    """

    device: Device
    limits: GroupLimits
    target: Target
    """The language of its programs."""
    lost: bool = False
    """Whether it has failed, and is of no use any more."""
    outdated: bool = False
    """Whether a check has found since it was opened that some of it must not be used: it is opened
    anew for the next program."""

    def pipeline(self, program: GroupProgram) -> ComputePipeline:
        """`program` as the driver compiles it."""
        made = self.target.encode([program], self.limits)
        return self.build(made.shaders[0], made.code)

    @abstractmethod
    def build(self, shader: Shader, code: bytes) -> ComputePipeline:
        """What the driver makes of `code` in the language of the device, once while somebody holds
        it.

        Calls from several threads compile at once.
        """

    @abstractmethod
    def buffer(self, bytes: int, *, kind: str = "device") -> DeviceBuffer:
        """Memory for `bytes`: of the device, or with kind "host" main memory that the device reads
        through the bus, for what does not fit.

        Raises DeviceMemoryError, which says how much is free.
        """

    @abstractmethod
    def write(self, buffer: DeviceBuffer, offset: int, data: memoryview | np.ndarray) -> None:
        """Put the bytes of `data` into `buffer` at `offset`; `data` may change afterwards."""

    @abstractmethod
    def read(self, buffer: DeviceBuffer, offset: int, bytes: int) -> np.ndarray:
        """A copy of `bytes` of `buffer` from `offset` on, as u8; waits for what writes them."""

    @abstractmethod
    def record(self, launches: Sequence[Launch], *, timed: bool = False) -> Recording:
        """`launches` as commands, in their order where they depend on each other."""

    @abstractmethod
    def run(self, recording: Recording) -> None:
        """Submit a recording. Returns when it is submitted."""

    @abstractmethod
    def wait(self) -> None:
        """Return when all that was submitted has run; KeyboardInterrupt ends the wait early."""

    @abstractmethod
    def free_bytes(self) -> int:
        """How much of the device's memory is free, as far as the driver tells."""

    @abstractmethod
    def close(self) -> None:
        """Wait, then give everything back; a second call does nothing."""

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
