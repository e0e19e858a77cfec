"""Probes of kernels: every form in each precision under the schedule that programs would have, and
shapes that drivers are known to get wrong.

Each kernel runs three times on the same operands, which must give the same bytes, and once on
others. Results are poisoned before, and whatever lies around them must stay as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial

import numpy as np

from smalti.codegen.gpu.lower import lower
from smalti.codegen.gpu.lowered import GroupSteps
from smalti.codegen.gpu.target import bound_weight
from smalti.codegen.target import Target
from smalti.compiler.check import (
    TOLERANCES,
    kernels,
    narrowed,
    operands,
    relative_error,
    strided,
)
from smalti.compiler.samples import SAMPLES, alone, convolution, product
from smalti.compiler.targets import TARGETS
from smalti.graph import Graph
from smalti.kernel import interpreter
from smalti.kernel.form import Kernel
from smalti.runtime.doctor.bench import Arrays, Bench, Guarded
from smalti.runtime.doctor.probe import DeviceProbe, ProbeCase, relied_on, suspects_of
from smalti.runtime.gpu.removals import KEPT_NAN
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupLimits, GroupSchedule
from smalti.schedule.line_work import line_schedules
from smalti.schedule.space_attention import AttentionWork
from smalti.schedule.space_group import best_matrix

RUNS = 3
"""Of the same kernel on the same operands: races rarely give the same bytes as often."""
FARTHEST = 20
"""How many tolerances a single element may be off by, of the root mean square of all: rounding
makes 8 at most, and a wrong element of a large result does not show in its norm."""
BESIDE = "memory beside the result is written"
HEADS = (40, 64, 80, 160)
"""Channels of a head in the UNets of Stable Diffusion 1 and 2, and of transformers."""

Graphs = Mapping[str, Callable[[], Graph]]
SHAPES: Graphs = {
    "product, depth 256": partial(product, (40,), 256, 72),
    "product, depth 1536, odd edges": partial(product, (35,), 1536, 66),
    "product of 257 rows, depth 384": partial(product, (257,), 384, 72),
    "product of few rows": partial(product, (3,), 320, 128),
    "convolution, odd edges": partial(convolution, 40, 9, 72, residual=True),
    **{f"attention, heads of {n}": partial(alone, "attention", (1, 70, n), (1, 77, n), (1, 77, n),
                                           num_heads=1) for n in HEADS},
    "attention, a head of 512": partial(alone, "attention", (1, 36, 512), (1, 40, 512),
                                        (1, 40, 512), num_heads=1),
}
"""Each in f32 and in f16: 257 x 384 x 1152 was wrong on AMD Vega (burn #4355), sums of 256 and more
in subgroups on KosmicKrisp (vllm-vulkan #22)."""
OF_LINES = partial(alone, "attention", (1, 70, 40), (1, 77, 40), (1, 77, 40), num_heads=1)
LINES_ACROSS = (1, 2)
"""Subgroups that share queries, where invocations hold whole ones: weights stay in registers, or
are exchanged."""


Expectation = Callable[[Kernel, int], tuple[Arrays, Arrays]]
"""Memory for the buffers of a kernel, filled by a seed, and its results."""
STORING = TARGETS["spirv"]
"""How values are stored: targets of GPUs do so alike."""


def probes(target: Target, limits: GroupLimits, samples: Graphs = SAMPLES,
           shapes: Graphs = SHAPES) -> Iterator[DeviceProbe]:
    """All probes of kernels, those of f32 first: of the forms of some graphs, and of others."""
    by_form: dict[str, list[Kernel]] = {}
    for kernel in kernels(target, limits, samples):
        by_form.setdefault(kernel.form, []).append(kernel)
    for precision in target.precisions:
        for form, found in by_form.items():
            chosen = found[:1] if precision == "bf16" else found
            yield probe(f"{form.replace('_', ' ')}, {precision}", chosen, precision)
    for precision in [each for each in target.precisions if each != "bf16"]:
        for name, build in shapes.items():
            yield probe(f"{name}, {precision}", list(kernels(target, limits, {name: build})),
                        precision)
    if "f16" in target.precisions:
        (kernel,) = [k for k in kernels(target, limits, {"": OF_LINES}) if k.form == "attention"]
        for across in LINES_ACROSS:
            yield DeviceProbe(f"attention of whole queries, {across} subgroups, f16",
                              partial(of_lines, narrowed(kernel, "f16"), across))
    yield probe("NaN in, NaN out", by_form["map"][:2] + by_form["reduction"][:2], "f32", True)


def probe(name: str, found: Sequence[Kernel], precision: str, holes: bool = False) -> DeviceProbe:
    """A probe of some kernels in a precision; with `holes`, some of their operands are NaN."""
    return DeviceProbe(name, lambda target, limits: case(
        [narrowed(kernel, precision) for kernel in found], precision, target, limits, holes))


def case(found: Sequence[Kernel], precision: str, target: Target, limits: GroupLimits,
         holes: bool = False, expectation: Expectation | None = None,
         schedule: GroupSchedule | None = None) -> ProbeCase | None:
    """Kernels under the schedules that a device of these limits would have, or all under another;
    `expectation` says what they are to compute, the interpreter by default."""
    if precision != "f32" and not target.halves(limits):
        return None
    made = [scheduled(kernel, precision, limits, schedule) for kernel in found]
    programs = tuple(step for _, low in made for step in low.steps)
    used = relied_on(limits)

    suspects = suspects_of(programs, limits)
    expected = expectation or partial(interpreted, holes=holes)
    if holes and limits.keeps_nan:
        suspects = (KEPT_NAN, *suspects)

    def run(bench: Bench) -> str:
        pipelines = iter(bench.pipelines(programs))
        for kernel, (_, low) in zip(found, made):
            own = [next(pipelines) for _ in low.steps]
            with Guarded(bench, low.steps, own) as guarded:
                if trouble := kernel_trouble(guarded, kernel, low, expected, precision):
                    return trouble
        return ""

    return ProbeCase((*(schedule for schedule, _ in made), *used), suspects, run)


@lru_cache(maxsize=512)
def scheduled(kernel: Kernel, precision: str, limits: GroupLimits,
              schedule: GroupSchedule | None = None) -> tuple[GroupSchedule, GroupSteps]:
    """A kernel as a device of these limits would run it, or under another schedule."""
    schedule = schedule or choose_group(kernel, limits, precision)
    return schedule, lower(kernel, schedule, limits)


def of_lines(kernel: Kernel, across: int, target: Target, limits: GroupLimits) -> ProbeCase | None:
    """An attention whose invocations hold whole queries, in several tiles of keys, where a device
    can run it; `across` subgroups share queries. Programs take it for more work than a probe has.
    """
    shape, keys = best_matrix(limits, "f16"), kernel.buffer("k").shape[1]
    found = [s for s in line_schedules(kernel, limits, shape)
             if s.across == across and s.keys < keys] if shape is not None else []
    if not found:
        return None
    best = min(found, key=AttentionWork.of(kernel, limits).rank)
    return case([kernel], "f16", target, limits, schedule=best)


def kernel_trouble(guarded: Guarded, kernel: Kernel, low: GroupSteps,
                   expectation: Expectation, precision: str) -> str:
    """What is wrong with a kernel whose products are of a precision, or nothing."""
    for seed in range(2):
        memory, expected = expectation(kernel, seed)
        bound = packed(kernel, low, memory)
        before = guarded.before(bound)
        after = guarded.run(before)
        if trouble := differs(guarded, kernel, before, after, bound, expected,
                              TOLERANCES[precision]):
            return trouble
        again = range(RUNS - 1 if seed == 0 else 0)
        if any(not np.array_equal(after, guarded.run(before)) for _ in again):
            return "the same work on the same numbers gives other bytes each time"
    return ""


@cache
def interpreted(kernel: Kernel, seed: int, holes: bool) -> tuple[Arrays, Arrays]:
    """Memory for the buffers of a kernel, and its results, as the interpreter has them."""
    memory, given = operands(kernel, STORING, seed)
    if holes:
        for name, array in given.items():
            if array.dtype.kind not in "iu":  # integers have no NaN
                array.reshape(-1)[3::29] = np.nan
            strided(memory[name], kernel.buffer(name))[...] = array
    with np.errstate(all="ignore"):
        return memory, interpreter.run(kernel, given)


def packed(kernel: Kernel, low: GroupSteps, memory: Arrays) -> Arrays:
    """Memory with the weight as the schedule wants it."""
    if low.packed is None:
        return memory
    weight = kernel.buffer(low.packed.buffer)
    return {**memory, weight.name: bound_weight(low.packed, weight, memory[weight.name])}


def differs(guarded: Guarded, kernel: Kernel, before: np.ndarray, after: np.ndarray,
            bound: Arrays, expected: Arrays, tolerance: float) -> str:
    """How what a run leaves differs from what it should by more than a tolerance, or that of what
    it is stored in; nothing where it does not."""
    for name, array in expected.items():
        buffer = kernel.buffer(name)
        own = guarded.array(after, name, bound[name].dtype)
        allowed = max(tolerance, TOLERANCES.get(buffer.dtype, 0.0))
        if trouble := wrong(strided(own, buffer), array, allowed):
            return trouble
        beside = np.ones(own.size, bool)
        strided(beside, buffer)[...] = False
        if not np.array_equal(own.view(np.uint8).reshape(own.size, -1)[beside],
                              bound[name].view(np.uint8).reshape(own.size, -1)[beside]):
            return "elements are written that lie between those of the result"
    kept = guarded.outside((*expected, "workspace"))
    return "" if np.array_equal(before[kept], after[kept]) else BESIDE


def wrong(found: np.ndarray, expected: np.ndarray, tolerance: float) -> str:
    """How a result differs from what it should be, or nothing.

    >>> wrong(np.array([1.0, np.nan]), np.array([1.0, 2.0]), 1e-5)
    '1 of 2 elements are NaN, where a number should be'
    """
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    lost, dropped = (int(np.count_nonzero(np.isnan(one) & ~np.isnan(other)))
                     for one, other in ((found, expected), (expected, found)))
    if lost or dropped:
        return (f"{lost} of {found.size} elements are NaN, where a number should be" if lost else
                f"{dropped} of {found.size} elements are numbers, where NaN should be")
    infinite = np.isinf(expected)
    if not np.array_equal(np.where(np.isinf(found), found, 0), np.where(infinite, expected, 0)):
        return "elements are infinite that should not be, or the other way round"
    found, expected = (np.nan_to_num(np.where(infinite, 0, each)) for each in (found, expected))
    error = relative_error(found, expected)
    if error >= tolerance:
        return f"the result is off by {error:.1e}, where {tolerance:.0e} is usual"
    scale = float(np.sqrt(np.mean(expected ** 2))) or 1.0
    farthest = float(np.max(np.abs(found - expected), initial=0.0)) / scale
    if farthest >= FARTHEST * tolerance:
        return f"a single element is off by {farthest:.1e}"
    return ""
