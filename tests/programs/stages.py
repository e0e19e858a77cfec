"""The stages of a program as text: what a graph becomes, from rewriting to the code of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from smalti.codegen.cpu.functions import FUNCTIONS as X86_FUNCTIONS
from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.gpu.functions import FUNCTIONS as GPU_FUNCTIONS
from smalti.codegen.gpu.lower import lower as lower_for_gpu
from smalti.codegen.levels import level
from smalti.codegen.spirv.emit import emit as spirv
from smalti.codegen.spirv.text import listing
from smalti.codegen.wgsl.emit import emit as wgsl
from smalti.codegen.x86.encoder import disassembly
from smalti.fuse import HostRegion, Partition, Region, partition
from smalti.graph import Graph, show
from smalti.rewrite import rewrite
from smalti.schedule import choose
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupLimits

THREADS = 2
"""Worker threads that schedules for CPUs are chosen for."""
GPU = GroupLimits(shared_bytes=32 << 10, invocations=256, subgroup_min=32, subgroup_max=32,
                  subgroup_operations=True, storage16=True, f16=True, bindings=16,
                  buffer_bytes=1 << 30, buffer_range=1 << 30)
"""A GPU without matrix units, as most desktops have had for ten years."""


def rewritten(graph: Graph) -> str:
    """The graph after all rewrite rules."""
    return show(rewrite(graph))


def partitioned(graph: Graph) -> str:
    """Each region: where it comes from, why it ends there, and its kernel."""
    return "\n".join(_region(region) for region in regions(graph, X86_FUNCTIONS).regions)


def regions(graph: Graph, functions) -> Partition:
    """The partition of a graph whose pointwise `functions` a target has."""
    return partition(rewrite(graph), functions=functions)


def kernels(graph: Graph, functions) -> Iterator[Region]:
    """The regions that kernels compute."""
    return (region for region in regions(graph, functions).regions
            if not isinstance(region, HostRegion))


def scheduled(name: str) -> Callable[[Graph], str]:
    """The first schedule of each kernel at an x86 feature level, with the default caches."""
    def stage(graph: Graph) -> str:
        return "\n".join(str(choose(region.kernel, limits(level(name), THREADS)))
                         for region in kernels(graph, X86_FUNCTIONS))
    return stage


def machine_code(name: str) -> Callable[[Graph], str]:
    """The instructions of each step of each kernel at an x86 feature level."""
    def stage(graph: Graph) -> str:
        chosen, found = level(name), []
        for region in kernels(graph, X86_FUNCTIONS):
            low = lower(region.kernel, choose(region.kernel, limits(chosen, THREADS)), chosen)
            for step in low.steps:
                found.append(f"{region.kernel.form}: {step.tiles} tiles\n"
                             + disassembly(step.code.bytes, step.code.entry))
        return "\n".join(found)
    return stage


def group_programs(graph: Graph) -> list[GroupProgram]:
    """What work-groups of a GPU do for each kernel."""
    return [step for region in kernels(graph, GPU_FUNCTIONS)
            for step in lower_for_gpu(region.kernel, choose_group(region.kernel, GPU, "f32"),
                                      GPU).steps]


def _region(region: Region | HostRegion) -> str:
    head = f"region {region.scope}".rstrip() + f": {region.reason}"
    return f"{head}\nhost {region.operation}" if isinstance(region, HostRegion) \
        else f"{head}\n{region.kernel}".rstrip()


STAGES: dict[str, Callable[[Graph], str]] = {
    "rewritten": rewritten,
    "partition": partitioned,
    "schedule avx2": scheduled("avx2"),
    "schedule avx512": scheduled("avx512"),
    "x86 avx2": machine_code("avx2"),
    "x86 avx512": machine_code("avx512"),
    "work-groups": lambda graph: "\n".join(map(str, group_programs(graph))),
    "spirv": lambda graph: "\n".join(listing(spirv(program, GPU))
                                     for program in group_programs(graph)),
    "wgsl": lambda graph: "\n".join(wgsl(program, GPU) for program in group_programs(graph)),
}
"""What a text case may hold behind its graph, by the name of the section."""
