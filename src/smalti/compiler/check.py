"""Every form of kernel on a target, against the numpy interpreter of kernels.

    kernel --lower--> steps --run--> what memory holds
       └--interpreter--------------> what it should hold

Memory is filled with NaN between the elements of a buffer and where results go, so that what is
read beside them, or not written, shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from smalti.codegen.target import Limits, Target
from smalti.compiler.options import Options
from smalti.compiler.passes import divided, prepared
from smalti.compiler.samples import SAMPLES
from smalti.compiler.select import Knowledge
from smalti.dataclass import dataclass
from smalti.fuse import HostRegion
from smalti.graph import Graph
from smalti.graph.operation import DTYPES
from smalti.graph.operations.contraction import FACTORS
from smalti.graph.quantised import FORMATS, Quantised, quantised
from smalti.kernel import interpreter
from smalti.kernel.form import Buffer, Kernel, extent
from smalti.schedule.merge import integer_sums

Arrays = dict[str, np.ndarray]
Execute = Callable[[Any, Kernel, Arrays], Mapping[str, np.ndarray]]
"""Runs the steps of a kernel, as a target lowers it, on memory, which has the elements of each
buffer flat, as the target stores them; gives what the buffers hold then, those at least that are
written."""

TOLERANCES = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}
"""What a kernel may be off by, relative to its result in the Euclidean norm: sums of f32 in another
order make 1e-7 to 1e-6; a half rounds by 2^-11 or 2^-9, its operands as well as its result."""
STATISTICS = ("scale", "shift", "gamma", "beta")
"""Buffers that stay f32 whatever the precision."""
HOLE = 77
"""What integers are where nobody has written; floats are NaN."""


@dataclass(frozen=True)
class FormCheck:
    """How kernels of a form did in a dtype: how many there were, the largest relative error in the
    Euclidean norm, infinite where NaN is in a wrong place, and what is allowed."""

    form: str
    dtype: str
    kernels: int
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether all of them computed what they mean."""
        return self.error < self.tolerance


@dataclass(frozen=True)
class CheckReport:
    """What came of all forms on a target of a device; as text, a line each."""

    title: str
    checks: tuple[FormCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether every kernel computed what it means."""
        return all(check.ok for check in self.checks)

    def __str__(self) -> str:
        wide = max((len(check.form) for check in self.checks), default=0)
        lines = [f"{self.title}: {'all forms compute what they mean' if self.ok else 'WRONG'}"]
        lines += [f"    {each.form:{wide}}  {each.dtype:4}  {each.kernels:2} kernels  off by "
                  f"{each.error:.1e} of {each.tolerance:.0e}  {'ok' if each.ok else 'WRONG'}"
                  for each in self.checks]
        return "\n".join(lines)


def checked(title: str, target: Target, limits: Limits, execute: Execute) -> CheckReport:
    """Run every form of kernel of a target on a device of these limits, by `execute`, in each
    precision that it has, under the first schedules."""
    found: dict[tuple[str, str], list[float]] = {}
    for dtype in target.precisions if target.halves(limits) else ("f32",):
        for kernel in kernels(target, limits):
            narrow = narrowed(kernel, dtype)
            found.setdefault((kernel.form, dtype), []).append(
                error_of(narrow, target, limits, execute, dtype))
    return CheckReport(title, tuple(
        FormCheck(form, dtype, len(errors), max(errors), TOLERANCES[dtype])
        for (form, dtype), errors in sorted(found.items())))


def kernels(target: Target, limits: Limits,
            samples: Mapping[str, Callable[[], Graph]] = SAMPLES) -> Iterator[Kernel]:
    """The kernels that a target's partition makes of small graphs, each once."""
    seen = set()
    for build in samples.values():
        graph, halves = prepared(build(), target, limits, Options())
        for region in divided(graph, halves, target, limits, Options(), Knowledge()).regions:
            if not isinstance(region, HostRegion) and region.kernel not in seen:
                seen.add(region.kernel)
                yield region.kernel


def narrowed(kernel: Kernel, dtype: str) -> Kernel:
    """The kernel with `dtype` for everything of f32 that is no statistic."""
    return replace(kernel, buffers=tuple(
        replace(b, dtype=dtype) if b.dtype == "f32" and b.role != "local"
        and b.name not in STATISTICS else b for b in kernel.buffers))


def error_of(kernel: Kernel, target: Target, limits: Limits, execute: Execute,
             precision: str = "f32") -> float:
    """How far off a kernel is under its first schedule, on seeded operands."""
    memory, given = operands(kernel, target)
    low = target.lower(kernel, target.first(kernel, limits, precision), limits)
    found = execute(low, kernel, memory)
    expected = interpreter.run(kernel, given)
    return max(relative_error(strided(found[name], kernel.buffer(name)), array)
               for name, array in expected.items())


def operands(kernel: Kernel, target: Target, seed: int = 0) -> tuple[Arrays, Arrays]:
    """Memory for the buffers of a kernel, flat and as a target stores them, with normal numbers in
    its operands, any bytes where these are multiplied, and row numbers of any table in those of
    other integers; and the same operands as arrays. Of quantised weights it has the
    words, with scales as files have them."""
    rng, memory, given = np.random.default_rng(seed), {}, {}
    for buffer in kernel.buffers:
        if buffer.role == "local":
            continue
        if buffer.dtype in FORMATS:
            weight = _as_in_files(quantised(rng.standard_normal(buffer.shape), buffer.dtype))
            memory[buffer.name], given[buffer.name] = weight.words.reshape(-1), weight.floats()
            continue
        kept = target.stored_parameters if buffer.role == "parameter" else target.stored
        dtype = np.dtype(DTYPES[kept.get(buffer.dtype, buffer.dtype)])
        floats = buffer.dtype in TOLERANCES
        memory[buffer.name] = np.full(extent(buffer), np.nan if floats else HOLE, dtype)
        if buffer.role != "output":
            view = strided(memory[buffer.name], buffer)
            least, most = _whole_numbers(kernel, buffer.dtype)
            view[...] = (rng.standard_normal(buffer.shape) if floats else
                         rng.integers(least, most, buffer.shape, endpoint=True))
            given[buffer.name] = view.astype(np.float32) if floats else view.copy()
    return memory, given


def _whole_numbers(kernel: Kernel, dtype: str) -> tuple[int, int]:
    """The least and the largest integer that operands have: any bytes, where a kernel multiplies
    them exactly, else numbers of the first rows of a table."""
    if dtype not in FACTORS or kernel.form != "contraction" or not integer_sums(kernel):
        return 0, 1
    limits = np.iinfo(DTYPES[dtype])
    return int(limits.min), int(limits.max)


def _as_in_files(weight: Quantised) -> Quantised:
    """The weight with scales and minima that f16 has."""
    heads = FORMATS[weight.dtype].heads
    words = weight.words.copy()
    words[:, :heads] = weight.heads.astype(np.float16).astype(np.float32).view(np.uint32)
    return replace(weight, words=words)


def strided(memory: np.ndarray, buffer: Buffer) -> np.ndarray:
    """The elements of a buffer, in their logical shape, where they lie."""
    strides = [stride * memory.itemsize for stride in buffer.strides]
    return np.lib.stride_tricks.as_strided(memory, buffer.shape, strides)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected| in the Euclidean norm; infinite where one of them is NaN.

    >>> relative_error(np.array([1.0, 2.0]), np.array([1.0, 1.0])).__round__(3)
    0.707
    """
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isnan(found), np.isnan(expected)):
        return float("inf")
    found, expected = np.nan_to_num(found), np.nan_to_num(expected)
    return float(np.linalg.norm(found - expected) / max(float(np.linalg.norm(expected)), 1e-30))
