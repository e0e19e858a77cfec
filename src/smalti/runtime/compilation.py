"""Programs from graphs, on any device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from smalti.compiler.options import ALL_F32, ALL_ROUNDED
from smalti.graph import Graph
from smalti.runtime.drivers import driver_of
from smalti.runtime.interface import Program
from smalti.runtime.recipe import nothing_missing


def compile_graph(graph: Graph, *, precision: str = "f32", threads: int | None = None,
                  target: str | None = None, held: Collection[str] = (),
                  weights: Mapping[str, str] = ALL_F32,
                  objective: str = "latency",
                  progress: Callable[[int, int], None] | None = None,
                  like: Program | None = None, device: str = "cpu",
                  kept: Mapping[str, str] = ALL_ROUNDED,
                  missing: Callable[[], None] = nothing_missing) -> Program:
    """A program that computes `graph`, natively where kernels exist, else by numpy.

    `device` is the CPU, or a GPU by its id (see `smalti.devices`): what is said of threads and
    levels here is about the CPU, for GPUs see `gpu.compilation.compile_for`.

    `precision` "bf16" halves the bytes of weights and of what is stored between kernels, and the
    time of products where the CPU multiplies bf16; sums, statistics, softmax, inputs and outputs
    are f32 whatever it is ("auto" is f32; see `fuse.precision`). With "int8" large layers multiply
    integers of 8 bits (see `rewrite.rounding`), and all else is bf16, or f32 where the CPU does not
    multiply bf16; layers whose weights are `kept` are, too, where that is "f32", or multiply
    integers of 16 bits ("i16") where the CPU does that. `target` forces a feature level of x86
    (avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16) or AArch64 (neon, neon_dot, neon_bf16).
    Inputs named in `held` are expected to stay the same for many runs: what depends on no other is
    computed again only when one of them changes. `weights` names the dtype of parameters that will
    be given as "f16" or "bf16", or as `Quantised` of one of its `FORMATS`: those that fill memory
    are held so, and widened where they are used, with the same results. `objective` is what
    schedules are chosen for: "latency", "throughput" or "energy" (see `tune.objective`); for
    throughput `threads` is 1 if it is None. `progress` is called with (kernels done, kernels).
    `like` is a program whose weights will be bound to this one, too: layers use the size of
    Winograd that these stand. `missing` is called before the program is compiled, if it has to be:
    if the cache does not have it. On a CPU without a level the numpy reference runs and says so.
    Raises InputError for an unknown precision, level, dtype, objective or held input, or a number
    of threads outside 1 to 256.

    >>> import numpy as np
    >>> g = Graph("double")
    >>> x = g.input("x", (2, 3))
    >>> g.output("y", x + x)
    >>> compile_graph(g, threads=1).run({"x": np.ones((2, 3), np.float32)})["y"].sum()
    np.float32(12.0)
    """
    return driver_of(device).compiled(
        device, graph, precision=precision, threads=threads, target=target, held=held,
        weights=weights, objective=objective, progress=progress, like=like, kept=kept,
        missing=missing)
