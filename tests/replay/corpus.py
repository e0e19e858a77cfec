"""Every graph that replay compiles, by name, and for which machines.

A *quick* corpus takes about a minute of one core: models of a few channels, kernels of each form.
The *full* one adds more machines to these, and the published shapes of the models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from zlib import crc32

import group_programs
from replay import kernel_graphs, model_graphs, onnx_graphs
from replay.machines import GPU_SETTINGS, X86_SETTINGS, Setting

from smalti.codegen.gpu.form import GroupProgram
from smalti.graph import Graph

STEADY = ("context", "vector", "pooled", "guidance", "mask")
"""Inputs that stay the same for all steps of a picture, where a graph has them."""
EXPLORED_SETTINGS = (Setting("avx2"), Setting("avx512_bf16", "bf16"),
                     Setting("vulkan of 32 lanes, matrices", "f16"))
EXPLORED_MAX = {"quick": 12, "full": 60}
"""Schedules of a kernel besides the chosen one."""


ROOMY = tuple(each for each in GPU_SETTINGS if "least" not in each.target)
"""Where weights and values of published models have room."""
EMITTED = {
    "spirv": (Setting("vulkan of 8 lanes"), True, ()),
    "spirv without f16": (Setting("vulkan of the least"), False, ()),
    "wgsl": (Setting("webgpu of 32 lanes"), True, ()),
    "spirv of matrices": (Setting("vulkan of 32 lanes, matrices"), True, ("f16", "bf16")),
}
"""Group programs that no kernel makes, by a language: whether they compute with f16, and what they
multiply by matrix units."""


@dataclass(frozen=True)
class Entry:
    """A graph of the corpus, and the machines that it is compiled for.

    Where it is `explored`, so many schedules of each of its kernels are made besides those that are
    chosen. An entry that has no graph is of `programs` for GPUs.
    """

    name: str
    graph: Callable[[], Graph] | None
    settings: tuple[Setting, ...]
    explored: int = 0
    programs: Callable[[], Iterable[GroupProgram]] | None = None


def entries(size: str) -> Iterator[Entry]:
    """The corpus of a size, "quick" or "full", in a fixed order.

    >>> len({entry.name for entry in entries("full")}) == len(list(entries("full")))
    True
    """
    quick = size == "quick"
    for name, graph in model_graphs.tiny().items():
        yield Entry(name, graph, _some(name, 1 if quick else 3, 1 if quick else 2))
    for name, graph in {**kernel_graphs.GRAPHS, **onnx_graphs.small()}.items():
        yield Entry(name, graph, _some(name, 2 if quick else 4, 2 if quick else 4))
    for name, graph in kernel_graphs.EXPLORED.items():
        yield Entry(f"schedules of {name}", graph, EXPLORED_SETTINGS, EXPLORED_MAX[size])
    for name, (setting, f16, factors) in EMITTED.items():
        yield Entry(f"programs of {name}", None, (setting,),
                    programs=partial(_programs, f16, factors))
    if not quick:
        for name, graph in {**model_graphs.published(), **onnx_graphs.published()}.items():
            yield Entry(name, graph, (*_taken(X86_SETTINGS, name, 1), *_taken(ROOMY, name, 1)))


def _programs(f16: bool, factors: Sequence[str]) -> Iterator[GroupProgram]:
    if not factors:
        yield from group_programs.all_without_matrices(f16)
    for each in factors:
        for shared in (False, True):
            yield group_programs.products(16, 16, 16, each, "f32", shared)


def _some(name: str, x86: int, gpus: int) -> tuple[Setting, ...]:
    """Settings for a graph: every graph has others, that do not change when graphs are added."""
    return (*_taken(X86_SETTINGS, name, x86), *_taken(GPU_SETTINGS, name, gpus))


def _taken(settings: Sequence[Setting], name: str, count: int) -> tuple[Setting, ...]:
    first = crc32(name.encode()) % len(settings)
    return tuple(settings[(first + i) % len(settings)] for i in range(count))
