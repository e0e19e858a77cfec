"""The kernels of a compiled program as `explain` shows them: times, schedules, what limits them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from smalti.compiler.kernel_table import HOST, KernelRow, KernelTable
from smalti.compiler.module import Launch, Module, RegionInfo
from smalti.compiler.outlook import Expected
from smalti.compiler.prediction import predicted
from smalti.graph import Graph
from smalti.machine.cpu import KernelEstimate
from smalti.machine.device import DeviceModel


def explained(module: Module, device: DeviceModel, threads: int, seconds: Sequence[float] | None,
              graph: Graph | None) -> KernelTable:
    """The kernels of a program of the CPU, with what the timing model expects of each; `seconds`
    are those of each in the last run, if there was one, `graph` what was compiled, if it is kept.
    """
    expected = predicted(module, device, threads)
    made_of = f"{len(graph.nodes)} operations of a graph became " if graph is not None else ""
    facts = [
        f"{made_of}{len(module.functions)} functions, {len(module.code) / 1e6:.2f} MB of code",
        f"level {module.target}, precision {module.precision}, {threads} threads",
        f"memory: packed weights {module.weights_bytes / 1e6:.1f} MB, values between kernels "
        f"(arena) {module.arena_bytes / 1e6:.1f} MB",
        *(f"numeric guard: {name or 'a constant weight'} "
          + (f"uses Winograd F({size})" if size else "does not use Winograd")
          for name, size in sorted(module.winograd_sizes.items()))]
    joules = sum(found.energy_joules for found in expected.values())
    run = (f"expected of a run: {_total(expected)}, {joules:.3g} J"
           + (f"; measured: {1e3 * sum(seconds):.3f} ms" if seconds is not None else ""))
    rows = _rows(module, seconds, expected, {})
    return KernelTable(f"{module.name}: {_counted(module.regions)}", facts, rows, run)


def explained_on(module: Module, device: str, expected: Mapping[int, Expected],
                 seconds: Sequence[float] | None) -> KernelTable:
    """The kernels of a program of a GPU, with the work-groups of each, what is `expected` of it
    where the device is known, and `seconds` where it was profiled."""
    facts = [f"{len(module.functions)} programs for {device}, precision {module.precision}",
             f"memory: weights {module.weights_bytes / 1e6:.1f} MB, values between kernels (arena) "
             f"{module.arena_bytes / 1e6:.1f} MB"]
    groups: dict[int, list[str]] = {}
    for launch in module.launches:
        if isinstance(launch, Launch):
            shader = module.shaders[launch.function]
            groups.setdefault(launch.region, []).append(
                f"{' x '.join(map(str, shader.groups))} groups of {shader.size}")
    profiled = f"profiled: {1e3 * sum(seconds):.3f} ms" if seconds is not None else ""
    if expected:
        run = (f"expected of a run, at the speed of the vendor's library: {_total(expected)}"
               + f"; {profiled}" * bool(profiled))
    else:
        run = profiled
    rows = _rows(module, seconds, expected, groups)
    return KernelTable(f"{module.name}: {_counted(module.regions)}", facts, rows, run)


def _counted(regions: Sequence[RegionInfo]) -> str:
    """How many kernels and operations on the host there are."""
    calls = sum(region.form == HOST for region in regions)
    return f"{len(regions) - calls} kernels" + f", {calls} operations on the host" * bool(calls)


def _total(expected: Mapping[int, KernelEstimate | Expected]) -> str:
    return f"{1e3 * sum(found.seconds for found in expected.values()):.3f} ms"


def _rows(module: Module, seconds: Sequence[float] | None,
          expected: Mapping[int, KernelEstimate | Expected],
          groups: Mapping[int, Iterable[str]]) -> list[KernelRow]:
    """A row for each kernel and each operation on the host."""
    seldom = {launch.region: f"when {' or '.join(module.held)} changes"
              for launch in module.launches[:module.changing]}
    seldom |= {launch.region: "once, when weights are bound"
               for launch in module.launches[:module.steady]}
    rows = []
    for number, region in enumerate(module.regions):
        found = expected.get(number)
        rows.append(KernelRow(
            number, region.form, region.scope, region.flops,
            expected=found.seconds if found else None,
            measured=seconds[number] if seconds is not None else None,
            limit=found.binds if found else "", seldom=seldom.get(number, ""),
            details=tuple(_details(region, groups.get(number, ())))))
    return rows


def _details(region: RegionInfo, groups: Iterable[str]) -> Iterable[str]:
    """How a kernel is computed and stored, and why it is one of its own."""
    yield region.schedule
    yield ", ".join(groups)
    stored = ", ".join(dict.fromkeys(place.dtype for place in region.results))
    yield f"stored: {stored}" + (f"; in {region.strips} strips, over its operand"
                                 if region.strips > 1 else "")
    yield region.reason if region.form == HOST else f"fusion ends here: {region.reason}"
