"""Modules that are to be compiled: what they are made from, in this process or another one."""

from __future__ import annotations

import time
from typing import Any

from smalti import settings
from smalti.codegen.target import Limits, Target
from smalti.compiler.encode import to_bytes
from smalti.compiler.kernel_cache import KernelCache
from smalti.compiler.key import ModuleKey
from smalti.compiler.module import Module
from smalti.compiler.options import Options
from smalti.compiler.passes import Progress, compiled
from smalti.compiler.select import Knowledge, Submit
from smalti.compiler.targets import TARGETS
from smalti.dataclass import dataclass
from smalti.graph import Graph, parse, show
from smalti.graph.quantised import FORMATS
from smalti.runtime import cache


@dataclass
class ModuleOrder:
    """A module that somebody wants: all that it is made from, and what it is filed under.

    Where weights are quantised, of which adapters make other dtypes, kernels that an earlier module
    of the graph has are not lowered again.
    """

    graph: Graph
    target: Target
    limits: Limits
    options: Options
    known: Knowledge
    key: ModuleKey

    @property
    def name(self) -> str:
        """What tells it from all others, before it is known which kernels it has: its key, and all
        that is known of schedules."""
        return self.key.module + self.known.key(self.known.best)

    def kept(self) -> bytes | None:
        """The module as the cache has it; None where it has not, and while stages are shown."""
        if shown():
            return None
        kernels = cache.get(f"{self.key.module} kernels") if self.known.best else None
        return cache.get(self.key.module + self.known.key((kernels or b"").decode().split()))

    def with_kernels(self) -> ModuleOrder:
        """The same, with the kernels of earlier modules of the graph where such are of use."""
        if not FORMATS.keys().isdisjoint(dtype for _, dtype in self.options.weights):
            lowered = None if shown() else cache.get(self._lowered_key)
            self.known.kernels = (KernelCache() if lowered is None
                                  else KernelCache.from_bytes(lowered))
        return self

    def made(self, progress: Progress | None = None, submit: Submit | None = None
             ) -> tuple[Module, dict[str, bytes]]:
        """The module, compiled, and what the cache is to keep of it: entries by their keys, of
        which the first is the module as bytes. `submit` takes kernels that others may lower. Raises
        UnsupportedError as `compile_graph` does."""
        module = compiled(self.graph, self.target, self.limits, self.options, self.known, progress,
                          time.perf_counter, submit)
        kernels = self.known.asked.values()
        entries = {self.key.module + self.known.key(kernels): to_bytes(module),
                   f"{self.key.module} kernels": "\n".join(kernels).encode()}
        if self.known.kernels is not None and self.known.kernels.changed:
            entries[self._lowered_key] = self.known.kernels.to_bytes()
        return module, entries

    @property
    def _lowered_key(self) -> str:
        return f"{self.key.kernels}{self.known.key(())} lowered"

    def __reduce__(self) -> tuple:
        """As text and records, that another process reads: operations and targets are functions."""
        return _read, (show(self.graph), self.target.name, self.limits, self.options, self.known,
                       self.key)


def entries_of(order: ModuleOrder) -> dict[str, bytes]:
    """What the cache is to keep of a module that is compiled now: first it as bytes."""
    return order.made()[1]


def loaded() -> None:
    """Do nothing: a helper that is asked for this has loaded the compiler, which is imported here.
    """


def shown() -> bool:
    """Whether stages of compiling are printed, which are gone through for it."""
    return any(map(settings.show, settings.STAGES))


def _read(graph: str, target: str, *rest: Any) -> ModuleOrder:
    return ModuleOrder(parse(graph), TARGETS[target], *rest)
