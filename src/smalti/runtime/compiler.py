"""A graph becomes a program: the whole pipeline, as one list of named steps.

    graph --rewrite--> graph --partition--> regions --choose--> schedules
          --lower--> code --plan--> image

Kernels that are equal are compiled once. Whole images are kept in the compile cache, under a hash
of the graph's text, the feature level, the limits, the precision, the schedules that were measured
to be better than the first ones, and Smalti's own code.
"""

from __future__ import annotations

import gc
import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from smalti import settings
from smalti.codegen.x86.assembler import Code
from smalti.codegen.x86.encoder import disassembly
from smalti.codegen.x86.functions import FUNCTIONS
from smalti.codegen.x86.instructions import FeatureLevel, level
from smalti.codegen.x86.lower import NativeKernel, limits, lower
from smalti.codegen.x86.packing import lower_packing
from smalti.codegen.x86.weights import WeightPanels
from smalti.compiler.arena import Arena, arranged
from smalti.compiler.front import prepared, show_regions
from smalti.compiler.module import (
    HostCall,
    Image,
    Launch,
    Operand,
    Place,
    RegionInfo,
    Slot,
    WinogradWeight,
)
from smalti.compiler.strips import Course, Turn, courses, saves_much
from smalti.compiler.verifier import verify as verify_image
from smalti.errors import IllegalSchedule, InputError, UnsupportedError, UnsupportedNode
from smalti.fuse import HostRegion, Partition, View, narrowed, partition
from smalti.fuse import held as with_halves
from smalti.fuse.support import When
from smalti.graph import Graph, Value, show
from smalti.graph.operation import HALVES
from smalti.graph.quantised import FORMATS
from smalti.kernel import verify
from smalti.kernel.form import ELEMENT_BYTES, Kernel
from smalti.kernel.traffic import touched
from smalti.runtime import cache
from smalti.runtime.devices import available_levels, best_level, cpu
from smalti.runtime.executable import joined
from smalti.runtime.interface import Program
from smalti.runtime.known import Known
from smalti.runtime.program import NativeProgram
from smalti.runtime.reference import ReferenceProgram
from smalti.schedule import Schedule, arithmetic
from smalti.schedule.choose import WINOGRAD_MAX
from smalti.schedule.schedule import Limits
from smalti.schedule.winograd import growth_of
from smalti.tune.algorithms import planned
from smalti.tune.objective import checked as checked_objective
from smalti.tune.partitions import Make, decided

PRECISIONS = ("auto", "f32", "bf16")
CONSTANT_ALIGNMENT = 8
GROWTH_MAX, GROWTH_BYTES_MIN = 0.05, 4 << 20
"""Transformed weights save a few per cent of time; they may add this share of all plain weights,
and what is little on any computer."""
NO_WINOGRAD_SIZES: Mapping[str, int] = {}
ALL_F32: Mapping[str, str] = {}
FLOPS_OF_A_CORE = 5e10
LAUNCH_SECONDS = 1e-6
"""What small kernels reach on one core, and what starting one costs: the scale of things only."""


def compile_graph(graph: Graph, *, precision: str = "f32", threads: int | None = None,
                  target: str | None = None, held: Collection[str] = (),
                  weights: Mapping[str, str] = ALL_F32,
                  objective: str = "latency",
                  progress: Callable[[int, int], None] | None = None,
                  like: Program | None = None, device: str = "cpu") -> Program:
    """A program that computes `graph`, natively where kernels exist, else by numpy.

    `device` is the CPU, or a GPU by its id (see `smalti.devices`): what is said of threads and
    levels here is about the CPU, for GPUs see `device_compiler.compile_for`.

    `precision` "bf16" halves the bytes of weights and of what is stored between kernels, and the
    time of products where the CPU multiplies bf16; sums, statistics, softmax, inputs and outputs
    are f32 whatever it is ("auto" is f32; see `fuse.precision`). `target` forces an x86 feature
    level (avx2, avx512, avx512_bf16). Inputs named in `held` are expected to stay the same for many
    runs: what depends on no other is computed again only when one of them changes. `weights` names
    the dtype of parameters that will be given as "f16" or "bf16", or as `Quantised` of one of its
    `FORMATS`: those that fill memory are held so, and widened where they are used, with the same
    results. `objective` is what schedules are chosen for: "latency", "throughput" or "energy" (see
    `tune.objective`); for throughput `threads` is 1 if it is None. `progress` is called with
    (kernels done, kernels). `like` is a program whose weights will be bound to this one, too:
    layers use the size of Winograd that these stand. On a CPU without AVX2 the numpy reference
    runs and says so.
    Raises InputError for an unknown precision, level, dtype, objective or held input, or a number
    of threads outside 1 to 256.

    >>> import numpy as np
    >>> g = Graph("double")
    >>> x = g.input("x", (2, 3))
    >>> g.output("y", x + x)
    >>> compile_graph(g, threads=1).run({"x": np.ones((2, 3), np.float32)})["y"].sum()
    np.float32(12.0)
    """
    if device != "cpu":
        from smalti.runtime.choice import opened
        from smalti.runtime.device_compiler import compile_for

        return compile_for(opened(device), graph, precision=precision, held=held, weights=weights,
                           progress=progress)
    recipe = Recipe.of(graph, precision, held, threads, weights, objective)
    name = target or best_level()
    if name is None:
        return ReferenceProgram(graph, recipe)
    level(name)
    if name not in available_levels():
        raise InputError(f"this CPU has not what the level {name} needs; it has "
                         f"{', '.join(available_levels()) or 'none'}")
    image = recipe.image(name, like.winograd_sizes if like else NO_WINOGRAD_SIZES, progress)
    return NativeProgram(image, recipe.threads, recipe)


@dataclass(frozen=True)
class Recipe:
    """What all images of one program are made from, whatever the feature level.

    Schedules are chosen for `threads`; any number of them runs an image and gives the same bytes.
    `weights` are names and dtypes of the parameters that are held as halves or quantised.
    """

    graph: Graph
    precision: str
    held: tuple[str, ...]
    threads: int
    weights: tuple[tuple[str, str], ...] = ()
    objective: str = "latency"

    @classmethod
    def of(cls, graph: Graph, precision: str, held: Collection[str], threads: int | None,
           weights: Mapping[str, str] = ALL_F32, objective: str = "latency") -> Recipe:
        """A recipe of options as `compile_graph` takes them, with the same errors."""
        if precision not in PRECISIONS:
            raise InputError(f"precision {precision!r} is unknown; the CPU has "
                             f"{', '.join(PRECISIONS)}")
        if unknown := sorted(set(held) - set(graph.inputs)):
            raise InputError(f"there is no input {', '.join(unknown)} to hold; the graph has "
                             f"{', '.join(graph.inputs)}")
        if unknown := sorted(set(weights.values()) - {*HALVES, *FORMATS}):
            raise InputError(f"weights are held as f32, {', '.join((*HALVES, *FORMATS))}, not as "
                             f"{', '.join(unknown)}")
        if threads is None:
            threads = 1 if checked_objective(objective) == "throughput" else settings.threads()
        return cls(graph, "f32" if precision == "auto" else precision, tuple(held),
                   settings.checked_threads(threads), tuple(sorted(weights.items())),
                   checked_objective(objective))

    def partition(self) -> tuple[Partition, int]:
        """The regions of a program, and the bytes that transformed weights may add to plain
        ones."""
        return regions_of(self.graph, self.precision, self.held, dict(self.weights))[1:]

    def image(self, target: str, winograd_sizes: Mapping[str, int] = NO_WINOGRAD_SIZES,
              progress: Callable[[int, int], None] | None = None) -> Image:
        """The image for a feature level, which this CPU need not have, from the cache or new.

        Raises InputError for an unknown level, UnsupportedError as `compile_graph` does.
        """
        chosen = level(target)
        bounds = limits(chosen, self.threads)
        if target in available_levels():
            device = cpu()
            bounds = limits(chosen, self.threads, device.l1_bytes, device.l2_bytes)
        weights = dict(self.weights)
        key = image_key(self.graph, chosen, bounds, self.precision, self.held,
                        winograd_sizes, weights)
        known = Known.on_this_cpu(target, self.threads, self.precision, self.objective)
        stored = None
        if not any(map(settings.show, settings.STAGES)):
            kernels = cache.get(f"{key} kernels") if known.best else None
            stored = cache.get(key + known.key((kernels or b"").decode().split()))
        if stored is not None:
            return Image.from_bytes(stored)
        image = build_image(self.graph, chosen, bounds, self.precision, self.held, progress,
                            winograd_sizes, weights, known)
        cache.put(f"{key} kernels", "\n".join(known.asked.values()).encode())
        cache.put(key + known.key(known.asked.values()), image.to_bytes())
        return image


def image_key(graph: Graph, chosen: FeatureLevel, bounds: Limits, precision: str,
              held: Collection[str] = (),
              winograd_sizes: Mapping[str, int] = NO_WINOGRAD_SIZES,
              weights: Mapping[str, str] = ALL_F32) -> str:
    """What the image of a graph is filed under."""
    text = f"{show(graph)} {sorted(weights.items())}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (f"{digest} {chosen.name} {bounds} {precision} {sorted(held)} "
            f"{sorted(winograd_sizes.items())}")


def build_image(graph: Graph, chosen: FeatureLevel, bounds: Limits, precision: str,
                held: Collection[str] = (),
                progress: Callable[[int, int], None] | None = None,
                winograd_sizes: Mapping[str, int] = NO_WINOGRAD_SIZES,
                weights: Mapping[str, str] = ALL_F32, known: Known | None = None) -> Image:
    """Compile `graph` without looking at the cache.

    `winograd_sizes` holds the largest F(m) for weights that do not stand F(4), by name; `weights`
    the dtypes of those that are given as halves; `known` schedules that are better than the first
    ones.
    Raises InputError for a value that is larger than any memory.
    """
    known = known or Known()
    graph, regions, growth = regions_of(graph, precision, held, weights, known.usual and partial(
        decided, aim=known.usual, limits=bounds, precision=precision))
    builder = _Builder(graph, regions, chosen, bounds, precision, winograd_sizes, growth, known)
    return builder.build(progress)


def regions_of(graph: Graph, precision: str, held: Collection[str], weights: Mapping[str, str],
              decide: Callable[[Make], Partition] | None = None) -> tuple[Graph, Partition, int]:
    """A graph as it is compiled, its partition, and the bytes that transformed weights may add.

    `decide` chooses what is stored among all partitions that can be made; without, rules do.
    Raises InputError for a value that is larger than any memory.
    """
    graph, halves = prepared(graph, FUNCTIONS)
    weights = {**halves, **weights}

    def make(otherwise: Collection[Value]) -> Partition:
        found = with_halves(partition(graph, held, FUNCTIONS, otherwise), weights)
        return found if precision == "f32" else narrowed(found)

    regions = decide(make) if decide else make(())
    show_regions(regions)
    return graph, regions, growth_max(graph, precision, weights)


def growth_max(graph: Graph, precision: str, weights: Mapping[str, str] = ALL_F32) -> int:
    """Bytes that transformed weights may take beyond the plain ones of a program."""
    plain = sum(v.type.size * (2 if precision == "bf16" or name in weights else 4)
                for name, v in graph.parameters.items())
    return max(GROWTH_BYTES_MIN, int(GROWTH_MAX * plain))


@contextmanager
def _no_collection() -> Iterator[None]:
    """No search for cycles of garbage inside: lowering makes millions of objects and no cycles, and
    the search would take a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Builder:
    """Turns a cut into an image."""

    def __init__(self, graph: Graph, regions: Partition, chosen: FeatureLevel, bounds: Limits,
                 precision: str, winograd_sizes: Mapping[str, int], growth: int,
                 better: Known) -> None:
        self.graph, self.partition, self.winograd_sizes = graph, regions, winograd_sizes
        self.level, self.bounds, self.precision = chosen, bounds, precision
        self.growth_max, self.better = growth, better
        self.known: dict[tuple[Kernel, Schedule], NativeKernel] = {}
        self.numbers: dict[tuple[bytes, int], int] = {}
        self.codes: list[Code] = []
        self.packers: dict[tuple[WeightPanels, tuple[int, ...], str], int] = {}
        self.packing: list[Code] = []
        self.slots: dict[tuple, int] = {}
        self.image = Image(graph.name, chosen.name, precision, 0, 0, 0)
        self.texts: dict[Kernel, int] = {}
        self.constants = bytearray()

    def build(self, progress: Callable[[int, int], None] | None) -> Image:
        """The image of the course of regions that is best."""
        image = self.image
        with _no_collection():
            chosen, lowered, arena = self._best(progress)
        self.partition, image.arena_bytes = chosen.partition, arena.bytes
        for turn in chosen.turns:
            for number in turn.regions:
                self._describe(number, turn, chosen, lowered, arena)
            image.launches += self._launches(turn, chosen, lowered, arena)
        for launch in image.launches:
            when = self.partition.regions[launch.region].when
            image.steady += when == When.BINDING
            image.changing += when < When.RUN
        image.inputs = {n: arena.place(v) for n, v in self.partition.inputs.items()}
        image.outputs = {n: arena.place(v) for n, v in self.partition.outputs.items()}
        image.rows, image.held = dict(self.partition.rows), list(self.partition.held)
        image.winograd_sizes = dict(self.winograd_sizes)
        image.parameters = {n: v.shape for n, v in self.graph.parameters.items()}
        behind = len(self.codes)
        image.slots = [slot if slot.function < 0 else
                       replace(slot, function=behind + slot.function) for slot in image.slots]
        image.layouts = {text: behind + number for text, number in image.layouts.items()}
        image.code, image.functions = joined([*self.codes, *self.packing])
        image.constants = bytes(self.constants)
        verify_image(image)
        return image

    def _describe(self, number: int, turn: Turn, chosen: Course,
                  lowered: Sequence[NativeKernel | None], arena: Arena) -> None:
        """Note what is to be known about a region."""
        image, region, low = self.image, self.partition.regions[number], lowered[number]
        if isinstance(region, HostRegion):
            moved = sum(math.prod(v.shape) * v.storage.element_bytes for v in region.views.values())
            image.regions.append(RegionInfo("host", region.scope, region.reason, region.operation,
                                          region.flops, moved, (arena.place(region.views["out"]),)))
            return
        if region.when == When.RUN:
            image.work_seconds += region.flops / FLOPS_OF_A_CORE + LAUNCH_SECONDS * len(low.steps)
        image.scratch_bytes = max(image.scratch_bytes, low.scratch_bytes)
        results = tuple(arena.place(region.views[b.name])
                        for b in region.kernel.buffers if b.role == "output")
        image.regions.append(RegionInfo(
            region.kernel.form, region.scope, region.reason, str(chosen.schedules[number]),
            region.flops, _moved_bytes(region.kernel, low), results,
            turn.strips.count if turn.strips else 1, self._text(region.kernel)))

    def _text(self, kernel: Kernel) -> int:
        """The number of a kernel's text in the image."""
        if kernel not in self.texts:
            self.texts[kernel] = len(self.image.kernels)
            self.image.kernels.append(str(kernel))
        return self.texts[kernel]

    def _call(self, number: int, arena: Arena) -> HostCall:
        """A call of the host."""
        region, operands = self.partition.regions[number], []
        for view in region.operands:
            if view.storage in arena.storages:
                operands.append(Operand(-1, arena.place(view)))
            else:
                _, slot = self._reference(view, arena)
                strides = tuple(view.storage.element_bytes * s for s in view.strides)
                operands.append(Operand(slot, Place(0, view.shape, strides, view.storage.dtype)))
        return HostCall(region.operation, dict(region.attributes), tuple(operands),
                        arena.place(region.views["out"]), number)

    def _best(self, progress: Callable[[int, int], None] | None
              ) -> tuple[Course, list[NativeKernel | None], Arena]:
        """The plain course, or one that saves much; kernels are lowered in order."""
        found = courses(self.partition, self._schedules, self.bounds.threads)
        count, done, best = sum(len(each.partition.regions) for each in found), 0, None
        for each in found:
            lowered = []
            for region, schedule in zip(each.partition.regions, each.schedules):
                try:
                    lowered.append(schedule and self._lowered(region.kernel, schedule))
                except OverflowError:
                    raise UnsupportedError("too large for the addresses of one kernel:", [
                        UnsupportedNode(region.scope, region.kernel.form, "choose smaller sizes")
                    ]) from None
                done += 1
                if progress is not None:
                    progress(done, count)
            arena = arranged(each, [low.workspace_bytes if low else 0 for low in lowered])
            if best is None or saves_much(best[2].bytes, arena.bytes):
                best = each, lowered, arena
        return best

    def _schedules(self, found: Partition) -> list[Schedule | None]:
        """The schedules of the regions of a partition, in order; None for calls of the host."""
        kernels, winograd_sizes = [], []
        for region in found.regions:
            weight = region.views.get("weight")
            kernels.append(None if isinstance(region, HostRegion) else region.kernel)
            winograd_sizes.append(WINOGRAD_MAX if weight is None else self.winograd_sizes.get(
                weight.storage.name, WINOGRAD_MAX))
        schedules = planned(kernels, self.bounds, self.precision, self.growth_max, winograd_sizes,
                            self.better.cost)
        left = self.growth_max - sum(
            self._growth(kernel, schedule) for kernel, schedule in zip(kernels, schedules))
        for number, (kernel, first) in enumerate(zip(kernels, schedules)):
            if kernel is not None:
                left += self._growth(kernel, first)
                schedules[number] = self._better(kernel, first, left)
                left -= self._growth(kernel, schedules[number])
        return schedules

    def _growth(self, kernel: Kernel | None, schedule: Schedule | None) -> int:
        """Bytes that the weights of a kernel take beyond the plain ones."""
        if kernel is None or kernel.form != "contraction":
            return 0
        return growth_of(kernel, schedule, self.precision)

    def _better(self, kernel: Kernel, first: Schedule, left: int) -> Schedule:
        """The schedule that was measured to be best, or is expected to be better by far, where it
        gives the same bytes as the first one and its weights take no more than `left` bytes beyond
        the plain ones."""
        for other in self.better.schedules(kernel, self.bounds, first):
            if arithmetic(kernel, other) != arithmetic(kernel, first):
                continue
            if self._growth(kernel, other) > max(left, self._growth(kernel, first)):
                continue
            try:
                self._lowered(kernel, other)
            except (IllegalSchedule, OverflowError):  # of an imported store; beyond all addresses
                continue
            return other
        return first

    def _lowered(self, kernel: Kernel, schedule: Schedule) -> NativeKernel:
        """Code of a kernel, made once for those that are equal."""
        if (kernel, schedule) not in self.known:
            verify(kernel, "the partition")
            self.known[kernel, schedule] = low = lower(kernel, schedule, self.level)
            if settings.show("kernel"):
                print(kernel)
            if settings.show("schedule"):
                print(schedule)
            if settings.show("asm"):
                for step in low.steps:
                    print(disassembly(step.code.bytes, step.code.entry))
        return self.known[kernel, schedule]

    def _functions(self, kernel: Kernel, schedule: Schedule) -> list[int]:
        """The numbers of a kernel's functions; those of equal code have one."""
        found = []
        for step in self.known[kernel, schedule].steps:
            key = step.code.bytes, step.code.entry
            if key not in self.numbers:
                self.numbers[key] = len(self.codes)
                self.codes.append(step.code)
            found.append(self.numbers[key])
        return found

    def _launches(self, turn: Turn, chosen: Course, lowered: Sequence[NativeKernel | None],
                  arena: Arena) -> list[Launch | HostCall]:
        """The launches of a turn: all steps whole, or the last ones strip by strip."""
        whole, last = [], []
        for number in turn.regions:
            region, low = self.partition.regions[number], lowered[number]
            if low is None:
                return [self._call(number, arena)]
            functions = self._functions(region.kernel, chosen.schedules[number])
            pointers = [self._reference(region.views[name], arena, low, name)
                        for name in low.buffers]
            if low.workspace_bytes:
                pointers.append(("arena", arena.workspaces[number]))
            whole += [Launch(function, step.tiles, tuple(pointers), number)
                      for function, step in zip(functions, low.steps)]
            if turn.strips:
                last.append(whole.pop())
        for strip in range(turn.strips.count if turn.strips else 0):
            parts = []
            for number, launch in enumerate(last):
                each, (first, end) = turn.strips.walks[number], turn.strips.rows(number, strip)
                for block in range(0, launch.tiles, each.rows * each.tiles):
                    parts.append(replace(launch, first=block + each.tiles * first,
                                         tiles=block + each.tiles * end, barrier=False))
            whole += [*parts[:-1], replace(parts[-1], barrier=True)]
        return whole

    # ------------------------------------------------------------------ memory

    def _reference(self, view: View, arena: Arena, low: NativeKernel | None = None,
                   name: str = "") -> tuple[str, int]:
        """What a pointer of a launch, or a host call for which nothing is packed, refers to."""
        if view.storage.kind in ("arena", "input"):
            return "arena", arena.place(view).offset
        packed = low.packed if low and low.packed and low.packed.buffer == name else None
        winograd = low.winograd if packed else None
        key = (view if packed else (view.storage, view.offset), packed, winograd)
        if key not in self.slots:
            self.slots[key] = len(self.image.slots)
            slot = self._slot(view, packed)
            if winograd is not None:
                slot = replace(slot, winograd=WinogradWeight(*winograd, view.shape, view.strides))
            self.image.slots.append(slot)
        return "slot", self.slots[key]

    def _slot(self, view: View, packed) -> Slot:
        image, storage = self.image, view.storage
        start, kind = view.offset, "packed" if packed else "raw"
        if storage.kind == "constant":
            if packed is None:
                kind = "constant"
            start += len(self.constants) // storage.element_bytes
            data = storage.data.tobytes()
            self.constants += data + bytes(-len(data) % CONSTANT_ALIGNMENT)
        if storage.dtype in FORMATS:
            start = FORMATS[storage.dtype].words_of(start)
        size = packed.bytes if packed else storage.bytes - storage.element_bytes * view.offset
        image.weights_bytes += size
        slot = Slot(storage.name, kind, size, start, storage.dtype)
        if packed is None:
            return slot
        key = (packed, view.strides, storage.dtype)
        if key not in self.packers:
            self.packers[key] = len(self.packing)
            step = lower_packing(packed, view.strides, self.level, storage.dtype)
            self.packing.append(step.code)
            image.layouts[f"{packed} from {storage.dtype}, {view.strides}"] = self.packers[key]
        return replace(slot, function=self.packers[key], panels=packed.panels)


def _moved_bytes(kernel: Kernel, low: NativeKernel) -> int:
    """Bytes of what a kernel reads and writes, each once; weights as they are packed."""
    whole = {low.packed.buffer: low.packed.bytes} if low.packed else {}
    return sum(whole.get(name, ELEMENT_BYTES[kernel.buffer(name).dtype] * count)
               for name, count in touched(kernel).items())
