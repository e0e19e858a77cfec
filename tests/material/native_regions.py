"""Runs the partition of a graph kernel by kernel on this CPU, in memory that shows stray accesses.
Kernels for levels that it does not have run emulated (`emulated.py`).

Every storage starts as NaN and lies between two margins; a kernel that reads what nobody wrote
gives NaN, one that writes outside its storage is named by `StrayWrite`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import emulated
import numpy as np
import pytest
from hypothesis import strategies as st

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.block import joined
from smalti.codegen.cpu.layout import LAUNCH, aligned
from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.cpu.lowered import KernelStep
from smalti.codegen.cpu.packing import lower_packing
from smalti.codegen.levels import level
from smalti.fuse import Partition, Region, View, partition
from smalti.fuse.precision import held, stored_in
from smalti.fuse.view import Storage
from smalti.graph import Graph, evaluate
from smalti.graph.operation import DTYPES
from smalti.graph.quantised import FORMATS, Quantised
from smalti.kernel.form import Kernel
from smalti.kernel.interpreter import as_stored
from smalti.runtime.cpu.adapter import available_levels
from smalti.runtime.cpu.executable import Executable
from smalti.runtime.cpu.threads import call, context, driver_entry
from smalti.schedule import ContractionSchedule, Limits, Schedule, choose
from smalti.schedule.arithmetic import arithmetic

Arrays = dict[str, np.ndarray]
Pick = Callable[[Kernel, Limits, str], Schedule]
TRIED = emulated.asked or available_levels()
"""The levels that kernels are tried on."""
INTEGER_LEVELS = [name for name in TRIED if level(name).integers]
LEVELS = [name for name in TRIED if not name.endswith(("_vnni", "_dot"))]
"""Levels whose names end so differ from another one in products of integers only."""
EACH_LEVEL = pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == LEVELS[-1] else pytest.mark.sweep) for name in LEVELS])
"""The last one in each run, the others in the sweep: for whole models, whose kernels are tried on
each by tests of their own."""
MARGIN_BYTES = 256
MARGIN, NAN = 0xA5, 0xFF
SCRATCH_ALIGNMENT = 4096


class StrayWrite(AssertionError):
    """Generated code wrote outside the memory that it was given."""


class Block:
    """`size` bytes of `fill` between two margins, at a multiple of 64 or of `alignment`."""

    def __init__(self, size: int, alignment: int = 64, fill: int = NAN) -> None:
        raw = np.full(size + 2 * MARGIN_BYTES + alignment, MARGIN, np.uint8)
        start = -(raw.ctypes.data + MARGIN_BYTES) % alignment
        self.whole = raw[start:start + size + 2 * MARGIN_BYTES]
        self.bytes = self.whole[MARGIN_BYTES:MARGIN_BYTES + size]
        self.bytes[:] = fill
        self.address = self.bytes.ctypes.data

    def check(self, what: str) -> None:
        """Raise StrayWrite when a margin is not as it was."""
        margins = (self.whole[:MARGIN_BYTES], self.whole[MARGIN_BYTES + len(self.bytes):])
        if any((margin != MARGIN).any() for margin in margins):
            raise StrayWrite(f"{what} wrote outside its memory")


def run_steps(name: str, steps: Sequence[KernelStep], arrays: Sequence[np.ndarray],
              scratch: np.ndarray | None = None) -> None:
    """Call every tile of every step, made for the level `name`, with pointers to `arrays`."""
    used = [*arrays] if scratch is None else [*arrays, scratch]
    whole = [each if each.base is None else each.base for each in used]
    memory = {id(each): each.reshape(-1).view(np.uint8) for each in whole}
    called(name, steps, [each.ctypes.data for each in arrays],
           0 if scratch is None else scratch.ctypes.data, list(memory.values()))


def called(name: str, steps: Sequence[KernelStep], pointers: Sequence[int], scratch: int,
           memory: Sequence[np.ndarray], parts: Sequence[tuple[int, int]] = ()) -> None:
    """Call what `emulated.spans` says of steps, in order, in this thread, with pointers to places
    in `memory`; emulated where this CPU lacks the level `name`."""
    if name not in available_levels():
        emulated.run(name, steps, pointers, scratch, memory, parts)
        return
    block, places = joined([step.code for step in steps])
    code = Executable(block)
    held = np.array(pointers, np.uint64)
    launches = emulated.spans(steps, places, parts)
    counters = np.array([first for _, first, _ in launches], np.uint64)
    table = aligned(len(launches), LAUNCH)
    for number, (place, _, end) in enumerate(launches):
        table[number] = (code.address + place, held.ctypes.data, end,
                         counters.ctypes.data + 8 * number, 0)
    state = context(table, 1, scratch)
    call(driver_entry(), state.ctypes.data)
    code.close()


class PieceRunner:
    """Runs regions one after another; `pick` chooses their schedules, `left` is in all bytes of the
    scratch memory that they find."""

    def __init__(self, parameters: Mapping[str, np.ndarray | Quantised], name: str,
                 precision: str = "f32", pick: Pick = choose, bounds: Limits | None = None,
                 left: int = NAN) -> None:
        self.parameters, self.precision, self.pick = parameters, precision, pick
        self._left = left
        self.level: FeatureLevel = level(name)
        self.bounds = bounds or limits(self.level, 2, 48 << 10, 1 << 20)
        self.blocks: dict[Storage, Block] = {}
        self.schedules: list[Schedule] = []

    def block(self, storage: Storage) -> Block:
        """The memory of a storage."""
        if storage not in self.blocks:
            given = storage.data if storage.kind == "constant" else (
                self.parameters[storage.name] if storage.kind == "parameter" else None)
            if isinstance(given, Quantised):
                given = given.words
            elif given is not None:
                given = np.ascontiguousarray(given, DTYPES[storage.dtype])
            block = Block(storage.bytes if given is None else given.nbytes)
            if given is not None:
                block.bytes[:] = given.reshape(-1).view(np.uint8)
            self.blocks[storage] = block
        return self.blocks[storage]

    def array(self, view: View) -> np.ndarray:
        """What a view sees; a copy as f32 when it is stored as halves."""
        found = self.bits(view)
        if view.storage.dtype == "f16":
            return found.astype(np.float32)
        if view.storage.dtype != "bf16":
            return found
        return (found.astype(np.uint32) << 16).view(np.float32)

    def bits(self, view: View) -> np.ndarray:
        """What a view sees, where it is; bf16 as unsigned integers."""
        size = view.storage.element_bytes
        dtype = np.uint16 if view.storage.dtype == "bf16" else DTYPES[view.storage.dtype]
        strides = tuple(size * stride for stride in view.strides)
        return np.ndarray(view.shape, dtype, self.block(view.storage).bytes.data,
                          size * view.offset, strides)

    def write(self, view: View, values: np.ndarray) -> None:
        """Fill what a view sees, rounded when it is stored as bf16."""
        if view.storage.dtype != "bf16":
            self.array(view)[...] = values
            return
        bits = as_stored(values, "bf16").view(np.uint32) >> 16
        self.bits(view)[...] = bits.astype(np.uint16)

    def run(self, region: Region, parts: Sequence[tuple[int, int]] = ()) -> None:
        """Choose, lower, pack and run one region, or some tiles of it (see `emulated.spans`)."""
        schedule = self.pick(region.kernel, self.bounds, self.precision)
        self.schedules.append(schedule)
        low = lower(region.kernel, schedule, self.level)
        workspace = Block(low.workspace_bytes)
        scratch = Block(low.scratch_bytes, SCRATCH_ALIGNMENT, self._left)
        used, pointers = [workspace, scratch], []
        for name in low.buffers:
            view = region.views[name]
            block = self.block(view.storage)
            offset = bytes_before(view)
            if low.packed and low.packed.buffer == name:
                packed = Block(low.packed.bytes)
                step = lower_packing(low.packed, view.strides, self.level, view.storage.dtype)
                self.call((step,), [block.address + offset, packed.address], [block, packed])
                packed.check(f"packing for {region.kernel.form}")
                block, offset = packed, 0
            used.append(block)
            pointers.append(block.address + offset)
        self.call(low.steps, [*pointers, workspace.address], used, scratch.address, parts)
        for block in used:
            block.check(f"{region.kernel.form} of {region.scope} under {schedule}")

    def call(self, steps: tuple[KernelStep, ...], pointers: list[int], used: Sequence[Block],
             scratch: int = 0, parts: Sequence[tuple[int, int]] = ()) -> None:
        """Call steps as `called` does, on pointers into the blocks `used`."""
        memory = {id(block): block.whole for block in used}
        called(self.level.name, steps, pointers, scratch, list(memory.values()), parts)


def bytes_before(view: View) -> int:
    """Bytes of a storage in front of the first element of a view."""
    form = FORMATS.get(view.storage.dtype)
    if form is not None:
        return 4 * form.words_of(view.offset)
    return view.storage.element_bytes * view.offset


def run_regions(graph: Graph, inputs: Arrays, runner: PieceRunner, weights: str = "f32",
                codes: bool = False) -> Arrays:
    """The outputs of `graph`, partitioned and run kernel by kernel, with parameters held as
    `weights`, whose `codes` are multiplied as they are.

    In bf16 everything but the statistics is stored so, inputs and outputs too, that each load and
    store of a kernel is met in both dtypes.
    """
    found = partition(graph) if runner.precision == "f32" else narrow_everything(partition(graph))
    if weights != "f32":
        found = held(found, dict.fromkeys(graph.parameters, weights), 0, codes=codes)
    for name, view in found.inputs.items():
        runner.write(view, inputs[name])
    for region in found.regions:
        runner.run(region)
    return {name: np.array(runner.array(view)) for name, view in found.outputs.items()}


def narrow_everything(found: Partition) -> Partition:
    """`found` with bf16 for every f32 value that is given to it or is the result of a kernel."""
    values = [*found.inputs.values(), *(p.views["out"] for p in found.regions if "out" in p.views)]
    return stored_in(found, {view.storage: replace(view.storage, dtype="bf16") for view in values
                             if view.storage.dtype == "f32"})


def fewer_at_once(draw: Callable[..., Any]) -> Pick:
    """Picks schedules whose register tiles have fewer rows, or tiles fewer panels, as `draw` of a
    generated test says; the arithmetic is that of the first choice."""
    def pick(kernel: Kernel, bounds: Limits, precision: str) -> Schedule:
        found = choose(kernel, bounds, precision)
        assert isinstance(found, ContractionSchedule)
        other = replace(found, rows=draw(st.integers(1, found.rows)),
                        panels=draw(st.integers(1, found.panels)))
        assert arithmetic(kernel, other) == arithmetic(kernel, found)
        return other

    return pick


def arrays_for(graph: Graph, seed: int = 0) -> tuple[Arrays, Arrays]:
    """Seeded inputs and parameters; weights are scaled so that products keep a size of one."""
    rng = np.random.default_rng(seed)
    inputs, parameters = {}, {}
    for name, value in graph.inputs.items():
        integers = rng.integers(0, 7, value.shape).astype(np.int32)
        inputs[name] = integers if value.dtype == "i32" else (
            rng.standard_normal(value.shape).astype(np.float32))
    for name, value in graph.parameters.items():
        size = max(1, int(np.prod(value.shape[1:])))
        noise = rng.standard_normal(value.shape) / np.sqrt(size)
        parameters[name] = noise.astype(np.float32)
    return inputs, parameters


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected| in the Euclidean norm; inf where NaN differs."""
    assert found.shape == expected.shape, f"{found.shape} instead of {expected.shape}"
    if not np.array_equal(np.isnan(found), np.isnan(expected)):
        return float("inf")
    found, expected = (np.nan_to_num(a.astype(np.float64)) for a in (found, expected))
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30))


def check_graph(graph: Graph, name: str, precision: str = "f32", pick: Pick = choose,
                bounds: Limits | None = None, weights: str = "f32") -> PieceRunner:
    """Assert that the regions of `graph` compute what its interpreter does; parameters have values
    of the dtype `weights` and are held so."""
    inputs, parameters = arrays_for(graph)
    parameters = {n: a.astype(DTYPES[weights]).astype(np.float32) for n, a in parameters.items()}
    if precision == "bf16":
        inputs = {n: a if a.dtype != np.float32 else as_stored(a, "bf16")
                  for n, a in inputs.items()}
    expected = evaluate(graph, inputs, parameters)
    runner = PieceRunner(parameters, name, precision, pick, bounds)
    found = run_regions(graph, inputs, runner, weights)
    allowed = 1e-5 if precision == "f32" else 1e-2
    for output, array in expected.items():
        error = relative_error(found[output], array)
        assert error < allowed, (f"{output!r} is off by {error:.3g} at {name} in {precision} "
                                 f"with {runner.schedules}\n{graph}")
    return runner
