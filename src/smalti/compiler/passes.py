"""From a graph to a module: one list of named passes.

Each pass is a function of what it `needs`, by name, and says what it `gives`; nothing else goes
from one to another. `SMALTI_SHOW=passes` prints them as they run. The order is that of `PASSES`,
each with the reason for its place.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

from smalti import settings
from smalti.codegen.target import Limits, LoweredKernel, Target
from smalti.compiler.arena import Arena, arranged
from smalti.compiler.integers import IntegerChoice
from smalti.compiler.link import IN_ARENA, Linker
from smalti.compiler.module import Module
from smalti.compiler.options import Options
from smalti.compiler.select import Knowledge, Selection, Submit
from smalti.compiler.strips import LaunchOrder, RegionGroup, launch_orders, saves_much
from smalti.compiler.verify import verify
from smalti.dataclass import dataclass
from smalti.errors import InputError, UnsupportedError
from smalti.fuse import HostRegion, Partition, Region, Storage, View, narrowed, partition
from smalti.fuse import held as with_weights
from smalti.graph import Graph, Value
from smalti.graph.graph import VALUE_BYTES_MAX
from smalti.graph.operations.contraction import WORD_FACTOR
from smalti.kernel.form import Kernel
from smalti.rewrite import rewrite
from smalti.rewrite.halves import widened
from smalti.rewrite.rounding import candidates
from smalti.schedule import AnySchedule
from smalti.schedule.group import GroupLimits
from smalti.tune.partitions import Costs, decided

GROWTH_MAX, GROWTH_BYTES_MIN = 0.05, 4 << 20
"""Transformed weights save a few per cent of time; they may add this share of all plain weights,
and what is little on any computer."""
Progress = Callable[[int, int], None]
"""What is told of (kernels done, kernels)."""
Clock = Callable[[], float]
Halves = dict[str, str]
Orders = Sequence[tuple[LaunchOrder, list[LoweredKernel | None]]]


@dataclass(frozen=True)
class Pass:
    """A step of compiling: `function` of the values called `needs` makes those called `gives`, and
    stands where it does for the reason `why`. `made` says in few words what came of it."""

    name: str
    function: Callable[..., Any]
    needs: tuple[str, ...]
    gives: tuple[str, ...]
    why: str
    made: Callable[..., str]


# ---------------------------------------------------------------------- the graph


def checked(graph: Graph) -> Graph:
    """`graph` itself. Raises InputError for a value that is larger than any memory."""
    for value in (*graph.inputs.values(), *graph.parameters.values(),
                  *(node.output for node in graph.nodes)):
        if value.type.bytes > VALUE_BYTES_MAX:
            raise InputError(f"{graph.name}: a value of {value.type} is larger than any memory; "
                             f"choose smaller sizes")
    return graph


def rewritten(graph: Graph, target: Target, limits: Limits, options: Options) -> Graph:
    """The graph in operations that the target has kernels for, as far as there is a way; with
    layers in integers of 8 bits, if `options` say so."""
    kept = dict(options.kept)
    choice = IntegerChoice(target, limits, options.precision)

    def chosen(graph: Graph) -> Collection[str]:
        fits = candidates(graph, target.multiplies_bytes)
        return [name for name in fits if kept.get(name) != "f32"]

    found = rewrite(graph, choice.computes, chosen if options.rounded else None,
                    target.pairs_of_bytes,
                    [name for name, dtype in kept.items() if dtype == WORD_FACTOR], choice.stands)
    if settings.show("graph"):
        print(found)
    return found


def prepared(graph: Graph, target: Target, limits: Limits, options: Options
             ) -> tuple[Graph, Halves]:
    """A graph as a target's kernels want it, in f32, and the dtypes of those of its parameters that
    are halves. Raises InputError for a value that is larger than any memory."""
    found, halves = widened(checked(graph))
    return rewritten(found, target, limits, options), halves


# ---------------------------------------------------------------------- the partition


def divided(graph: Graph, halves: Halves, target: Target, limits: Limits, options: Options,
            known: Knowledge) -> Partition:
    """The regions of a graph, stored as `options` say. What is stored between kernels is decided by
    costs where they are known, else by rules."""
    weights = {**halves, **dict(options.weights)}
    kernels: dict[Kernel, Kernel] = {}

    def make(otherwise: Collection[Value]) -> Partition:
        found = with_weights(partition(graph, options.held, target.functions, otherwise), weights,
                             codes=target.multiplies_bytes)
        if options.precision != "f32":
            found = narrowed(found, dtype=options.precision)
        return interned(found, kernels)

    cost = kernel_cost(target, limits, options, known)
    found = decided(make, cost) if cost else make(())
    if settings.show("fused"):
        for region in found.regions:
            form = "host" if isinstance(region, HostRegion) else region.kernel.form
            print(f"{region.scope}: {form}: {region.reason}")
    return found


def interned(found: Partition, known: dict[Kernel, Kernel]) -> Partition:
    """The partition with one object for all kernels that are equal, those that are `known` first.

    They are looked up often, and what is the same object is not compared field by field: that took
    0.1 s of the UNet of the model that ships.
    """
    return replace(found, regions=[
        replace(region, kernel=known.setdefault(region.kernel, region.kernel))
        if isinstance(region, Region) else region for region in found.regions])


def kernel_cost(target: Target, limits: Limits, options: Options,
                known: Knowledge) -> Callable[[Kernel], float] | None:
    """What a kernel is expected to cost under its first schedule: by the model of the device where
    it is known, else by what the target says of devices with these limits, if it says it."""
    if known.usual is not None:
        return Costs(known.usual, limits, options.precision).of
    if target.cost is None:
        return None
    return cache(lambda kernel: target.cost(kernel, limits, target.first(
        kernel, limits, options.precision)))


def partitioned(graph: Graph, target: Target, limits: Limits, options: Options
                ) -> tuple[Partition, int]:
    """The regions of a program by the rules, and the bytes that transformed weights may add to
    plain ones. Raises InputError for a value that is larger than any memory."""
    graph, halves = prepared(graph, target, limits, options)
    found = divided(graph, halves, target, limits, options, Knowledge())
    return found, growth_max(graph, halves, target, options)


def growth_max(graph: Graph, halves: Halves, target: Target, options: Options) -> int:
    """Bytes that transformed weights may take beyond the plain ones of a program."""
    if not target.winograd:
        return 0
    narrow = {**halves, **dict(options.weights)}
    plain = sum(v.type.size * (2 if options.precision == "bf16" or name in narrow else 4)
                for name, v in graph.parameters.items())
    return max(GROWTH_BYTES_MIN, int(GROWTH_MAX * plain))


def stored(found: Partition, target: Target) -> tuple[Partition, dict[Storage, str]]:
    """The partition with what kernels read and write stored as the target does, and the dtypes by
    which callers know it, where these are others."""
    if not target.stored:
        return found, {}
    moved: dict[Storage, Storage] = {}
    known_as: dict[Storage, str] = {}
    for region in found.regions:
        for view in region.views.values() if isinstance(region, Region) else ():
            if view.storage.kind in IN_ARENA and view.storage not in moved:
                old = view.storage
                moved[old] = replace(old, dtype=target.stored[old.dtype])
                known_as[moved[old]] = old.dtype

    def mapped(views: Mapping[str, View]) -> dict[str, View]:
        return {name: replace(view, storage=moved.get(view.storage, view.storage))
                for name, view in views.items()}

    return replace(found, inputs=mapped(found.inputs), outputs=mapped(found.outputs),
                   regions=[replace(region, views=mapped(region.views))
                            for region in found.regions]), known_as


# ---------------------------------------------------------------------- schedules and code


def selected(graph: Graph, halves: Halves, target: Target, limits: Limits, options: Options,
             known: Knowledge, submit: Submit | None) -> Selection:
    """What gives schedules to regions, and code to schedules."""
    return Selection(target, limits, options, known, growth_max(graph, halves, target, options),
                     submit)


def ordered(found: Partition, selection: Selection, target: Target, limits: Limits
            ) -> list[LaunchOrder]:
    """The regions with their schedules one after the other; where that promises to save much
    memory, also strip by strip."""
    if target.strips:
        return launch_orders(found, selection.schedules, limits.threads)
    return [LaunchOrder(found, selection.schedules(found),
                   [RegionGroup((number,)) for number in range(len(found.regions))])]


def lowered(orders: Sequence[LaunchOrder], selection: Selection,
            progress: Progress | None) -> Orders:
    """Each order with the code of its kernels. Raises UnsupportedError where the target has no room
    for one."""
    wanted: dict[tuple[Kernel, AnySchedule], Region] = {}
    for each in orders:
        for region, schedule in zip(each.partition.regions, each.schedules, strict=True):
            if isinstance(region, Region) and schedule is not None:
                wanted.setdefault((region.kernel, schedule), region)
    codes: dict[tuple[Kernel, AnySchedule], LoweredKernel] = {}

    def lower(region: Region, schedule: AnySchedule) -> None:
        codes[region.kernel, schedule] = selection.lowered(region, schedule)
        if progress is not None:
            progress(len(codes), len(wanted))

    for (_, schedule), region in reversed(wanted.items()):  # others begin with the first
        if selection.waits(region, schedule):
            with suppress(UnsupportedError):  # raised below, for the first region that is refused
                lower(region, schedule)
    for (kernel, schedule), region in wanted.items():
        if (kernel, schedule) not in codes:
            lower(region, schedule)
    return [(each, [codes[region.kernel, schedule] if isinstance(region, Region)
                    and schedule is not None else None for region, schedule in zip(
                        each.partition.regions, each.schedules, strict=True)])
            for each in orders]


def placed(orders: Orders, limits: Limits
           ) -> tuple[LaunchOrder, list[LoweredKernel | None], Arena]:
    """The plain order, or one that saves much memory, its code, and where its values lie. Raises
    UnsupportedError for a value that is larger than a buffer of the device."""
    best, segment_bytes = None, limits.segment_bytes if isinstance(limits, GroupLimits) else 0
    for each, codes in orders:
        arena = arranged(each, [low.workspace_bytes if low else 0 for low in codes],
                         segment_bytes)
        if best is None or saves_much(best[2].bytes, arena.bytes):
            best = each, codes, arena
    return best


def linked(graph: Graph, target: Target, options: Options, chosen: LaunchOrder,
           code: list[LoweredKernel | None], arena: Arena, known_as: dict[Storage, str]
           ) -> tuple[Module, list[Any]]:
    """The module but for its code, and its functions."""
    module = Module(graph.name, target.name, options.asked)
    functions = Linker(module, target, chosen, code, arena, known_as).link()
    module.winograd_sizes = dict(options.winograd_sizes)
    module.parameters = {name: value.shape for name, value in graph.parameters.items()}
    return module, functions


def encoded(module: Module, functions: list[Any], target: Target, limits: Limits) -> Module:
    """The module with its code."""
    found = target.encode(functions, limits)
    module.code, module.functions, module.shaders = found.code, found.entries, found.shaders
    module.limits = limits if isinstance(limits, GroupLimits) else None
    return module


def verified(module: Module) -> Module:
    """`module` itself. Raises VerificationError where a number in it points beyond its end."""
    verify(module)
    return module


def _operations(graph: Graph, *_: object) -> str:
    return f"{len(graph.nodes)} operations"


def _regions(found: Partition, *_: object) -> str:
    hosted = sum(isinstance(region, HostRegion) for region in found.regions)
    return f"{len(found.regions) - hosted} kernels, {hosted} operations on the host"


PASSES = (
    Pass("check", checked, ("graph",), ("graph",),
         "first, so that nothing is computed from sizes that no computer has", _operations),
    Pass("widen", widened, ("graph",), ("graph", "halves"),
         "before rewriting, whose rules are written for f32",
         lambda graph, halves: f"{_operations(graph)}, {len(halves)} weights of 16 bits"),
    Pass("rewrite", rewritten, ("graph", "target", "limits", "options"), ("graph",),
         "before the partition, which knows operations by what they are rewritten to",
         _operations),
    Pass("partition", divided, ("graph", "halves", "target", "limits", "options", "known"),
         ("partition",), "before all that concerns kernels, which it makes", _regions),
    Pass("store", stored, ("partition", "target"), ("partition", "known_as"),
         "after the partition, whose kernels keep the dtypes that are computed with",
         lambda found, known_as: f"{len(known_as)} values stored otherwise"),
    Pass("select", selected, ("graph", "halves", "target", "limits", "options", "known", "submit"),
         ("selection",), "before any order of regions, as each order asks it for schedules",
         lambda selection: "rules, measurements and costs"),
    Pass("order", ordered, ("partition", "selection", "target", "limits"), ("orders",),
         "after selection, as what strips save hangs on tiles",
         lambda orders: f"{len(orders)} orders of {len(orders[0].groups)} groups"),
    Pass("lower", lowered, ("orders", "selection", "progress"), ("lowered",),
         "before memory is planned, as kernels say what they need beside their operands",
         lambda found: f"{sum(low is not None for low in found[0][1])} kernels as code"),
    Pass("place", placed, ("lowered", "limits"), ("chosen", "code", "arena"),
         "after lowering, to choose the order by the memory that it takes",
         lambda chosen, code, arena: f"an arena of {arena.bytes} bytes"),
    Pass("link", linked, ("graph", "target", "options", "chosen", "code", "arena", "known_as"),
         ("module", "functions"), "after placing, as launches name places",
         lambda module, functions: f"{len(module.launches)} launches of {len(functions)} functions,"
                                   f" {len(module.slots)} slots for weights"),
    Pass("encode", encoded, ("module", "functions", "target", "limits"), ("module",),
         "after linking, which fits functions of GPUs to the places of their operands",
         lambda module: f"{len(module.code)} bytes of code"),
    Pass("verify", verified, ("module",), ("module",),
         "last, so that what runs and what is kept is what was looked at",
         lambda module: f"{module.weights_bytes} bytes of weights"),
)


def compiled(graph: Graph, target: Target, limits: Limits, options: Options,
             known: Knowledge | None = None, progress: Progress | None = None,
             clock: Clock | None = None, submit: Submit | None = None) -> Module:
    """The module of a graph on a target, a device of which has these limits.

    `progress` is called with (kernels done, kernels); a `clock` gives the seconds that
    `SMALTI_SHOW=passes` prints; kernels are given to `submit`, to be lowered elsewhere at the same
    time. Raises InputError for a value that is larger than any memory, UnsupportedError for kernels
    that the target has no room for.
    """
    have = {"graph": graph, "target": target, "limits": limits, "options": options,
            "known": known or Knowledge(), "progress": progress, "submit": submit}
    shown = settings.show("passes")
    with _no_collection(), _ended(have):
        for each in PASSES:
            started = clock() if clock else 0.0
            found = each.function(*(have[name] for name in each.needs))
            results = found if len(each.gives) > 1 else (found,)
            have.update(zip(each.gives, results, strict=True))
            if shown:
                took = f"{1e3 * (clock() - started):9.1f} ms  " if clock else ""
                print(f"{each.name:10}{took}{each.made(*results)}")
    return have["module"]


@contextmanager
def _ended(have: Mapping[str, Any]) -> Iterator[None]:
    """Afterwards cancel what was given to others to lower and is not done."""
    try:
        yield
    finally:
        if "selection" in have:
            have["selection"].end()


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
