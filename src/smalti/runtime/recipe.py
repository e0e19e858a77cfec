"""What a program was compiled from, and modules that are made of it: from the cache, or anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from smalti import settings
from smalti.codegen.target import Limits, Target
from smalti.compiler.encode import from_bytes, to_bytes
from smalti.compiler.kernel_cache import KernelCache
from smalti.compiler.key import module_key
from smalti.compiler.module import Module
from smalti.compiler.options import Options
from smalti.compiler.passes import Progress, compiled, partitioned
from smalti.compiler.select import Knowledge
from smalti.dataclass import dataclass
from smalti.fuse import Partition
from smalti.graph import Graph
from smalti.graph.quantised import FORMATS
from smalti.runtime import cache

NO_WINOGRAD_SIZES: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Recipe:
    """A graph and how it is compiled, whatever the target.

    `limits` says what the device means for schedules of a target, `knowledge` what is known of
    schedules there beside the rules. `usual` is the target that the program has, `targets` are
    those that the graph can be compiled for.
    """

    graph: Graph
    options: Options
    usual: Target
    targets: tuple[Target, ...]
    limits: Callable[[Target, Options], Limits]
    knowledge: Callable[[Target, Options], Knowledge]

    def partition(self) -> tuple[Partition, int]:
        """The regions of the program by the rules, and the bytes that transformed weights may add
        to plain ones."""
        return partitioned(self.graph, self.usual, self.limits(self.usual, self.options),
                           self.options)

    def module(self, target: Target, winograd_sizes: Mapping[str, int] = NO_WINOGRAD_SIZES,
               progress: Progress | None = None) -> Module:
        """The module for a target, which this device need not have, from the cache or new; weights
        of `winograd_sizes` have F(m) of these sizes at most. Where weights are quantised, of which
        adapters make other dtypes, kernels that an earlier module of the graph has are not lowered
        again.

        Raises UnsupportedError as `compile_graph` does.
        """
        options = replace(self.options, winograd_sizes=tuple(sorted(winograd_sizes.items())))
        limits, known = self.limits(target, options), self.knowledge(target, options)
        key = module_key(self.graph, target, limits, options)
        lowered_key = f"{key.kernels}{known.key(())} lowered"
        if not FORMATS.keys().isdisjoint(dtype for _, dtype in options.weights):
            known.kernels = KernelCache()
        if not any(map(settings.show, settings.STAGES)):
            kernels = cache.get(f"{key.module} kernels") if known.best else None
            stored = cache.get(key.module + known.key((kernels or b"").decode().split()))
            if stored is not None:
                return from_bytes(stored)
            if known.kernels is not None and (lowered := cache.get(lowered_key)) is not None:
                known.kernels = KernelCache.from_bytes(lowered)
        module = compiled(self.graph, target, limits, options, known, progress, time.perf_counter)
        cache.put(f"{key.module} kernels", "\n".join(known.asked.values()).encode())
        cache.put(key.module + known.key(known.asked.values()), to_bytes(module))
        if known.kernels is not None and known.kernels.changed:
            cache.put(lowered_key, known.kernels.to_bytes())
        return module
