"""GPUs that are broken on purpose: numpy runs their programs, and a fault changes what it does.

    gpu = BrokenGpu(FAULTS["lost writes"])

A fault says which programs it touches, and what of them it changes: what an expression gives, what
memory holds behind a launch, or what a call of the device does. What it does not touch is computed
once for all faults.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any
from unittest import mock

import numpy as np
from interpreted_gpu import Interpreted, InterpretedGpu, Memory, Recorded

from smalti.codegen.gpu import interpreter
from smalti.codegen.gpu.form import (
    Barrier,
    Expr,
    GroupProgram,
    MatrixLoad,
    Op,
    expressions,
    statements,
)
from smalti.codegen.gpu.instructions import SUBGROUP
from smalti.codegen.gpu.memory import STORED_DTYPES
from smalti.codegen.gpu.registers import shared_bytes
from smalti.codegen.gpu.target import group_target
from smalti.codegen.gpu.text import parse, show
from smalti.codegen.gpu.types import Matrix
from smalti.codegen.shader import Shader
from smalti.compiler.samples import SAMPLES
from smalti.errors import DeviceError, DeviceLostError, DeviceMemoryError, VerificationError
from smalti.runtime.device import Device
from smalti.runtime.doctor import kernels, process, programs, traffic
from smalti.runtime.doctor.found import Finding
from smalti.runtime.gpu import interface
from smalti.runtime.gpu.removals import (
    BF16,
    BINDINGS,
    BUFFERS,
    DEVICE,
    DOT_PRODUCTS,
    F16,
    GRIDS,
    GROUPS,
    KEPT_NAN,
    MATRICES,
    MATRIX_LINES,
    SHARED,
    STORAGE8,
    STORAGE16,
    SUBGROUP_OPERATIONS,
    SUBGROUP_SIZES,
    TIMES,
    TRANSFER_QUEUE,
    above,
    matrix_shape,
)
from smalti.schedule.group import GroupLimits, MatrixShape

LARGE, SMALL = MatrixShape(16, 16, 16, "f16", "f32"), MatrixShape(8, 8, 8, "f16", "f32")
BRAIN = MatrixShape(16, 16, 16, "bf16", "f32")
WHOLE = MatrixShape(16, 16, 32, "i8", "i32")
LIMITS = GroupLimits(
    shared_bytes=48 << 10, invocations=512, subgroup_min=16, subgroup_max=16, subgroup_choice=True,
    subgroup_operations=True, storage16=True, storage8=True, f16=True, bf16=True, keeps_nan=True,
    dot_i8=True, buffer_bytes=(1 << 31) + (1 << 20), buffer_range=1 << 30, bindings=16,
    grid=((1 << 17) + 3, 65535, 65535), matrices=(LARGE, SMALL, BRAIN, WHOLE))
HELD = replace(LIMITS, right_lines="columns", sum_lines="columns", left_words=True,
               matrices=(MatrixShape(16, 16, 32, "f16", "f32"), BRAIN))
"""Those of a device of which it is said what invocations hold of matrices: a column of sums and of
right factors, and a word of each row of left ones."""
SOME = ("product", "product of normalised rows", "pointwise", "wide pointwise", "sums of rows",
        "layer normalisation", "attention")
"""Samples of forms that faults show in."""
DEEP = ("product, depth 256",)

Arrays = Mapping[str, np.ndarray]
HEALTHY: dict[tuple, dict[str, np.ndarray]] = {}
"""What programs leave on a device without faults, by the program and what memory held before."""
EMITTED: dict[bytes, tuple[GroupProgram, GroupLimits]] = {}


def emit(program: GroupProgram, limits: GroupLimits) -> bytes:
    """The text of a program, and what of the device it relies on that the text does not show."""
    code = (f"{limits.keeps_nan} {limits.f16} {limits.bf16} {limits.storage8} "
            f"{limits.right_lines} {limits.dot_i8}\n{show(program)}").encode()
    EMITTED[code] = program, limits
    return code


TARGET = group_target("broken", "broken", emit, bytes.decode)


@dataclass(frozen=True)
class Fault:
    """What is wrong with a device, and what a check of it should remove: one of the sets `finds`,
    or nothing where the fault does no harm.

    `touches` says of a program and the limits that it was emitted for whether it is concerned.
    `value` changes what an expression gives, `after` what a launch leaves, `calls` methods of the
    device, each of which gets the device, the method, and the arguments. `limits` are what the
    device says of itself.
    """

    finds: tuple[set[str], ...] = (set(),)
    touches: Callable[[GroupProgram, GroupLimits], bool] = lambda program, limits: True
    value: Callable[[Any, Expr, np.ndarray], np.ndarray] | None = None
    after: Callable[[GroupProgram, Arrays, dict[str, np.ndarray]], None] | None = None
    subgroup: int = 0
    slow: float = 1.0
    calls: Mapping[str, Callable] = frozenset()  # type: ignore[assignment]
    limits: GroupLimits = LIMITS


class BrokenGpu(InterpretedGpu):
    """A GPU with a fault. `clock` is a time of its own, in which a launch takes 5 ms, and one with
    matrices 1 ms."""

    target = TARGET

    def __init__(self, fault: Fault, without: Sequence[str] = ()) -> None:
        super().__init__(fault.limits)
        self.fault, self.without, self.now = fault, tuple(without), 0.0
        self.device = Device("broken:0", "A broken GPU", "discrete", 8 << 30, (),
                             driver="broken 1.0", identity="broken")
        self.pending: list[tuple[Memory, int, np.ndarray]] = []
        self.seen: dict[tuple, np.ndarray] = {}
        for name, call in dict(fault.calls).items():
            setattr(self, name, self._replaced(call, getattr(self, name)))

    def _replaced(self, call: Callable, method: Callable) -> Callable:
        return lambda *arguments, **options: call(self, method, *arguments, **options)

    def clock(self) -> float:
        """Seconds of its own."""
        return self.now

    def build(self, shader: Shader, code: bytes) -> Interpreted:
        program, limits = EMITTED.get(code) or (parse(code.partition(b"\n")[2].decode()), LIMITS)
        made = Interpreted(shader, program)
        made.limits = limits
        return made

    def buffer(self, bytes: int, *, kind: str = "device") -> Memory:
        if bytes < 1 << 28:
            return Memory(bytes, kind)
        made = Memory(0, kind)
        made.bytes, made.memory = bytes, np.zeros(bytes, np.uint8)  # which takes no room until used
        return made

    def launch(self, dispatch: interface.Dispatch) -> None:
        """Run one launch."""
        pipeline, views = dispatch.pipeline, {}
        for binding, (buffer, offset) in zip(pipeline.program.bindings, dispatch.operands):
            kind = STORED_DTYPES[binding.dtype]
            views[binding.name] = buffer.memory[
                offset:offset + kind.itemsize * binding.elements].view(kind)
        found = self.ran(pipeline.program, pipeline.limits, views)
        for binding in pipeline.program.bindings:
            if binding.access != "read":
                views[binding.name][:] = found[binding.name]
        matrices = bool(shapes(pipeline.program))
        self.now += (1e-3 * self.fault.slow) if matrices else 5e-3

    def run(self, recording: Recorded) -> None:
        for launch in recording.launches:
            if isinstance(launch, interface.Copy):
                self.copy(launch)
            else:
                self.launch(launch)

    def copy(self, copy: interface.Copy) -> None:
        """Do a copy of a recording."""
        data = copy.source.memory[copy.source_offset:copy.source_offset + copy.bytes].copy()
        copy.target.memory[copy.target_offset:copy.target_offset + copy.bytes] = data

    def record(self, launches, *, timed: bool = False) -> Recorded:
        return Recorded(launches)

    def ran(self, program: GroupProgram, limits: GroupLimits, views: Arrays
            ) -> dict[str, np.ndarray]:
        """What a launch leaves."""
        fault = self.fault
        touched = fault.touches(program, limits)
        if touched and (fault.value or fault.subgroup):
            found = interpreted(program, views, fault)
        else:
            found = healthy(program, views)
        if touched and fault.after is not None:
            found = {name: array.copy() for name, array in found.items()}
            fault.after(program, views, found)
        return found


def healthy(program: GroupProgram, views: Arrays) -> dict[str, np.ndarray]:
    """What a launch leaves on a device without faults."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(views):
        digest.update(views[name].tobytes())
    key = program, digest.digest()
    if key not in HEALTHY:
        HEALTHY[key] = interpreter.run(program, copies(views), subgroup=LIMITS.subgroup_min)
    return HEALTHY[key]


def copies(views: Arrays) -> dict[str, np.ndarray]:
    return {name: view.copy() for name, view in views.items()}


def interpreted(program: GroupProgram, views: Arrays, fault: Fault) -> dict[str, np.ndarray]:
    """What a launch leaves whose expressions give something else; nothing where it can no longer
    be said what that means."""
    class Batch(interpreter._Batch):
        def value(self, expr: Expr) -> np.ndarray:
            found = super().value(expr)
            return found if fault.value is None else fault.value(self, expr, found)

    if fault.subgroup and program.subgroup:
        program = replace(program, subgroup=fault.subgroup)
    try:
        with mock.patch.object(interpreter, "_Batch", Batch):
            return interpreter.run(program, copies(views), subgroup=LIMITS.subgroup_min)
    except VerificationError:
        return copies(views)


# ---------------------------------------------------------------------- what programs use


def shapes(program: GroupProgram) -> set[MatrixShape]:
    """The products of matrices of a program."""
    found = set()
    for each in expressions(program.body):
        if isinstance(each, Op) and each.instruction == "matrix_multiply_add":
            a, b, total = (argument.type for argument in each.arguments)
            found.add(MatrixShape(a.rows, b.columns, a.columns, a.scalar, total.scalar))
    return found


def uses(*names: str) -> Callable[[GroupProgram, GroupLimits], bool]:
    """Whether a program has one of these instructions."""
    return lambda program, limits: any(
        isinstance(each, Op) and each.instruction in names for each in expressions(program.body))


def has_shape(*wanted: MatrixShape) -> Callable[[GroupProgram, GroupLimits], bool]:
    """Whether a program multiplies matrices of such a shape."""
    return lambda program, limits: bool(shapes(program) & set(wanted))


def loads_bytes(program: GroupProgram, limits: GroupLimits) -> bool:
    """Whether a program reads matrices of bytes."""
    return any(isinstance(each, MatrixLoad) and each.type.scalar == "i8"
               for each in expressions(program.body))


def stores(*dtypes: str) -> Callable[[GroupProgram, GroupLimits], bool]:
    """Whether a program has bindings of one of these dtypes."""
    return lambda program, limits: any(b.dtype in dtypes for b in program.bindings)


def computes_f16(program: GroupProgram, limits: GroupLimits) -> bool:
    """Whether a program relies on f16 as a type of its own."""
    return limits.f16 and (stores("f16")(program, limits) or any(
        each.type.scalar == "f16" for each in expressions(program.body)))


def multiplies_words(program: GroupProgram, limits: GroupLimits) -> bool:
    """Whether a program uses the instruction for dot products of bytes."""
    return limits.dot_i8 and uses("dot_i8")(program, limits)


def has_barriers(program: GroupProgram, limits: GroupLimits) -> bool:
    return any(isinstance(each, Barrier) for each in statements(program.body))


def loops(program: GroupProgram, limits: GroupLimits) -> bool:
    return any(type(each).__name__ == "Loop" for each in statements(program.body))


def written(program: GroupProgram) -> list[str]:
    return [b.name for b in program.bindings if b.access != "read"]


# ---------------------------------------------------------------------- faults of values


def given_by(name: str, change: Callable[[Any, Op, np.ndarray], np.ndarray]) -> Callable:
    """Changes what an instruction gives."""
    return lambda batch, expr, found: change(batch, expr, found) if (
        isinstance(expr, Op) and expr.instruction == name) else found


def product_of(*wanted: MatrixShape, by: Callable[[np.ndarray], np.ndarray]) -> Callable:
    """Changes what products of matrices of these shapes give."""
    def change(batch: Any, expr: Op, found: np.ndarray) -> np.ndarray:
        a, b, total = (argument.type for argument in expr.arguments)
        shape = MatrixShape(a.rows, b.columns, a.columns, a.scalar, total.scalar)
        return by(found) if shape in wanted else found

    return given_by("matrix_multiply_add", change)


def corner(found: np.ndarray) -> np.ndarray:
    """A matrix whose last element is wrong."""
    found = found.copy()
    found[..., -1, -1] += 1
    return found


def by_columns(batch: Any, expr: Expr, found: np.ndarray) -> np.ndarray:
    """Matrices that lie by columns are read by rows."""
    if type(expr).__name__ != "MatrixLoad" or not expr.by_columns:
        return found
    rows, columns = found.shape[-2:]
    return found.swapaxes(-1, -2).reshape(*found.shape[:-2], rows, columns)


def of_rows(batch: Any, expr: Expr, found: np.ndarray) -> np.ndarray:
    """Invocations hold rows of sums, not columns."""
    if not isinstance(expr, Op) or expr.instruction not in ("of_column", "with_columns"):
        return found
    if expr.arguments[0].type.role != "sum":
        return found
    if expr.instruction == "with_columns":
        return found.swapaxes(-1, -2)
    return batch.held(expr, batch.value(expr.arguments[0]).swapaxes(-1, -2), ())


def of_other_columns(batch: Any, expr: Op, found: np.ndarray) -> np.ndarray:
    """What invocations give of right factors is of the next column."""
    return np.roll(found, 1, axis=-1) if expr.type.role == "b" else found


def of_other_words(batch: Any, expr: Op, found: np.ndarray) -> np.ndarray:
    """What invocations give of left factors is the next word."""
    return np.roll(found, 2, axis=-1)


def garbage(batch: Any, expr: Op, found: np.ndarray) -> np.ndarray:
    return np.roll(found, 1, axis=1)


def far_shuffles(batch: Any, expr: Op, found: np.ndarray) -> np.ndarray:
    """Lanes of the other half of a subgroup cannot be asked."""
    return np.zeros_like(found) if expr.arguments[1].value >= 8 else found


def large_sums(batch: Any, expr: Op, found: np.ndarray) -> np.ndarray:
    """Sums of 8 and more are wrong."""
    return np.where(np.abs(found) >= 8, found * np.float32(0.5), found)


def saturated(found: np.ndarray) -> np.ndarray:
    return np.clip(found, -30, 30)


def f16_only(change: Callable[[np.ndarray], np.ndarray]) -> Callable:
    """Changes values of arithmetic in f16."""
    return lambda batch, expr, found: change(found) if (
        isinstance(expr, Op) and not isinstance(expr.type, Matrix) and expr.type.scalar == "f16"
        and expr.instruction not in ("vector", "component", "convert")) else found


# ---------------------------------------------------------------------- faults of launches


def without_last(program: GroupProgram, before: Arrays, found: dict[str, np.ndarray]) -> None:
    """The last element of each result is not written."""
    for name in written(program):
        found[name][-1:] = before[name][-1:]


def without_any(program: GroupProgram, before: Arrays, found: dict[str, np.ndarray]) -> None:
    found.update(copies(before))


def scaled_by(factor: float) -> Callable:
    """Results are off."""
    def change(program: GroupProgram, before: Arrays, found: dict[str, np.ndarray]) -> None:
        for name in written(program):
            if np.issubdtype(found[name].dtype, np.floating):
                with np.errstate(all="ignore"):
                    found[name] = found[name] * found[name].dtype.type(factor)
    return change


def random_holes(program: GroupProgram, before: Arrays, found: dict[str, np.ndarray]) -> None:
    """Some elements of large results are not written, others each time."""
    for name in written(program):
        holes = np.random.default_rng().integers(0, found[name].size, found[name].size // 64)
        found[name][holes] = before[name][holes]


def no_nan(program: GroupProgram, before: Arrays, found: dict[str, np.ndarray]) -> None:
    """NaN that a program makes becomes 0."""
    for name in written(program):
        array = found[name]
        if np.issubdtype(array.dtype, np.floating):
            changed = array.view(f"u{array.itemsize}") != before[name].view(f"u{array.itemsize}")
            array[changed & np.isnan(array)] = 0


def no_denormals(program: GroupProgram, before: Arrays, found: dict[str, np.ndarray]) -> None:
    """Numbers that are too small for the usual form become 0."""
    for name in written(program):
        if found[name].dtype in (np.float32, np.float16):
            found[name][np.abs(found[name]) < np.finfo(found[name].dtype).tiny] = 0


def only_first(most: int) -> Callable:
    """Of more work-groups than so many along an axis, none does anything."""
    def change(program: GroupProgram, before: Arrays, found: dict[str, np.ndarray]) -> None:
        if max(program.groups) > most:
            for name in written(program):
                found[name][most:] = before[name][most:]
    return change


def as_if_unwritten(bytes: int) -> Callable:
    """What lies in shared memory behind so many bytes is lost."""
    def change(program: GroupProgram, before: Arrays, found: dict[str, np.ndarray]) -> None:
        if shared_bytes(program) > bytes:
            for name in written(program):
                found[name][found[name].size // 2:] = before[name][found[name].size // 2:]
    return change


def overflowing(program: GroupProgram, before: Arrays, found: dict[str, np.ndarray]) -> None:
    """Numbers of f16 above 1024 become infinite."""
    for name in written(program):
        with np.errstate(invalid="ignore"):
            large = np.abs(found[name].astype(np.float32)) > 1024
        if np.issubdtype(found[name].dtype, np.floating):
            found[name][large] = np.inf


def unsigned_bytes(program: GroupProgram, before: Arrays, found: dict[str, np.ndarray]) -> None:
    """Signed bytes are read as unsigned ones."""
    for name in written(program):
        if found[name].dtype == np.int32:
            found[name] &= 0xFF


# ---------------------------------------------------------------------- faults of calls


def beside(gpu: BrokenGpu, run: Callable, recording: Recorded) -> None:
    """A word behind what each launch writes is written, too."""
    run(recording)
    for launch in recording.launches:
        if isinstance(launch, interface.Dispatch):
            for binding, (buffer, offset) in zip(launch.pipeline.program.bindings,
                                                 launch.operands):
                if binding.access != "read":
                    end = offset + binding.elements * STORED_DTYPES[binding.dtype].itemsize
                    buffer.memory[end:end + 4] = 0x11


def late_writes(gpu: BrokenGpu, write: Callable, buffer: Memory, offset: int,
                data: np.ndarray) -> None:
    """What is written by a queue of its own arrives behind the next run."""
    if TRANSFER_QUEUE in gpu.without:
        write(buffer, offset, data)
        return
    gpu.pending.append((buffer, offset, np.array(np.ascontiguousarray(data).reshape(-1))))


def then_written(gpu: BrokenGpu, run: Callable, recording: Recorded) -> None:
    run(recording)
    arrive(gpu)


def after_writing(gpu: BrokenGpu, read: Callable, *arguments: Any) -> np.ndarray:
    arrive(gpu)
    return read(*arguments)


def arrive(gpu: BrokenGpu) -> None:
    for buffer, offset, data in gpu.pending:
        InterpretedGpu.write(gpu, buffer, offset, data)
    gpu.pending.clear()


def early_reads(gpu: BrokenGpu, run: Callable, recording: Recorded) -> None:
    """What a run writes is seen by the next read but one."""
    buffers = {id(buffer): buffer for launch in recording.launches
               if isinstance(launch, interface.Dispatch) for buffer, _ in launch.operands}
    gpu.seen = {("before", key): buffer.memory.copy() for key, buffer in buffers.items()
                if buffer.bytes < 1 << 28}
    run(recording)


def what_was(gpu: BrokenGpu, read: Callable, buffer: Memory, offset: int,
             bytes: int) -> np.ndarray:
    old = gpu.seen.pop(("before", id(buffer)), None)
    return read(buffer, offset, bytes) if old is None else old[offset:offset + bytes].copy()


def stale(gpu: BrokenGpu, launch: Callable, dispatch: interface.Dispatch) -> None:
    """What a launch has read once it reads again, whatever was written since."""
    program, kept = dispatch.pipeline.program, []
    for binding, (buffer, offset) in zip(program.bindings, dispatch.operands):
        size = binding.elements * STORED_DTYPES[binding.dtype].itemsize
        if binding.access == "read" and size <= 1 << 20:
            view, key = buffer.memory[offset:offset + size], (id(buffer), offset, size)
            kept.append((view, view.copy()))
            view[:] = gpu.seen.setdefault(key, view.copy())
    launch(dispatch)
    for view, data in kept:
        if not any(np.shares_memory(view, other.memory[at:at + 1]) for binding, (other, at) in zip(
                program.bindings, dispatch.operands) if binding.access != "read"):
            view[:] = data


def unordered(gpu: BrokenGpu, run: Callable, recording: Recorded) -> None:
    """Launches that depend on each other run the other way round."""
    run(Recorded(tuple(reversed(recording.launches))))


def no_copies(gpu: BrokenGpu, copy: Callable, launch: interface.Copy) -> None:
    """Copies of a recording are lost."""


def aligned(gpu: BrokenGpu, launch: Callable, dispatch: interface.Dispatch) -> None:
    """Views begin at multiples of 64 bytes, whatever was said."""
    launch(replace(dispatch, operands=tuple((buffer, offset // 64 * 64)
                                            for buffer, offset in dispatch.operands)))


def wrapped(gpu: BrokenGpu, launch: Callable, dispatch: interface.Dispatch) -> None:
    """Offsets beyond 2 GiB wrap."""
    launch(replace(dispatch, operands=tuple((buffer, offset % (1 << 31))
                                            for buffer, offset in dispatch.operands)))


def few_bindings(gpu: BrokenGpu, launch: Callable, dispatch: interface.Dispatch) -> None:
    """The ninth buffer of a program, and those behind it, are the first one."""
    operands = tuple(each if number < 8 else dispatch.operands[0]
                     for number, each in enumerate(dispatch.operands))
    if len(operands) <= 8:
        launch(dispatch)
    else:
        last = dispatch.operands[-1]
        launch(replace(dispatch, operands=(*operands[:-1], last)))


def lost_when(touches: Callable[[GroupProgram, GroupLimits], bool]) -> Callable:
    """The device is lost when such a program runs."""
    def launch(gpu: BrokenGpu, launch: Callable, dispatch: interface.Dispatch) -> None:
        if touches(dispatch.pipeline.program, dispatch.pipeline.limits):
            gpu.lost = True
            raise DeviceLostError("the device was lost; open it anew")
        launch(dispatch)
    return launch


def refused_when(touches: Callable[[GroupProgram, GroupLimits], bool]) -> Callable:
    """The driver does not compile such programs."""
    def build(gpu: BrokenGpu, build: Callable, shader: Shader, code: bytes) -> Interpreted:
        made = build(shader, code)
        if touches(made.program, made.limits):
            raise DeviceError("the driver does not compile it")
        return made
    return build


def ended_when(touches: Callable[[GroupProgram, GroupLimits], bool], how: Callable[[], None]
               ) -> Callable:
    """The process ends, or hangs, when such a program is compiled."""
    def build(gpu: BrokenGpu, build: Callable, shader: Shader, code: bytes) -> Interpreted:
        made = build(shader, code)
        if touches(made.program, made.limits):
            how()
        return made
    return build


def crash() -> None:
    os._exit(139)


def hang() -> None:
    time.sleep(600)


def full(gpu: BrokenGpu, *_: object, **__: object) -> Memory:
    raise DeviceMemoryError("64 MB were asked for, 0 are free")


def timing(*times: float) -> Callable:
    """The clock of the device says something else."""
    class Timed(Recorded):
        def seconds(self) -> tuple[float, ...]:
            return tuple(times[number % len(times)] for number in range(len(self.launches)))

    return lambda gpu, record, launches, timed=False: (Timed if timed else Recorded)(launches)


def no_clock(gpu: BrokenGpu, record: Callable, launches: Sequence, timed: bool = False) -> Recorded:
    """The device tells no times, and says so."""
    if timed:
        raise DeviceError("it tells no times")
    return record(launches)


# ---------------------------------------------------------------------- the table

ALL_OF_F16 = {matrix_shape(LARGE), matrix_shape(SMALL)}
ALL_SHAPES = ALL_OF_F16 | {matrix_shape(BRAIN), matrix_shape(WHOLE)}
SUBGROUPS = ({SUBGROUP_OPERATIONS}, {SUBGROUP_SIZES}, {SUBGROUP_OPERATIONS, SUBGROUP_SIZES})
NO_MATRICES = (ALL_SHAPES, {MATRICES}, ALL_OF_F16 | {MATRICES}, ALL_SHAPES | {MATRICES})
LARGE_ONLY, OFF = ({matrix_shape(LARGE)},), ({DEVICE},)
WHOLE_ONLY = ({matrix_shape(WHOLE)},)

FAULTS: dict[str, Fault] = {
    "nothing": Fault(),
    "products of a shape are off by 1 %": Fault(LARGE_ONLY, has_shape(LARGE), product_of(
        LARGE, by=lambda found: found * np.float32(1.01))),
    "the corner of products of a shape is wrong": Fault(
        LARGE_ONLY, has_shape(LARGE), product_of(LARGE, by=corner)),
    "products of all shapes of f16 are zero": Fault(
        (ALL_OF_F16, {MATRICES}), has_shape(LARGE, SMALL),
        product_of(LARGE, SMALL, by=np.zeros_like)),
    "products of bf16 are off": Fault(({matrix_shape(BRAIN)}, {MATRICES}), has_shape(BRAIN),
                                      product_of(BRAIN, by=lambda found: found * np.float32(0.9))),
    "matrices of bytes have no sign": Fault(
        WHOLE_ONLY, loads_bytes, lambda batch, expr, found: found.astype(np.int16) & 0xFF if (
            isinstance(expr, MatrixLoad) and expr.type.scalar == "i8") else found),
    "sums of matrices of bytes saturate": Fault(
        WHOLE_ONLY, has_shape(WHOLE), product_of(
            WHOLE, by=lambda found: np.clip(found, -2**15, 2**15 - 1))),
    "products of matrices of bytes forget their sums": Fault(
        WHOLE_ONLY, has_shape(WHOLE), given_by("matrix_multiply_add", lambda batch, expr, found:
                                               found - batch.value(expr.arguments[2]) if
                                               expr.type.scalar == "i32" else found)),
    "sums of matrices saturate": Fault(LARGE_ONLY, has_shape(LARGE),
                                       product_of(LARGE, by=saturated)),
    "matrices by columns are read by rows": Fault(
        NO_MATRICES, uses("matrix_multiply_add"), by_columns),
    "invocations hold rows of right factors, not columns": Fault(
        ({MATRIX_LINES},), lambda program, limits: bool(limits.right_lines) and has_shape(LARGE)(
            program, limits), by_columns, limits=replace(LIMITS, right_lines="columns")),
    "invocations hold rows of sums, not columns": Fault(
        ({MATRIX_LINES},), uses("of_column", "with_columns"), of_rows, limits=HELD),
    "invocations hold other columns of right factors": Fault(
        ({MATRIX_LINES},), uses("with_columns"), given_by("with_columns", of_other_columns),
        limits=HELD),
    "invocations hold other words of left factors": Fault(
        ({MATRIX_LINES},), uses("with_words"), given_by("with_words", of_other_words),
        limits=HELD),
    "matrices are emulated": Fault(
        (ALL_SHAPES, {MATRICES}, ALL_OF_F16 | {MATRICES}), slow=100.0),
    "programs with matrices are not compiled": Fault(
        NO_MATRICES, calls={"build": refused_when(uses("matrix_multiply_add"))}),
    "the device is lost in products of a shape": Fault(
        LARGE_ONLY, calls={"launch": lost_when(has_shape(LARGE))}),
    "subgroups are half as large": Fault(
        (*SUBGROUPS, *(each | more for each in SUBGROUPS for more in NO_MATRICES)),
        lambda program, limits: program.subgroup > 0, subgroup=8),
    "shuffles give garbage": Fault(SUBGROUPS, uses("subgroup_shuffle", "subgroup_shuffle_xor"),
                                   lambda batch, expr, found: garbage(batch, expr, found) if
                                   isinstance(expr, Op) and "shuffle" in expr.instruction
                                   else found),
    "far shuffles give nothing": Fault(SUBGROUPS, uses("subgroup_shuffle_xor"),
                                       given_by("subgroup_shuffle_xor", far_shuffles)),
    "sums of subgroups are wrong when large": Fault(SUBGROUPS, uses("subgroup_add"),
                                                    given_by("subgroup_add", large_sums)),
    "the largest of a subgroup is another": Fault(SUBGROUPS, uses("subgroup_max"),
                                                  given_by("subgroup_max", garbage)),
    "the least of a subgroup is another": Fault(SUBGROUPS, uses("subgroup_min"), given_by(
        "subgroup_min", lambda batch, expr, found: found - 1)),
    "subgroups lose the device": Fault(SUBGROUPS, calls={"launch": lost_when(uses(*SUBGROUP))}),
    "the last element is not written": Fault(OFF, after=without_last),
    "some elements are not written, others each time": Fault(OFF, after=random_holes),
    "nothing is written": Fault(OFF, after=without_any),
    "a word behind the result is written": Fault(OFF, calls={"run": beside}),
    "barriers do nothing": Fault(OFF, has_barriers, after=random_holes),
    "shared memory ends early": Fault(
        ({above(SHARED, 32 << 10)}, {above(SHARED, 16 << 10)}), after=as_if_unwritten(40 << 10)),
    "large work-groups do nothing": Fault(
        ({above(GROUPS, 256)},), lambda program, limits: program.size > 256, after=without_any),
    "grids end at 16 bits": Fault(({above(GRIDS, 65535)},), after=only_first(65535)),
    "grids end at 15 bits": Fault(OFF, after=only_first(32767)),
    "NaN is dropped where it was to be kept": Fault(
        ({KEPT_NAN},), lambda program, limits: limits.keeps_nan, after=no_nan),
    "NaN is always dropped": Fault(OFF, after=no_nan),
    "small numbers become 0": Fault(after=no_denormals),
    "arithmetic in f16 is coarse": Fault(({F16},), computes_f16,
                                         f16_only(lambda found: found * np.float16(1.02))),
    "f16 loses the device": Fault(({F16}, {F16} | ALL_OF_F16),
                                  calls={"launch": lost_when(computes_f16)}),
    "f16 overflows early": Fault(({STORAGE16}, {F16, STORAGE16}), stores("f16"),
                                 after=overflowing),
    "bf16 is converted wrongly": Fault(
        ({BF16},), lambda program, limits: limits.bf16 and stores("bf16")(program, limits),
        after=scaled_by(1.1)),
    "bf16 is not compiled": Fault(({BF16}, {BF16, matrix_shape(BRAIN)}), calls={
        "build": refused_when(
            lambda program, limits: limits.bf16 and stores("bf16")(program, limits))}),
    "bytes lose their sign": Fault(
        ({STORAGE8},), lambda program, limits: limits.storage8 and stores("i8")(program, limits),
        after=unsigned_bytes),
    "dot products saturate at 16 bits": Fault(({DOT_PRODUCTS},), multiplies_words, given_by(
        "dot_i8", lambda batch, expr, found: np.clip(found, -(1 << 15), (1 << 15) - 1))),
    "dot products take bytes for unsigned": Fault(({DOT_PRODUCTS},), multiplies_words, given_by(
        "dot_i8", lambda batch, expr, found: np.abs(found))),
    "whole numbers are multiplied as f32": Fault(OFF, uses("mul"), given_by(
        "mul", lambda batch, expr, found: np.float32(found).astype(np.uint64).astype(np.uint32)
        if expr.type.scalar == "u32" else found)),
    "exponentials are coarse": Fault(OFF, uses("exp", "exp2"),
                                     lambda batch, expr, found: found * np.float32(1.001)
                                     if isinstance(expr, Op) and expr.instruction in (
                                         "exp", "exp2") else found),
    "roots are coarse": Fault(OFF, uses("sqrt", "inverse_sqrt"),
                              lambda batch, expr, found: found * np.float32(1.001)
                              if isinstance(expr, Op) and "sqrt" in expr.instruction else found),
    "launches read what was there before": Fault(OFF, calls={"launch": stale}),
    "writes arrive late": Fault(({TRANSFER_QUEUE},), calls={
        "write": late_writes, "run": then_written, "read": after_writing}),
    "reads come too early": Fault(OFF, calls={"run": early_reads, "read": what_was}),
    "launches run in another order": Fault(OFF, calls={"run": unordered}),
    "copies of a recording are lost": Fault(OFF, calls={"copy": no_copies}),
    "views begin at lines of memory only": Fault(OFF, calls={"launch": aligned}),
    "offsets beyond 2 GiB wrap": Fault(
        ({above(BUFFERS, (1 << 31) - traffic.AROUND)},), calls={"launch": wrapped}),
    "the ninth buffer is the first": Fault(({above(BINDINGS, 8)},),
                                           calls={"launch": few_bindings}),
    "there is no clock": Fault(calls={"record": no_clock}),
    "times are negative": Fault(({TIMES},), calls={"record": timing(-1e-3)}),
    "times are none": Fault(({TIMES},), calls={"record": timing(float("nan"), 1e-5)}),
    "times are far too long": Fault(({TIMES},), calls={"record": timing(1e3)}),
    "the device is always lost": Fault(OFF, calls={"launch": lost_when(
        lambda program, limits: True)}),
    "nothing is compiled": Fault(OFF, calls={"build": refused_when(lambda program, limits: True)}),
}
"""What may be wrong with a device that still answers."""


def check_removed(found: Sequence[Finding], finds: Sequence[set[str]]) -> None:
    """Assert that what was removed is one of the sets; of a device that is removed, it is all the
    same what else is."""
    removed = {each for finding in found for each in finding.removed}
    assert removed in finds or {DEVICE} in finds and DEVICE in removed, found


ENDING: dict[str, Fault] = {
    "compiling matrices crashes": Fault(NO_MATRICES, calls={"build": ended_when(
        uses("matrix_multiply_add"), crash)}),
    "compiling operations of subgroups hangs": Fault(SUBGROUPS, calls={"build": ended_when(
        uses(*SUBGROUP), hang)}),
    "large work-groups crash": Fault(({above(GROUPS, 256)},), calls={"build": ended_when(
        lambda program, limits: program.size > 256, crash)}),
    "everything crashes": Fault(OFF, calls={"build": ended_when(
        lambda program, limits: True, crash)}),
    "opening crashes": Fault(OFF), "opening hangs": Fault(OFF),
    "the device is lost in products of a shape": FAULTS[
        "the device is lost in products of a shape"],
    "memory is full": Fault(calls={"buffer": full}),
    "opening is refused": Fault(),
}
"""Faults that end a process, or that are no verdict."""


def few(target, limits: GroupLimits):
    """Probes that do not take long in numpy."""
    return chain(traffic.probes(target, limits), programs.probes(target, limits),
                 kernels.probes(target, limits, {name: SAMPLES[name] for name in SOME},
                                {name: kernels.SHAPES[name] for name in DEEP}))


def fewest(target, limits: GroupLimits):
    """Probes of programs, and the first few of what happens around them."""
    return chain(list(traffic.probes(target, limits))[:2], programs.probes(target, limits))


def told(question: Mapping[str, Any], say: Callable) -> None:
    """A process that checks a broken device, instead of `process.told`."""
    name = question["fault"]
    print("a driver says something")

    def opened(without: tuple[str, ...]) -> BrokenGpu:
        if name == "opening is refused":
            raise DeviceError("somebody else has the device")
        if name.startswith("opening"):
            (crash if name.endswith("crashes") else hang)()
        return BrokenGpu(ENDING[name], without)

    process.check(opened, question["known"], say, fewest, None)
