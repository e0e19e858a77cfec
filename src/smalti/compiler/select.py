"""Which schedule each kernel of a partition has: the rules' choice, or one that is known to be
better and gives the same bytes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import field, replace

from smalti import settings
from smalti.codegen.target import Limits, LoweredKernel, Target
from smalti.compiler.kernel_cache import KernelCache
from smalti.compiler.options import Options
from smalti.compiler.targets import TARGETS
from smalti.dataclass import dataclass
from smalti.errors import DeviceError, IllegalSchedule, UnsupportedError, UnsupportedNode
from smalti.fuse import HostRegion, Partition, Region
from smalti.kernel import verify
from smalti.kernel.form import Kernel
from smalti.machine.cpu import constants_of
from smalti.schedule import AnySchedule, ContractionSchedule, Schedule, parse
from smalti.schedule.choose import WINOGRAD_MAX
from smalti.schedule.winograd import growth_of
from smalti.tune.algorithms import REFERENCE_THREADS, Cost, planned
from smalti.tune.objective import Objective
from smalti.tune.preference import preferred
from smalti.tune.store import digest

Submit = Callable[..., Future]
"""What takes work that is done elsewhere: the seconds that it may take, a function of a module, and
its arguments. It gives back what will have the result."""
KERNEL_SECONDS = 4.5e-3
"""What lowering a kernel takes, about, if this process lowers every other one: 9 ms is the mean of
the UNet of the model that ships, on a core of Zen 3."""
KERNELS_MAX = 1024
"""Lowered kernels that a process keeps for programs that it compiles later; the UNet of Stable
Diffusion 1.5 has 119, which take 1.3 MB."""


@dataclass
class Knowledge:
    """What is known of schedules on a device beside the rules: the fastest verified ones, by the
    digest of their kernels' texts; for other kernels what the timing model prefers by far for an
    `objective`, where there is one.

    `usual` is the same objective on the device as it says of itself: what the bytes of results
    depend on is chosen by that, so that calibrating changes none. `kernels` are those of earlier
    programs, where such are kept. `asked` has the kernels that were asked for, and their digests.
    """

    best: Mapping[str, str] = field(default_factory=dict)
    objective: Objective | None = None
    usual: Objective | None = None
    kernels: KernelCache | None = None
    asked: dict[Kernel, str] = field(default_factory=dict)
    _preferred: dict[tuple[Kernel, Schedule], AnySchedule] = field(default_factory=dict)

    @property
    def cost(self) -> Cost | None:
        """What algorithms are chosen by."""
        return self.usual.cost if self.usual else None

    @property
    def reference(self) -> Cost | None:
        """The same on as many threads as results are those of, whatever number computes them."""
        return replace(self.usual, threads=REFERENCE_THREADS).cost if self.usual else None

    def schedules(self, kernel: Kernel, limits: Limits,
                  first: AnySchedule) -> Iterator[AnySchedule]:
        """Schedules to use instead of the first choice, where they can be applied."""
        found = self.best.get(self.digest(kernel))
        if found is not None:
            yield parse(found)
        if self.objective is not None:
            assert isinstance(first, Schedule), f"the timing model knows CPUs, not {first}"
            if (kernel, first) not in self._preferred:
                self._preferred[kernel, first] = self._chosen(kernel, limits, first)
            yield self._preferred[kernel, first]

    def _chosen(self, kernel: Kernel, limits: Limits, first: Schedule) -> AnySchedule:
        """What the timing model prefers to the first schedule of a kernel, or that itself."""
        def choose() -> Schedule:
            return preferred(kernel, limits, first, lambda s: self.objective.cost(kernel, s))

        if self.kernels is None:
            return choose()
        return self.kernels.preferred(self.digest(kernel), first, choose)

    def digest(self, kernel: Kernel) -> str:
        """What the text of a kernel is filed under."""
        if kernel not in self.asked:
            self.asked[kernel] = digest(str(kernel))
        return self.asked[kernel]

    def key(self, kernels: Iterable[str]) -> str:
        """What of all that is known matters to a module of these kernels, by their digests."""
        picks = [f"{kernel} {self.best[kernel]}" for kernel in sorted(set(kernels))
                 if kernel in self.best]
        by: list[object] = []
        if self.objective is not None:
            device = self.objective.device
            by = [self.objective.name, device.name, device.bandwidth, dict(constants_of(device))]
        return f" with {json.dumps([picks, by])}"


class Selection:
    """The schedules of the kernels of a program, and what each is lowered to, made once for equal
    ones. `growth_max` bounds the bytes that transformed weights may add to plain ones. Kernels may
    be given to `submit`, to be lowered elsewhere."""

    def __init__(self, target: Target, limits: Limits, options: Options, known: Knowledge,
                 growth_max: int, submit: Submit | None = None) -> None:
        self._target, self._limits, self._options = target, limits, options
        self._known, self._growth_max = known, growth_max
        self._sizes = dict(options.winograd_sizes)
        self._firsts: dict[Kernel, AnySchedule] = {}
        self._lowered: dict[tuple[Kernel, AnySchedule], LoweredKernel] = {}
        self._submit = submit
        self._begun: dict[tuple[Kernel, AnySchedule], Future[LoweredKernel]] = {}

    def schedules(self, found: Partition) -> list[AnySchedule | None]:
        """The schedules of the regions of a partition, in order; None for calls of the host."""
        firsts: list[AnySchedule | None] = list(
            self._by_costs(found) if self._target.winograd else map(self._first, found.regions))
        left = self._growth_max - sum(
            self._growth(region, first) for region, first in zip(found.regions, firsts))
        for number, (region, first) in enumerate(zip(found.regions, firsts)):
            if first is not None and isinstance(region, Region):
                left += self._growth(region, first)
                firsts[number] = self._better(region, first, left)
                self._begin(region.kernel, firsts[number])
                left -= self._growth(region, firsts[number])
        return firsts

    def lowered(self, region: Region, schedule: AnySchedule) -> LoweredKernel:
        """Code of a kernel. Raises UnsupportedError where the target has no room for it."""
        with self._refusals(region):
            return self._code(region.kernel, schedule)

    def _begin(self, kernel: Kernel, schedule: AnySchedule) -> None:
        """Have a kernel lowered elsewhere, if there is such a place."""
        pair = kernel, schedule
        if (self._submit is not None and self._target.lowered is not None
                and pair not in self._begun and not self._is_known(*pair)):
            self._begun[pair] = self._submit(KERNEL_SECONDS, lowered_for, self._target.name, kernel,
                                             schedule, self._limits)

    def _is_known(self, kernel: Kernel, schedule: AnySchedule) -> bool:
        """Whether a kernel was lowered before."""
        if (kernel, schedule) in self._lowered:
            return True
        kept = self._known.kernels
        if kept is not None:
            return kept.has(self._known.digest(kernel), schedule)
        return self._key(kernel, schedule) in EARLIER

    def _key(self, kernel: Kernel, schedule: AnySchedule) -> Hashable:
        """What a lowered kernel is known as in this process."""
        return self._target.name, kernel, schedule, self._limits

    def waits(self, region: Region, schedule: AnySchedule) -> bool:
        """Whether a kernel is to be lowered elsewhere, and nobody has begun with it."""
        begun = self._begun.get((region.kernel, schedule))
        return begun is not None and not begun.running() and not begun.done()

    def end(self) -> None:
        """Nothing is wanted any more of what is to be lowered elsewhere."""
        for begun in self._begun.values():
            begun.cancel()
        self._begun.clear()

    def _by_costs(self, found: Partition) -> list[Schedule | None]:
        """First schedules, whose algorithms are chosen together."""
        kernels, winograd_sizes = [], []
        for region in found.regions:
            weight = region.views.get("weight")
            kernels.append(None if isinstance(region, HostRegion) else region.kernel)
            winograd_sizes.append(WINOGRAD_MAX if weight is None else self._sizes.get(
                weight.storage.name, WINOGRAD_MAX))
        return planned(kernels, self._limits, self._options.precision, self._growth_max,
                       winograd_sizes, self._known.cost, self._known.reference)

    def _first(self, region: Region | HostRegion) -> AnySchedule | None:
        """The first schedule of a kernel by itself."""
        if isinstance(region, HostRegion):
            return None
        kernel = region.kernel
        if kernel not in self._firsts:
            with self._refusals(region):
                self._firsts[kernel] = self._target.first(kernel, self._limits,
                                                          self._options.precision)
        return self._firsts[kernel]

    def _growth(self, region: Region | HostRegion, schedule: AnySchedule | None) -> int:
        """Bytes that the weights of a kernel take beyond the plain ones."""
        if not self._target.winograd or isinstance(region, HostRegion) \
                or region.kernel.form != "contraction":
            return 0
        assert isinstance(schedule, ContractionSchedule), schedule
        return growth_of(region.kernel, schedule, self._options.precision)

    def _better(self, region: Region, first: AnySchedule, left: int) -> AnySchedule:
        """The schedule that was measured to be best, or is expected to be better by far, where it
        gives the same bytes as the first one and its weights take no more than `left` bytes beyond
        the plain ones."""
        kernel = region.kernel
        for other in self._known.schedules(kernel, self._limits, first):
            if other == first:
                break
            if self._target.arithmetic(kernel, other) != self._target.arithmetic(kernel, first):
                continue
            if self._growth(region, other) > max(left, self._growth(region, first)):
                continue
            try:
                self._code(kernel, other)
            except (IllegalSchedule, OverflowError):  # of an imported store; beyond all addresses
                continue
            return other
        return first

    def _code(self, kernel: Kernel, schedule: AnySchedule) -> LoweredKernel:
        """Code of a kernel, made once for those that are equal."""
        if (kernel, schedule) not in self._lowered:
            verify(kernel, "the partition")
            low = self._lowered[kernel, schedule] = self._lower(kernel, schedule)
            for stage, text in (("kernel", kernel), ("schedule", schedule)):
                if settings.show(stage):
                    print(text)
            if settings.show("asm"):
                for step in low.steps:
                    print(self._target.listing(step))
        return self._lowered[kernel, schedule]

    def _lower(self, kernel: Kernel, schedule: AnySchedule) -> LoweredKernel:
        """Code of a kernel, that of an earlier program where it has an equal one."""
        target, kept = self._target, self._known.kernels
        begun = self._begun.pop((kernel, schedule), None)

        def lower() -> LoweredKernel:
            if begun is not None and not begun.cancel():
                with suppress(DeviceError):  # of the process that was asked
                    return begun.result()
            return target.lower(kernel, schedule, self._limits)

        if target.lowered is None:
            return target.lower(kernel, schedule, self._limits)
        if kept is not None:
            return kept.lowered(self._known.digest(kernel), schedule, target.lowered, lower)
        return lowered_before(self._key(kernel, schedule), lower)

    @contextmanager
    def _refusals(self, region: Region) -> Iterator[None]:
        """What the target has no room for, by the place of the kernel."""
        refusal = self._target.refusal
        try:
            yield
        except refusal.errors as error:
            raise UnsupportedError(refusal.title, [UnsupportedNode(
                region.scope, region.kernel.form, refusal.advice.format(error=error))]) from None


_turn = threading.Lock()
EARLIER: dict[Hashable, LoweredKernel] = {}
"""Kernels of earlier programs, the last that was used at the end."""


def lowered_before(key: Hashable, lower: Callable[[], LoweredKernel]) -> LoweredKernel:
    """A lowered kernel, a record that nobody changes: parts of a model have kernels in common, and
    so have programs of a part for other sizes, with ControlNets, or for other texts."""
    with _turn:
        found = EARLIER.pop(key, None)
    if found is None:
        found = lower()
    with _turn:
        EARLIER[key] = found
        if len(EARLIER) > KERNELS_MAX:
            del EARLIER[next(iter(EARLIER))]
    return found


def lowered_for(target: str, kernel: Kernel, schedule: AnySchedule, limits: Limits
                ) -> LoweredKernel:
    """Code of a kernel for a target, by its name."""
    return TARGETS[target].lower(kernel, schedule, limits)
