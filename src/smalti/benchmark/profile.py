"""Where the time of a program goes: each kernel against the roofline of what it runs on.

    profile = profiled(program, inputs, runs=5)
    print(table(profile, roofline, top=20))
    json.dump(trace([("unet", profile)]), file)        # for about:tracing and ui.perfetto.dev
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np

from smalti.benchmark.roofline import Roofline
from smalti.benchmark.table import columns, duration
from smalti.compiler.module import RegionInfo
from smalti.dataclass import dataclass
from smalti.errors import DeviceError
from smalti.graph.operation import DTYPES, FLOATS
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.gpu.program import DeviceProgram
from smalti.runtime.interface import Program

SCHEDULE_SHOWN_MAX = 60
"""Characters of a schedule in the table, whose other columns take about 100; the trace has all."""


@dataclass(frozen=True)
class KernelTime:
    """One kernel, or several of one form, and their seconds in each run."""

    name: str
    form: str
    schedule: str
    seconds: tuple[float, ...]
    flops: int
    bytes: int

    @property
    def median(self) -> float:
        """Median of the seconds of all runs."""
        return statistics.median(self.seconds)

    def fraction(self, roofline: Roofline) -> float:
        """The least time that the machine allows over the time taken.

        Above 1 where the bytes are in cache, or Winograd's method multiplies less than is counted.
        """
        return roofline.seconds(self.flops, self.bytes) / self.median


@dataclass(frozen=True)
class Profile:
    """All kernels in the order in which they run, and the seconds of each whole call of `run`.

    On a GPU the seconds of kernels are by its own clock, and from other runs than these calls.
    """

    name: str
    kernels: tuple[KernelTime, ...]
    seconds: tuple[float, ...]

    def by_form(self) -> list[tuple[int, KernelTime]]:
        """How many kernels there are of each form, and their sums; the longest first."""
        groups: dict[str, list[KernelTime]] = {}
        for kernel in self.kernels:
            groups.setdefault(kernel.form, []).append(kernel)
        found = [(len(group), total(form, group)) for form, group in groups.items()]
        return sorted(found, key=lambda entry: -entry[1].median)


def total(name: str, kernels: Sequence[KernelTime]) -> KernelTime:
    """The sum of kernels, run by run."""
    seconds = tuple(map(sum, zip(*(kernel.seconds for kernel in kernels), strict=True)))
    return KernelTime(name, kernels[0].form, "", seconds, sum(k.flops for k in kernels),
                      sum(k.bytes for k in kernels))


def profiled(program: Program, inputs: Mapping[str, np.ndarray], runs: int) -> Profile:
    """Run a program with weights `runs` times, after one that does not count.

    Kernels that run only once, when weights are bound, take no part.
    Raises DeviceError where the numpy reference runs, which has no kernels.
    """
    if not isinstance(program, NativeProgram | DeviceProgram):
        raise DeviceError(f"{program.name}: only kernels can be profiled, and this CPU runs the "
                          f"numpy reference; a profile needs x86-64 with AVX2, or AArch64")
    program.run(inputs)
    regions: Sequence[RegionInfo] = program.module.regions
    wholes, each = [], []
    for _ in range(runs):
        started = time.perf_counter()
        program.run(inputs)
        wholes.append(time.perf_counter() - started)
        each.append(program.profile(inputs).tolist() if isinstance(program, DeviceProgram)
                    else program.kernel_seconds())
    kernels = tuple(
        KernelTime(region.scope or program.name, region.form, region.schedule, seconds,
                   region.flops, region.bytes)
        for region, seconds in zip(regions, zip(*each, strict=True), strict=True) if any(seconds))
    return Profile(program.name, kernels, tuple(wholes))


def seeded_inputs(program: Program) -> dict[str, np.ndarray]:
    """Standard normal inputs for a program, 0 or 1 where they are integers; rows of tables are
    drawn among those it has."""
    random = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for name, shape in program.inputs.items():
        found[name] = random.standard_normal(shape, np.float32)
        if isinstance(program, NativeProgram | DeviceProgram):
            rows, dtype = program.module.rows, program.module.inputs[name].dtype
            if name in rows or dtype not in FLOATS:
                found[name] = random.integers(0, rows.get(name, 2), shape)
            found[name] = found[name].astype(DTYPES[dtype])
    return found


# ---------------------------------------------------------------------- as text


HEADING = ("time", "share", "GFLOP/s", "GB/s", "FLOP/byte", "roofline")


def table(profile: Profile, roofline: Roofline | None, top: int) -> str:
    """The slowest kernels, then all by form, with the total; medians over the runs."""
    heading = HEADING if roofline else HEADING[:-1]
    whole = total("total", profile.kernels)
    order = sorted(range(len(profile.kernels)), key=lambda i: -profile.kernels[i].median)[:top]
    kernels = [("", *heading, "form", "kernel", "schedule")]
    for number in order:
        kernel = profile.kernels[number]
        kernels.append((str(number), *_numbers(kernel, whole, roofline), kernel.form, kernel.name,
                        _shortened(kernel.schedule)))
    forms = [("form", "kernels", *heading)]
    forms += [(kernel.name, str(count), *_numbers(kernel, whole, roofline))
              for count, kernel in profile.by_form()]
    forms.append(("total", str(len(profile.kernels)), *_numbers(whole, whole, roofline)))
    return (f"{profile.name}: {duration(statistics.median(profile.seconds))} a run, median of "
            f"{len(profile.seconds)}\n{columns(kernels)}\n\n{columns(forms)}")


def _numbers(kernel: KernelTime, whole: KernelTime,
             roofline: Roofline | None) -> tuple[str, ...]:
    seconds = max(kernel.median, 1e-12)
    found = (duration(kernel.median), f"{kernel.median / whole.median:.1%}",
             f"{kernel.flops / seconds / 1e9:.1f}", f"{kernel.bytes / seconds / 1e9:.1f}",
             f"{kernel.flops / max(kernel.bytes, 1):.1f}")
    return (*found, f"{kernel.fraction(roofline):.0%}") if roofline else found


def _shortened(text: str) -> str:
    return text if len(text) <= SCHEDULE_SHOWN_MAX else text[:SCHEDULE_SHOWN_MAX - 1] + "…"


def trace(profiles: Sequence[Profile]) -> dict:
    """The runs as Chrome's trace events: a process a program, a row a run, an event a kernel.

    Times are in microseconds; runs stand behind one another.
    """
    events: list[dict] = []
    for process, profile in enumerate(profiles):
        events.append({"name": "process_name", "ph": "M", "pid": process, "tid": 0,
                       "args": {"name": profile.name}})
        at = 0.0
        for run in range(len(profile.seconds)):
            events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": run,
                           "args": {"name": f"run {run}"}})
            for number, kernel in enumerate(profile.kernels):
                took = 1e6 * kernel.seconds[run]
                events.append({"name": kernel.name, "cat": kernel.form, "ph": "X", "ts": at,
                               "dur": took, "pid": process, "tid": run,
                               "args": {"number": number, "form": kernel.form,
                                        "flops": kernel.flops, "bytes": kernel.bytes,
                                        "schedule": kernel.schedule}})
                at += took
    return {"traceEvents": events, "displayTimeUnit": "ms"}
