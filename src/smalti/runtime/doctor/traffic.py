"""Probes of what happens around programs: copies, order, offsets, the clock, the speed of matrices.

They go through all that runs of programs go through: recordings, submissions, queues.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.target import Target
from smalti.errors import DeviceError, DeviceLostError, DeviceMemoryError, IllegalSchedule
from smalti.runtime.doctor.bench import Bench
from smalti.runtime.doctor.probe import DeviceProbe, ProbeCase
from smalti.runtime.doctor.rates import SPENT_SECONDS, product_programs, run_seconds
from smalti.runtime.gpu.interface import ComputePipeline, Copy, DeviceBuffer, Dispatch
from smalti.runtime.gpu.removals import (
    BUFFERS,
    MATRICES,
    TIMES,
    TRANSFER_QUEUE,
    above,
    matrix_shape,
    reduced,
    unexplained,
)
from smalti.schedule.group import BYTES, GroupLimits
from smalti.schedule.space_group import best_matrix

ELEMENTS, SIZE = 1 << 14, 64
"""Numbers of a buffer that launches change, and invocations of a work-group."""
CHAIN, FLIGHT = 100, 32
"""Launches of a recording that depend on each other, and submissions that are under way at a time.
"""
LARGE_BYTES = 20 << 20
"""More than two of the chunks in which what is written goes to a device."""
PIECES = (4, 60, 4096, 100_004, 3 << 20, 9 << 20)
"""Bytes of pieces that are written one after the other: within a chunk, and across several."""
FAR = 1 << 31, 1 << 32
"""Byte offsets that signed and unsigned numbers of 32 bits do not hold."""
AROUND = 1 << 16
"""Bytes behind such an offset that are used."""
ROOM = 3
"""How many times as much memory has to be free for a probe of a large buffer."""
SLACK_SECONDS, SLACK = 1e-3, 1.5
"""What the clock of a device may say beyond that of the host."""
ROUNDS = 3
"""How often matrices have to be slow, one time after the other."""
NO_FASTER = 1.25
"""How many times as long as without them products take with matrices that a driver emulates; what
lies between is noise."""


def probes(target: Target, limits: GroupLimits) -> Iterator[DeviceProbe]:
    """All of these probes, for a device of these limits."""
    yield plain("writing and reading", written_and_read)
    yield plain("launches that depend on each other", chained)
    yield plain("programs beside transfers", in_flight)
    yield plain("copies between launches", copied)
    yield plain("views that begin anywhere", anywhere)
    for far in FAR:
        yield DeviceProbe(f"beyond {far >> 30} GiB", partial(beyond, far))
    yield plain("the device's clock", clocked, (TIMES,))
    for precision in (*target.precisions, BYTES):
        if best_matrix(limits, precision) is not None:
            yield DeviceProbe(f"speed of matrices, {precision}", partial(faster, precision))


def plain(name: str, run: Callable[[Bench], str],
          suspects: tuple[str, ...] = (TRANSFER_QUEUE,)) -> DeviceProbe:
    """A probe of what is the same under all limits."""
    return DeviceProbe(name, lambda target, has: ProbeCase((name, has.keeps_nan), suspects, run))


def increment(elements: int = ELEMENTS) -> GroupProgram:
    """y[i] = 3 x[i] + 1, of u32."""
    b = Builder("increment", SIZE)
    x, y = b.binding("x", "u32", elements, "read"), b.binding("y", "u32", elements, "write")
    i = b.let(b.group[0] * SIZE + b.invocation)
    b.store(y, i, b.load(x, i) * 3 + 1)
    return b.finish((elements // SIZE, 1, 1))


def incremented(values: np.ndarray, times: int = 1) -> np.ndarray:
    """What so many launches of `increment` make of numbers."""
    for _ in range(times):
        values = values * np.uint32(3) + np.uint32(1)
    return values


def drawn(count: int = ELEMENTS, seed: int = 0) -> np.ndarray:
    """Numbers of 32 bits."""
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)


def alike(found: np.ndarray, expected: np.ndarray, what: str) -> str:
    """How many of some numbers are wrong, or nothing."""
    count = int(np.count_nonzero(found.view(np.uint32) != expected))
    return f"{count} of {expected.size} numbers are wrong {what}" if count else ""


def written_and_read(bench: Bench) -> str:
    """Pieces of many sizes are written to a buffer, and read back in others."""
    gpu, expected = bench.gpu, drawn(LARGE_BYTES // 4)
    buffer, data, at, turn = gpu.buffer(LARGE_BYTES), expected.view(np.uint8), 0, 0
    while at < LARGE_BYTES:
        end = min(LARGE_BYTES, at + PIECES[turn % len(PIECES)])
        gpu.write(buffer, at, data[at:end])
        at, turn = end, turn + 1
    half = LARGE_BYTES // 2 - 4
    found = np.concatenate([gpu.read(buffer, 0, half), gpu.read(buffer, half, LARGE_BYTES - half)])
    buffer.close()
    return alike(found, expected, "when they are read back")


def chained(bench: Bench) -> str:
    """Launches of one recording, each of which reads what the one before has written."""
    gpu, values = bench.gpu, drawn()
    (pipeline,) = bench.pipelines([increment()])
    buffer = gpu.buffer(2 * values.nbytes)
    recording = gpu.record([Dispatch(pipeline, (
        (buffer, values.nbytes * (turn % 2)), (buffer, values.nbytes * (1 - turn % 2))))
        for turn in range(CHAIN)])
    gpu.write(buffer, 0, values)
    gpu.run(recording)
    gpu.run(recording)
    found = gpu.read(buffer, 0, values.nbytes)
    recording.close()
    buffer.close()
    return alike(found, incremented(values, 2 * CHAIN), "after launches that depend on each other")


def in_flight(bench: Bench) -> str:
    """Submissions that follow each other at once, each with operands that are written just before,
    while others still run; the results are read at the end, and some in between."""
    gpu, inputs = bench.gpu, [drawn(seed=turn) for turn in range(FLIGHT)]
    size = inputs[0].nbytes
    (pipeline,) = bench.pipelines([increment()])
    given, results = gpu.buffer(size), gpu.buffer(size * FLIGHT)
    recordings = [gpu.record([Dispatch(pipeline, ((given, 0), (results, size * turn)))])
                  for turn in range(FLIGHT)]
    trouble = ""
    for turn, (recording, values) in enumerate(zip(recordings, inputs)):
        gpu.write(given, 0, values)
        gpu.run(recording)
        if turn % 8 == 7 and not trouble:
            trouble = alike(gpu.read(results, size * turn, size), incremented(values),
                            "beside transfers")
    found = gpu.read(results, 0, size * FLIGHT)
    for each in recordings:
        each.close()
    given.close()
    results.close()
    return trouble or alike(found, incremented(np.concatenate(inputs)), "beside transfers")


def copied(bench: Bench) -> str:
    """Launches with copies between them, from one buffer to another."""
    gpu, values = bench.gpu, drawn()
    (pipeline,) = bench.pipelines([increment()])
    one, two = gpu.buffer(2 * values.nbytes), gpu.buffer(values.nbytes)
    recording = gpu.record([
        Dispatch(pipeline, ((one, 0), (one, values.nbytes))),
        Copy(one, values.nbytes, two, 0, values.nbytes),
        Dispatch(pipeline, ((two, 0), (one, 0))), Copy(one, 0, two, 0, values.nbytes)])
    gpu.write(one, 0, values)
    gpu.run(recording)
    found = gpu.read(two, 0, values.nbytes)
    recording.close()
    one.close()
    two.close()
    return alike(found, incremented(values, 2), "after copies on the device")


def launched_at(bench: Bench, pipeline: ComputePipeline, buffer: DeviceBuffer, source: int,
                result: int, values: np.ndarray) -> np.ndarray:
    """What a launch writes to one offset of a buffer that reads `values` at another."""
    recording = bench.gpu.record([Dispatch(pipeline, ((buffer, source), (buffer, result)))])
    bench.gpu.write(buffer, source, values)
    bench.gpu.run(recording)
    found = bench.gpu.read(buffer, result, values.nbytes)
    recording.close()
    return found


def anywhere(bench: Bench) -> str:
    """Views of a buffer that begin at any number, not where descriptors may."""
    (pipeline,), trouble = bench.pipelines([increment(256)]), ""
    buffer = bench.gpu.buffer(1 << 14)
    for turn, offset in enumerate((4, 12, 36, 252, 260, 1020)):
        values = drawn(256, turn)
        found = launched_at(bench, pipeline, buffer, offset, 4096 + 3 * offset, values)
        trouble = trouble or alike(found, incremented(values), f"in a view that begins at {offset}")
    buffer.close()
    return trouble


def beyond(far: int, target: Target, limits: GroupLimits) -> ProbeCase | None:
    """A buffer that is larger than `far`, where the device has such ones."""
    if limits.buffer_bytes < far + AROUND:
        return None

    def run(bench: Bench) -> str:
        if bench.gpu.free_bytes() < ROOM * (far + AROUND):
            return ""
        (pipeline,) = bench.pipelines([increment(256)])
        buffer, low, values = bench.gpu.buffer(far + AROUND), drawn(1024, 1), drawn(256)
        bench.gpu.write(buffer, 0, low)
        found = launched_at(bench, pipeline, buffer, far + 256, far + 8192, values)
        kept = bench.gpu.read(buffer, 0, low.nbytes)
        buffer.close()
        return (alike(found, incremented(values), f"beyond {far >> 30} GiB of a buffer")
                or alike(kept, low, f"at the beginning of a buffer beyond whose {far >> 30} GiB "
                                    f"others were written"))

    return ProbeCase((far,), (above(BUFFERS, far - AROUND),), run)


def clocked(bench: Bench) -> str:
    """Times of launches, beside those of the host."""
    if not bench.timed:
        return ""
    gpu, values = bench.gpu, drawn()
    (pipeline,) = bench.pipelines([increment()])
    buffer = gpu.buffer(2 * values.nbytes)
    launches = [Dispatch(pipeline, ((buffer, 0), (buffer, values.nbytes)))] * 8
    try:
        recording = gpu.record(launches, timed=True)
    except (DeviceLostError, DeviceMemoryError):
        raise
    except DeviceError:
        return ""  # it has no clock, and does not say that it has one
    gpu.write(buffer, 0, values)
    took = bench.seconds(lambda: gpu.run(recording))
    told = recording.seconds()
    recording.close()
    buffer.close()
    if not all(math.isfinite(each) and each >= 0 for each in told):
        return "it says that launches took no time that there is"
    if sum(told) > SLACK * took + SLACK_SECONDS:
        return f"it says that launches took {sum(told):.3g} s, of {took:.3g} s that went by"
    return ""


def faster(precision: str, target: Target, limits: GroupLimits) -> ProbeCase | None:
    """A product in the matrix unit, and the same without it."""
    shape = best_matrix(limits, precision)
    if shape is None:
        return None
    bare = reduced(limits, [unexplained(MATRICES)])

    def run(bench: Bench) -> str:
        extent, without = 64, 0.0
        while without < SPENT_SECONDS / 4 and extent < 4096:
            extent *= 2
            try:
                programs = [product_programs(target, each, precision, extent)
                            for each in (limits, bare)]
            except IllegalSchedule:
                return ""
            took, without = (run_seconds(bench, each) for each in programs)
        for _ in range(ROUNDS):  # others may use the device, too
            if took < NO_FASTER * without:
                return ""
            took, without = (run_seconds(bench, each) for each in programs)
        return f"products take {took / without:.1f} times as long as without them"

    return ProbeCase((precision, shape), (matrix_shape(shape), MATRICES), run)
