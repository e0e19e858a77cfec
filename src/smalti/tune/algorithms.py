"""Which algorithm computes each contraction of a program, and how its weights are held.

A convolution offers the direct sum, F(2) and F(4) of Winograd, an enlargement in front
folded in; their weights are transformed while they are bound, by each run, or by each tile.
What is transformed at binding takes memory, of which a program may take some more. So the choice is
made for all of them together: the least cost that the timing model expects, within these bytes.

Of another algorithm than the rules of `schedule.choose` take, the model has to expect a good deal.
The algorithm is the one that serves `REFERENCE_THREADS`: results depend on it, and are to be the
same for any number of threads. How weights are held is chosen for the threads that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from smalti.kernel.form import Kernel
from smalti.schedule import Limits, Schedule, choose
from smalti.schedule.arithmetic import arithmetic
from smalti.schedule.choose import algorithms
from smalti.schedule.schedule import BINDING, TILE, ContractionSchedule
from smalti.schedule.winograd import growth_of
from smalti.tune.assignment import Option, assigned
from smalti.tune.preference import GAIN_MIN

REFERENCE_THREADS = 1
"""Threads that algorithms are chosen for. Expected of other numbers, against algorithms of their
own: nothing for the UNet of Stable Diffusion 1.5 on up to 16 threads and its decoder on up to 8,
12 % for the decoder on 16; for a model of 128 x 128 pixels 3 to 6 % on 4, up to 28 % on 8."""
Cost = Callable[[Kernel, Schedule], float]
Choice = Callable[[Sequence[Sequence[Option]], int], list[int]]


def planned(kernels: Sequence[Kernel | None], limits: Limits, precision: str, growth_max: int,
            winograd_sizes: Sequence[int], cost: Cost | None,
            reference: Cost | None = None, choice: Choice = assigned) -> list[Schedule | None]:
    """The first schedules of the kernels of a program; None stays None.

    `growth_max` are the bytes that transformed weights may take beyond plain ones in all,
    `winograd_sizes` the largest F(m) of each kernel. Without a `cost` the rules alone decide, which
    give the bytes to those that come first. `reference` is the cost on `REFERENCE_THREADS`.
    """
    offers = Offers(limits, precision, cost)
    if cost is None:
        return offers.by_rules(kernels, growth_max, winograd_sizes)
    offered = [offers.of(kernel, most) if kernel is not None else [(None, Option(0.0, 0))]
               for kernel, most in zip(kernels, winograd_sizes, strict=True)]
    if reference is not None and limits.threads != REFERENCE_THREADS:
        usual = planned(kernels, replace(limits, threads=REFERENCE_THREADS), precision, growth_max,
                        winograd_sizes, reference, choice=choice)
        offered = [each if kernel is None or pick is None else
                   [one for one in each if _results(kernel, one[0]) == _results(kernel, pick)]
                   for kernel, pick, each in zip(kernels, usual, offered, strict=True)]
    least = [min(option.bytes for _, option in each) for each in offered]
    picks = choice([[Option(option.cost, option.bytes - bytes_min) for _, option in each]
                    for each, bytes_min in zip(offered, least, strict=True)],
                   max(0, growth_max - sum(least)))
    return [each[pick][0] for each, pick in zip(offered, picks, strict=True)]


def _results(kernel: Kernel, schedule: Schedule) -> Hashable:
    """What the bytes of results depend on. Weights that are transformed while they are bound are
    held as f32, which loses nothing of them as they are given."""
    if isinstance(schedule, ContractionSchedule) and schedule.winograd is not None \
            and schedule.winograd.transformed == BINDING:
        schedule = replace(schedule, weights=kernel.buffer("weight").dtype)
    return arithmetic(kernel, schedule)


class Offers:
    """The schedules that kernels offer, and what each costs."""

    def __init__(self, limits: Limits, precision: str, cost: Cost | None) -> None:
        self._limits, self._precision, self._cost = limits, precision, cost
        self._known: dict[tuple[Kernel, int], list[tuple[Schedule, Option]]] = {}

    def by_rules(self, kernels: Sequence[Kernel | None], growth_max: int,
                 winograd_sizes: Sequence[int]) -> list[Schedule | None]:
        """What the rules choose, one kernel after the other."""
        left = growth_max
        found: list[Schedule | None] = []
        for kernel, most in zip(kernels, winograd_sizes, strict=True):
            if kernel is None:
                found.append(None)
                continue
            found.append(choose(kernel, self._limits, self._precision, most, left))
            left -= self._growth(kernel, found[-1])
        return found

    def of(self, kernel: Kernel, winograd: int) -> list[tuple[Schedule, Option]]:
        """The schedules of a kernel, that of the rules in front; one of another algorithm, and one
        that transforms weights for each tile, counts as if it cost more."""
        key = kernel, winograd
        if key not in self._known:
            usual = choose(kernel, self._limits, self._precision, winograd, 0)
            others = algorithms(kernel, self._limits, self._precision, winograd)
            others = [other for other in others if other != usual]
            self._known[key] = [(usual, Option(0.0, 0))]
            if others and isinstance(usual, ContractionSchedule):
                self._known[key] = [
                    (one, Option(self._handicapped(kernel, one, usual), self._growth(kernel, one)))
                    for one in (usual, *others)]
        return self._known[key]

    def _handicapped(self, kernel: Kernel, one: ContractionSchedule,
                     usual: ContractionSchedule) -> float:
        same = one.winograd_size == usual.winograd_size and _each_tile(one) <= _each_tile(usual)
        return self._cost(kernel, one) / (1.0 if same else 1.0 - GAIN_MIN)

    def _growth(self, kernel: Kernel, schedule: Schedule) -> int:
        if not isinstance(schedule, ContractionSchedule):
            return 0
        return growth_of(kernel, schedule, self._precision)


def _each_tile(schedule: ContractionSchedule) -> bool:
    """True if each tile transforms the weights it needs."""
    return schedule.winograd is not None and schedule.winograd.transformed == TILE
