"""Programs on the CPU: machine code, the weights bound to it, and memory to run in."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from smalti.codegen.target import ARENA
from smalti.compiler.explain import explained
from smalti.compiler.kernel_table import KernelTable
from smalti.compiler.module import (
    Beside,
    CodePacking,
    HostCall,
    Launch,
    Module,
    array_at,
    finite_at,
)
from smalti.compiler.targets import TARGETS
from smalti.errors import NumericsError
from smalti.runtime.cpu.alternative import Alternative
from smalti.runtime.cpu.executable import Executable
from smalti.runtime.cpu.memory import anonymous
from smalti.runtime.cpu.model import modelled
from smalti.runtime.cpu.packing import allocated, bind, imprecise
from smalti.runtime.cpu.recording import Table, TableRow
from smalti.runtime.cpu.streaming import Stream, StreamingPlan, planned
from smalti.runtime.cpu.trials import CpuTrials
from smalti.runtime.host import bound
from smalti.runtime.inputs import all_given, check_rows, checked_input
from smalti.runtime.interface import Program
from smalti.runtime.recipe import Recipe
from smalti.runtime.sources import Done, Read, Weights, nothing, reading

SCRATCH_ALIGNMENT = 4096
NONE: Mapping[int, Alternative] = MappingProxyType({})
"""No kernel is replaced by another."""
ALONE_SECONDS = 20e-6
"""Work expected to take no longer than this is done by one thread: waking another takes as long."""
BRIEF_SECONDS = 20e-3
"""In a run shorter than this the caller takes part, so that Ctrl-C takes effect only after it."""


class NativeProgram(Program):
    """A module on the CPU, run by worker threads.

    Of `threads` threads `crew` are used: 1 if the work is too little for more, else all. Calls of
    the host run between kernels, in the thread that calls `run`.

    `recipe` compiles the same graph again if Winograd's algorithm is too imprecise with the weights
    that are bound (see guard.py); without a recipe such weights raise NumericsError.
    """

    def __init__(self, module: Module, threads: int,
                 recipe: Recipe | None = None) -> None:
        self.threads, self.name, self.recipe = threads, module.name, recipe
        self._turn = threading.Lock()
        self._bytes_max: int | None = None
        self._take(module)
        if not module.parameters:
            self.bind(lambda name: np.empty(0))

    def _take(self, module: Module) -> None:
        """Become a program that runs `module`, without weights."""
        self.module = module
        self.targets, self.winograd_sizes = (module.target,), module.winograd_sizes
        self.crew = 1 if module.work_seconds <= ALONE_SECONDS else self.threads
        self._brief = module.work_seconds / self.crew <= BRIEF_SECONDS
        self.precision, self.rows = module.precision, module.rows
        self.inputs, self.outputs = ({name: place.shape for name, place in places.items()}
                                     for places in (module.inputs, module.outputs))
        self.weights_bytes = module.weights_bytes
        self._code = Executable(module.code) if module.functions else None
        self._weights: list[np.ndarray] | None = None
        self._shared: set[int] = set()
        self._left: frozenset[int] = frozenset()  # slots that are there for another program alone
        self._arena: np.ndarray | None = None
        self._scratch: np.ndarray | None = None
        self._room = 0  # bytes of scratch memory of a thread
        self._changed: tuple[dict[int, Alternative], Table] | None = None
        self._parted = False  # whether the last run was one of several, each timed
        self._elapsed: float | None = None
        self._stream: Stream | None = None
        self.bound = self._settled = False
        self._held: dict[str, np.ndarray] = {}

    def bind(self, weights: Weights, done: Done = nothing, *, strict: bool = True,
             like: Program | None = None, differing: Collection[str] = (),
             only: Collection[str] | None = None, bytes_max: int | None = None) -> None:
        """Read, check and pack every parameter, or only those in `only`.

        If the numeric guard finds that some weights need another program, that is compiled, and all
        are read again. Raises InputError and NumericsError as `Program.bind` does.
        """
        known = self.recipe.graph.parameters if self.recipe else self.module.parameters

        def source(needed: Mapping[str, tuple[int, ...]]) -> tuple[Read, Done]:
            return reading(weights, done, needed, known, self.name, strict)

        with self._turn:
            needed = self._asked(self.module.parameters, only)
            if only is None:
                self._stop_streaming()
                self._bytes_max = bytes_max
            found = source(needed)
            wanting = (self._bind(*found, like, differing) if only is None
                       else self._rebind(*found, needed))
            while wanting:
                if self.recipe is None:
                    raise NumericsError(f"{self.name}: Winograd is too imprecise for the "
                                        f"weights {', '.join(sorted(wanting))}; compile the "
                                        f"model again with them")
                winograd_sizes = {**self.winograd_sizes, **wanting}
                self._take(self.recipe.module(TARGETS[self.module.target], winograd_sizes))
                wanting = self._bind(*source(self.module.parameters), like, differing)
            self.bound, self._settled = True, False

    def _bind(self, read: Read, done: Done, like: Program | None,
              differing: Collection[str]) -> dict[str, int]:
        """Bind all weights; returns those that need a smaller F(m), each with its m."""
        self.bound, module = False, self.module
        if self._bytes_max is not None and (plan := planned(module, self._bytes_max)) is not None:
            return self._bind_streamed(plan, read, done)
        shared = self._shared_with(like, differing)
        if self._left:
            self.release()
        if self._weights is None or shared or self._shared:
            own = {} if self._weights is None else {
                number: memory for number, memory in enumerate(self._weights)
                if number not in self._shared}
            given = own | {number: other._weights[n] for number, (other, n) in shared.items()}
            self._weights, self._arena = allocated(module, given), None
            self._shared = set(shared)
            for other, n in shared.values():
                other._shared.add(n)
        return bind(module, self._weights, shared, read, done, self._pack, self.threads)

    def _bind_streamed(self, plan: StreamingPlan, read: Read, done: Done) -> dict[str, int]:
        """Bind the resident weights; the others are read while the program runs."""
        module = self.module
        if found := imprecise(module, read, done):
            return found
        self._weights, self._shared, self._arena = None, set(), None
        coming = {n: np.empty(0) for n in range(len(module.slots)) if n not in plan.resident}
        self._weights = allocated(module, coming)
        bind(module, self._weights, coming, read, done, self._pack, self.threads, guarded=False)
        self._sources = {name: (read, done) for name in module.parameters}
        self._stream = Stream(plan, module, self._weights)
        return {}

    def _bring(self, slots: Sequence[int], memory: list[np.ndarray]) -> None:
        """Read and pack the weights of a segment."""
        left = set(range(len(self.module.slots))).difference(slots)
        bind(self.module, memory, left, lambda name: self._sources[name][0](name),
             lambda name: self._sources[name][1](name), self._pack, 1, guarded=False)

    def _stop_streaming(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream, self._weights = None, None

    def _rebind(self, read: Read, done: Done, names: Container[str]) -> dict[str, int]:
        """As `_bind`, for the weights `names`; memory shared with another program is left to that
        one and not changed."""
        if self._stream is not None:
            return self._rebind_streamed(read, done, names)
        self.bound, module = False, self.module
        kept = {n for n, slot in enumerate(module.slots) if not slot.name or slot.name not in names}
        if left := self._shared - kept:
            given = {n: memory for n, memory in enumerate(self._weights) if n not in left}
            self._weights, self._arena = allocated(module, given), None
            self._shared -= left
        return bind(module, self._weights, kept, read, done, self._pack, self.threads)

    def _rebind_streamed(self, read: Read, done: Done, names: Container[str]) -> dict[str, int]:
        """As `_bind_streamed`, for the weights `names`; of those that are streamed only what the
        numeric guard checks is read here."""
        module, plan, known = self.module, self._stream.plan, self._sources
        self.bound = False
        self._stream.close()
        kept = {n for n, slot in enumerate(module.slots)
                if n not in plan.resident or not slot.name or slot.name not in names}
        bind(module, self._weights, kept, read, done, self._pack, self.threads, guarded=False)
        self._sources = {name: (read, done) if name in names else known[name] for name in known}
        self._stream = Stream(plan, module, self._weights)
        self._arena = None
        return imprecise(module, read, done, names)

    def _shared_with(self, like: Program | None, differing: Collection[str]
                     ) -> dict[int, tuple[NativeProgram, int]]:
        """The slots that another program holds as well: that program and the number there."""
        if not isinstance(like, NativeProgram) or like is self:
            return {}
        found = like._kept()
        return {number: found[key] for number, slot in enumerate(self.module.slots)
                if slot.name not in differing and (key := self.module.layout_of(slot)) in found}

    def _kept(self) -> dict[tuple, tuple[NativeProgram, int]]:
        """This program and the slot number of each bound weight, by what it holds and in which
        layout: what another program can share."""
        if not (self.bound or self._left) or self._stream is not None:
            return {}
        return {self.module.layout_of(slot): (self, number)
                for number, slot in enumerate(self.module.slots)
                if slot.name and (self.bound or number in self._left)}

    def leave_to(self, heir: Program, differing: Collection[str] = ()) -> None:
        with self._turn:
            if not self.bound or self._stream is not None or not self.module.parameters \
                    or not isinstance(heir, NativeProgram):
                return
            left = frozenset(number for _, number in heir._shared_with(self, differing).values())
            weights = [memory if number in left else np.empty(0, np.uint8)
                       for number, memory in enumerate(self._weights)]
            shared = self._shared & left
            self.release()
            if left:
                self._weights, self._shared, self._left = weights, shared, left

    def _pack(self, packing: CodePacking, source: int, target: int) -> None:
        """Pack one weight in the calling thread."""
        address = self._code.address + self.module.functions[packing.function]
        row = TableRow(address, (source, target), packing.panels)
        Table([[row]], 1, 0, 0, self._code).run(0, 1, brief=True)

    def trials(self) -> CpuTrials:
        return CpuTrials(self)

    @property
    def streamed(self) -> bool:
        return self._stream is not None

    @property
    def shared_bytes(self) -> int:
        return sum(self.module.slots[number].bytes for number in self._shared)

    def held_bytes(self, bytes_max: int) -> int:
        plan = planned(self.module, bytes_max)
        return self.weights_bytes if plan is None else plan.bytes(self.module)

    @property
    def weight_dtypes(self) -> Mapping[str, str]:
        return {slot.name: slot.dtype for slot in self.module.slots if slot.name}

    @property
    def arena_bytes(self) -> int:
        """Bytes for all values between kernels, and for the threads' scratch memory."""
        return self.module.arena_bytes + self.threads * self._scratch_bytes

    @property
    def _scratch_bytes(self) -> int:
        return self.module.scratch_bytes + -self.module.scratch_bytes % SCRATCH_ALIGNMENT

    def _prepare(self) -> None:
        """Allocate memory, and make the launch table and context with all addresses filled in."""
        module = self.module
        self._arena = anonymous(module.arena_bytes + SCRATCH_ALIGNMENT)
        self._fill_table(self._scratch_bytes)
        self._calls = [(k, bound(x, self._arena, self._memory(k)))
                       for k, x in enumerate(module.launches) if isinstance(x, HostCall)]
        self._took = np.zeros(len(module.launches))
        self._inputs = [(name, place, array_at(self._arena, place), module.rows.get(name))
                        for name, place in module.inputs.items()]
        self._outputs = {name: array_at(self._arena, place)
                         for name, place in module.outputs.items()}

    def _fill_table(self, scratch_bytes: int) -> None:
        """Make the launch table, and allocate scratch memory for all threads."""
        self._room = max(self._room, scratch_bytes + -scratch_bytes % SCRATCH_ALIGNMENT)
        self._scratch = anonymous(self.threads * self._room + SCRATCH_ALIGNMENT)
        self._table, self._changed = self._table_with(NONE), None
        self._ran = self._table

    def _table_with(self, instead: Mapping[int, Alternative]) -> Table:
        """The launch table with the alternatives `instead`, by the regions that they replace."""
        launches = [[] if isinstance(x, HostCall) else [self._row(n, x)]
                    for n, x in enumerate(self.module.launches)]
        for region, other in instead.items():
            first, last = self.module.span(region)
            launches[first:last] = [other.rows(launches[first][0].pointers),
                                    *[[] for _ in range(first + 1, last)]]
        scratch = self._scratch.ctypes.data
        return Table(launches, self.crew, scratch + -scratch % SCRATCH_ALIGNMENT, self._room,
                     (self._code, tuple(instead.values())))

    def _memory(self, number: int) -> Sequence[np.ndarray]:
        """The memory of each slot for a launch, which `number` names."""
        return self._weights if self._stream is None else self._stream.memory(number)

    def _row(self, number: int, launch: Launch) -> TableRow:
        """The row of the launch table for a launch, with all addresses filled in."""
        arena, weights = self._arena.ctypes.data, self._memory(number)
        pointers = tuple(arena + at if kind == ARENA else weights[number].ctypes.data + at
                         for kind, number, at in launch.operands)
        return TableRow(self._code.address + self.module.functions[launch.function], pointers,
                   launch.tiles, launch.first, launch.barrier)

    def release(self) -> None:
        """Give back the memory of weights and intermediate results; `bind` brings them back."""
        self._stop_streaming()
        if self.module.parameters:
            self._weights, self._shared, self.bound = None, set(), False
            self._left = frozenset()
        self._arena = self._scratch = None
        self._calls, self._inputs, self._outputs = [], [], {}  # they lie in the arena
        self._settled, self._elapsed = False, None
        self._held.clear()

    def _start(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Check the inputs and copy them to where kernels read them."""
        self._require_bound()
        if type(inputs) is not dict or inputs.keys() != self.inputs.keys():
            all_given(inputs, self.inputs, self.name)
        if self._arena is None:
            self._prepare()
        self._ran, self._parted = self._table, False
        if not self._settled:
            if self.module.steady:
                self._launch(0, self.module.steady)
            self._settled = True
            self._held.clear()
        for name, place, target, rows in self._inputs:
            array = inputs[name]
            if type(array) is not np.ndarray or array.shape != place.shape \
                    or array.dtype != target.dtype:
                array = checked_input(name, array, place.shape, place.dtype)
            if rows is not None:
                check_rows(name, array, rows)
            np.copyto(target, array)
        if self.module.changing > self.module.steady:
            self._hold(inputs)

    def _hold(self, inputs: Mapping[str, np.ndarray]) -> None:
        """If a held input has changed, compute what depends on held inputs only."""
        names = self.module.held
        if all(name in self._held and np.array_equal(self._held[name], inputs[name])
               for name in names):
            return
        self._held.clear()
        self._launch(self.module.steady, self.module.changing)
        self._held.update((name, np.array(inputs[name])) for name in names)

    def _launch(self, first: int, last: int) -> None:
        """Run the launches from `first` to `last`, and the calls of the host among them."""
        if self._stream is None:
            self._launch_part(first, last)
            return
        for part in self._stream.parts(first, last, self._bring):
            self._launch_part(*part)

    def _launch_part(self, first: int, last: int) -> None:
        """The same for launches all of whose weights are in memory."""
        if not self._calls and self._stream is None and not self._parted:
            self._launch_kernels(first, last)
            return
        at = first
        with np.errstate(all="ignore"):  # no warnings: as in kernels, 1 / 0 is infinity
            for number, compute in self._calls:
                if first <= number < last:
                    self._time_kernels(at, number)
                    started = time.perf_counter()
                    compute()
                    self._took[number] = time.perf_counter() - started
                    at = number + 1
        self._time_kernels(at, last)

    def _time_kernels(self, first: int, last: int) -> None:
        """Run kernels and record the seconds of each."""
        if first < last:
            started = time.perf_counter()
            self._launch_kernels(first, last)
            elapsed = time.perf_counter() - started
            ticks = self._ran.ticks()
            self._took[first:last] = ticks * (elapsed / max(ticks.sum(), 1.0))

    def _launch_kernels(self, first: int, last: int) -> None:
        self._ran.run(first, last, self._brief)

    def run(self, inputs: Mapping[str, np.ndarray],
            instead: Mapping[int, Alternative] = NONE) -> dict[str, np.ndarray]:
        """The outputs for `inputs`: arrays of the shapes that the graph gives them.

        `instead` gives, by region number, alternatives that replace kernels in this run. Raises
        InputError for a missing input, an input of another shape or with row numbers that a table
        does not have, and if no weights are bound. Calls from several threads take turns.
        """
        with self._turn:
            self._start(inputs)
            self._make_room(instead.values())
            self._ran, self._parted = self._table_of(instead), False
            started = time.perf_counter()
            self._launch(self.module.changing, len(self.module.launches))
            self._elapsed = time.perf_counter() - started
            return {name: np.array(array) for name, array in self._outputs.items()}

    def run_beside(self, inputs: Mapping[str, np.ndarray], others: Mapping[int, Alternative],
                   instead: Mapping[int, Alternative] = NONE
                   ) -> tuple[dict[str, np.ndarray], dict[int, Beside]]:
        """As `run`; in addition each alternative in `others` computes its region again, on the same
        data.

        Returns the outputs and, by region, how the alternative did. If its result differs, the
        kernel's own is used.
        """
        with self._turn:
            self._start(inputs)
            self._make_room((*others.values(), *instead.values()))
            main = self._ran = self._table_of(instead)
            self._parted, found, at = True, {}, self.module.changing
            for region in sorted(others):
                first, last = self.module.span(region)
                self._launch(at, first)
                found[region] = self._beside(region, others[region], first, last)
                self._ran, at = main, last
            self._launch(at, len(self.module.launches))
            self._elapsed = float(self._took[self.module.changing:].sum())
            return {name: np.array(array) for name, array in self._outputs.items()}, found

    def _beside(self, region: int, other: Alternative, first: int, last: int) -> Beside:
        """Run a region by its own kernel, whose time is recorded, then by `other`."""
        results = [array_at(self._arena, place) for place in self.module.regions[region].results]
        before = [array.copy() for array in results]
        self._launch(first, last)
        own = self._took[first:last].copy()
        expected = [array.copy() for array in results]
        for place, array, values in zip(self.module.regions[region].results, results, before,
                                        strict=True):
            np.copyto(array, values)
            if not self.module.overwrites(first, last, place):  # shows elements left unwritten
                array.view(f"i{array.itemsize}")[...] = -1
        self._ran = self._table_with({region: other})
        self._launch(first, last)
        seconds = float(self._took[first:last].sum())
        self._took[first:last] = own
        same = all(array.tobytes() == values.tobytes()
                   for array, values in zip(results, expected, strict=True))
        for array, values in zip(results, expected, strict=True):
            np.copyto(array, values)
        return Beside(float(own.sum()), seconds, same)

    def _make_room(self, others: Iterable[Alternative]) -> None:
        """Enlarge the scratch memory to what these alternatives need."""
        needed = max((other.scratch_bytes for other in others), default=0)
        if needed > self._room:
            self._fill_table(needed)

    def _table_of(self, instead: Mapping[int, Alternative]) -> Table:
        """The launch table with these alternatives, kept for the next run with the same."""
        if not instead:
            return self._table
        if self._changed is None or self._changed[0] != instead:
            self._changed = dict(instead), self._table_with(instead)
        return self._changed[1]

    @property
    def seconds(self) -> np.ndarray | None:
        """Seconds of each launch and host call in the last run; None before the first."""
        if self._elapsed is None:
            return None
        first, count = self.module.changing, len(self.module.launches)
        if self._calls or self._stream is not None or self._parted:
            return np.where(np.arange(count) < first, 0.0, self._took)
        ticks = np.zeros(count)
        ticks[first:] = self._ran.ticks()
        return ticks * (self._elapsed / max(ticks.sum(), 1.0))

    def first_nonfinite(self, inputs: Mapping[str, np.ndarray]) -> str | None:
        """The name of the kernel whose result first contains NaN or Inf, found by running barrier
        by barrier; None if none does."""
        self._start(inputs)
        first, last = 0, {x.region: number for number, x in enumerate(self.module.launches)}
        for number, launch in enumerate(self.module.launches):
            if isinstance(launch, Launch) and not launch.barrier:
                continue
            self._launch(first, number + 1)
            for region in (self.module.regions[k] for k, at in last.items()
                           if first <= at <= number):
                if not all(finite_at(self._arena, place) for place in region.results):
                    return f"the {region.form} of {region.scope or self.name}"
            first = number + 1
        return None

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of the last run by form of kernel; empty before the first."""
        found: dict[str, float] = {}
        if self.seconds is not None:
            for region, seconds in zip(self.module.regions, self.kernel_seconds(), strict=True):
                found[region.form] = found.get(region.form, 0.0) + float(seconds)
        return found

    def kernel_seconds(self) -> np.ndarray:
        """Seconds of each kernel or host call in the last run; zeros before the first."""
        seconds, measured = np.zeros(len(self.module.regions)), self.seconds
        if measured is not None:
            np.add.at(seconds, [x.region for x in self.module.launches], measured)
        return seconds

    def measured(self) -> np.ndarray | None:
        """Seconds of each kernel or host call in the last run; None before the first."""
        return None if self.seconds is None else self.kernel_seconds()

    def kernels(self) -> KernelTable:
        """Its kernels, with expected and measured times."""
        measured = self.measured()
        return explained(self.module, modelled(self.module.target), self.crew,
                         None if measured is None else measured.tolist(),
                         self.recipe.graph if self.recipe else None)

    def _explained(self, all: bool, columns: int) -> str:
        return self.kernels().text(all, columns)
