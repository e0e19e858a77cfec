"""Weights that a device has no room for: copied there while the launch before theirs runs.

They lie in main memory. A stage on the device has two halves: a launch reads its weights from one
while those of the next such launch come into the other.

    copy 1 | launch 1, copy 2 | launch 2, copy 3 | launch 3        |: a barrier

A kernel may read its weights many times, so that reading them through the bus would take longer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from smalti.runtime.gpu.interface import Copy, DeviceBuffer, Dispatch, Launch

ALIGNMENT = 256
"""Of buffers in main memory, and of the parts of them that are copied."""

Region = tuple[DeviceBuffer, int, int]
"""What a launch reads of a weight: its buffer, the first byte and the bytes."""


def streamed(launches: Sequence[tuple[int, Dispatch]], outside: Collection[DeviceBuffer],
             stage: DeviceBuffer) -> list[tuple[int, Launch]]:
    """`launches`, with numbers, reading from `stage` what lies in the buffers `outside`, and the
    copies to there, with the numbers of those who read them.

    The stage has twice `stage_bytes` of the launches.
    """
    made: list[tuple[int, Launch]] = []
    waiting: list[tuple[int, Launch]] = []  # since the last launch that reads from the stage
    half, before = 0, None
    for number, launch in launches:
        regions = regions_of(launch, outside)
        if regions and regions != before:
            before, half = regions, stage.bytes // 2 - half
            copies = [(number, Copy(buffer, begin, stage, place, size))
                      for (buffer, begin, size), place in zip(regions, places(regions, half))]
            made += [*waiting[:1], *copies, *waiting[1:]]  # beside the launch that comes before
            waiting = []
        waiting.append((number, moved(launch, regions, stage, half) if regions else launch))
    return made + waiting


def stage_bytes(launches: Sequence[Dispatch], outside: Collection[DeviceBuffer]) -> int:
    """The most that a launch reads of the buffers `outside`, as half a stage holds it."""
    return max((sum(size for _, _, size in regions_of(launch, outside)) for launch in launches),
               default=0)


def aligned(bytes: int) -> int:
    """The next whole multiple of the alignment."""
    return -(-bytes // ALIGNMENT) * ALIGNMENT


def regions_of(launch: Dispatch, outside: Collection[DeviceBuffer]) -> list[Region]:
    """What a launch reads of the buffers `outside`, in whole multiples of the alignment."""
    found = []
    for (buffer, offset), binding in zip(launch.operands, launch.pipeline.bindings):
        if buffer in outside:
            begin = offset // ALIGNMENT * ALIGNMENT
            found.append((buffer, begin, aligned(offset + binding.bytes) - begin))
    return found


def places(regions: Sequence[Region], begin: int) -> list[int]:
    """Where the regions of a launch are put, one after the other from `begin` on."""
    found = [begin]
    for _, _, size in regions:
        found.append(found[-1] + size)
    return found[:-1]


def moved(launch: Dispatch, regions: Sequence[Region], stage: DeviceBuffer, begin: int) -> Dispatch:
    """The launch that reads `regions` from the stage."""
    operands = list(launch.operands)
    left = list(zip(regions, places(regions, begin)))
    for number, (buffer, offset) in enumerate(operands):
        if left and buffer is left[0][0][0]:
            (_, first, _), place = left.pop(0)
            operands[number] = stage, place + offset - first
    return replace(launch, operands=tuple(operands))
