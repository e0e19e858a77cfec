"""What a program was compiled from, and modules that are made of it: from the cache, or anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from smalti.codegen.target import Limits, Target
from smalti.compiler.encode import from_bytes
from smalti.compiler.key import module_key
from smalti.compiler.module import Module
from smalti.compiler.options import Options
from smalti.compiler.passes import Progress, partitioned
from smalti.compiler.select import Knowledge
from smalti.dataclass import dataclass
from smalti.fuse import Partition
from smalti.graph import Graph
from smalti.runtime import ahead, cache
from smalti.runtime.order import ModuleOrder

NO_WINOGRAD_SIZES: Mapping[str, int] = MappingProxyType({})


def nothing_missing() -> None:
    """Nobody is told that a module is missing."""


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

    def order(self, target: Target, winograd_sizes: Mapping[str, int] = NO_WINOGRAD_SIZES
              ) -> ModuleOrder:
        """The module for a target, not made yet; weights of `winograd_sizes` have F(m) of these
        sizes at most."""
        options = replace(self.options, winograd_sizes=tuple(sorted(winograd_sizes.items())))
        limits = self.limits(target, options)
        return ModuleOrder(self.graph, target, limits, options, self.knowledge(target, options),
                           module_key(self.graph, target, limits, options))

    def module(self, target: Target, winograd_sizes: Mapping[str, int] = NO_WINOGRAD_SIZES,
               progress: Progress | None = None,
               missing: Callable[[], None] = nothing_missing) -> Module:
        """The module for a target, which this device need not have, from the cache, made by a
        helper (see `ahead.py`), or new; weights of `winograd_sizes` have F(m) of these sizes at
        most. `missing` is called before one is compiled.

        Raises UnsupportedError as `compile_graph` does.
        """
        order = self.order(target, winograd_sizes)
        coming = ahead.coming(order)  # before the cache, which has what has just been made
        if (kept := order.kept()) is not None:
            return from_bytes(kept)
        if coming is not None and (found := ahead.arrived(coming)) is not None:
            return from_bytes(found)
        missing()
        submit = ahead.submitting(order.options.threads)
        module, entries = order.with_kernels().made(progress, submit)
        for key, payload in entries.items():
            cache.put(key, payload)
        return module
