"""One option for each of many things, at the least cost within a budget of bytes.

Each thing offers options that cost something and take bytes of a budget that all share: the
multiple-choice knapsack problem. `exact` keeps, thing by thing, the totals that no other one beats
in both cost and bytes; layers of a model come in few sizes, so these are few. `greedy` takes one
step after another that saves the most for a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STATES_MAX = 20_000
"""Totals that `exact` keeps at most."""


class Option(NamedTuple):
    """What an option costs, and the bytes that it takes."""

    cost: float
    bytes: int


class _Total(NamedTuple):
    bytes: int
    cost: float
    picks: tuple | None
    """The option of the last thing, and the total before it."""


def assigned(things: Sequence[Sequence[Option]], budget: int) -> list[int]:
    """The number of an option for each thing: the best where that is soon found, else a good one.

    Each thing has an option that takes no bytes.

    >>> things = [[Option(9.0, 0), Option(6.0, 4)], [Option(8.0, 0), Option(6.0, 3)],
    ...           [Option(8.0, 0), Option(6.5, 3)]]
    >>> assigned(things, 6), greedy(things, 6)
    ([0, 1, 1], [1, 0, 0])
    """
    best = exact(things, budget)
    return greedy(things, budget) if best is None else best


def exact(things: Sequence[Sequence[Option]], budget: int,
          states_max: int = STATES_MAX) -> list[int] | None:
    """The options with the least sum of costs; None where more than `states_max` totals are kept.

    Of equal sums it is the one that takes fewer bytes.
    """
    totals = [_Total(0, 0.0, None)]
    for options in things:
        grown = [_Total(total.bytes + option.bytes, total.cost + option.cost, (number, total))
                 for number, option in enumerate(options) for total in totals
                 if total.bytes + option.bytes <= budget]
        totals = _unbeaten(grown)
        if len(totals) > states_max:
            return None
    found, at = [], totals[-1].picks
    while at is not None:
        number, before = at
        found.append(number)
        at = before.picks
    return found[::-1]


def _unbeaten(totals: list[_Total]) -> list[_Total]:
    """Those that cost less than all that take no more bytes, by bytes."""
    found: list[_Total] = []
    for total in sorted(totals, key=lambda one: one[:2]):
        if not found or total.cost < found[-1].cost:
            found.append(total)
    return found


def greedy(things: Sequence[Sequence[Option]], budget: int) -> list[int]:
    """From the cheapest options that take no bytes, step by step: the one that saves the most for a
    byte and still fits."""
    picks = [min((option.cost, n) for n, option in enumerate(options) if not option.bytes)[1]
             for options in things]
    left = budget
    while True:
        steps = [((options[pick].cost - option.cost) / (option.bytes - options[pick].bytes), n, to)
                 for n, (options, pick) in enumerate(zip(things, picks, strict=True))
                 for to, option in enumerate(options)
                 if 0 < option.bytes - options[pick].bytes <= left
                 and option.cost < options[pick].cost]
        if not steps:
            return picks
        _, n, to = max(steps, key=lambda step: (step[0], -step[1], -step[2]))
        left -= things[n][to].bytes - things[n][picks[n]].bytes
        picks[n] = to
