"""How good a scheduler is: the time of the best of its first k schedules over the best of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from smalti.dataclass import dataclass
from smalti.dojo.policy import Policy
from smalti.dojo.task import Task
from smalti.tune.search import search

BUDGETS = (1, 10, 100)
"""Schedules that a contender may measure, for each column of the table."""
DRAWS = 99
"""Random orders, of whose regrets the median is taken; an odd number has one."""
STAGING = ("staged_a", "staged_b")
"""Fields that turn a kind of kernel on or off, where others are sizes."""


@dataclass(frozen=True)
class Score:
    """The regret of one contender on one task by the number of schedules that it may measure."""

    task: str
    contender: str
    regrets: tuple[float, ...]


def curve(task: Task, order: Sequence[int] | np.ndarray,
          budgets: Sequence[int] = BUDGETS) -> tuple[float, ...]:
    """Regrets after the first k of `order`, for each k; all of it where it has fewer.

    >>> from smalti.dojo.space import Space
    >>> space = Space("s", ("x",), np.arange(3)[:, None])
    >>> times = np.array([4.0, 1.0, 2.0])
    >>> curve(Task("t", space, np.zeros(1), times, times), [0, 2, 1], (1, 2, 3))
    (4.0, 2.0, 1.0)
    """
    best = np.minimum.accumulate(task.regret(np.asarray(order)))
    return tuple(float(best[min(k, len(best)) - 1]) for k in budgets)


def chance(task: Task, budgets: Sequence[int] = BUDGETS) -> tuple[float, ...]:
    """The median regret of schedules drawn at random."""
    random, regrets = np.random.default_rng(0), task.regret(np.arange(len(task.space)))
    return tuple(float(np.median([random.choice(regrets, k).min() for _ in range(DRAWS)]))
                 for k in budgets)


def greedy(task: Task) -> np.ndarray:
    """All candidates, those that the timing model expects to be fastest first."""
    return np.argsort(task.expected, kind="stable")


def searched(task: Task, budget: int) -> tuple[int, ...]:
    """The candidates that `smalti.tune`'s search measures, in order: by the timing model, corrected
    by what was measured."""
    space = task.space
    features = np.log2(np.where(space.candidates > 0, space.candidates, 1) + (
        np.isin(space.fields, STAGING) & (space.candidates > 0)))
    columns = [space.fields.index(name) for name in STAGING if name in space.fields]
    kinds = [tuple(row) for row in space.candidates[:, columns].tolist()] if columns else None
    works = np.isfinite(task.expected)
    expected = np.where(works, task.expected, 2 * task.expected[works].max())
    order = np.arange(len(space))
    if not task.modelled:  # so that the first ones are not all alike
        order, kinds = np.random.default_rng(0).permutation(order), None
    found = search(expected[order], features[order], lambda i: task.seconds[order[i]],
                   budget=budget, kinds=kinds)
    return tuple(order[list(found.order)].tolist())


def score(policy: Policy, tasks: Sequence[Task], budgets: Sequence[int] = BUDGETS) -> list[Score]:
    """The regrets of all contenders on each task.

    They are the search, the order of the timing model (where it has one), the agent (where it
    knows the space), "transfer": the order that is best for the same problem on another device
    (where that was measured), and chance.
    """
    scores = []
    for task in tasks:
        contenders: dict[str, Callable[[], Sequence[int] | np.ndarray]] = {
            "search": partial(searched, task, max(budgets))}
        if task.modelled:
            contenders["model"] = partial(greedy, task)
        if policy.space is task.space:
            contenders["agent"] = partial(policy.ranking, task)
        others = [other for other in tasks if other is not task and other.space is task.space
                  and np.array_equal(other.features[-3:], task.features[-3:])]
        if others:
            contenders["transfer"] = partial(np.argsort, others[0].seconds, kind="stable")
        scores += [Score(task.name, name, curve(task, order(), budgets))
                   for name, order in contenders.items()]
        scores.append(Score(task.name, "chance", chance(task, budgets)))
    return scores


def table(scores: Sequence[Score], budgets: Sequence[int] = BUDGETS) -> str:
    """The scores as a Markdown table; exhaustive search is 1 by definition."""
    lines = ["| task | contender | " + " | ".join(f"best of {k}" for k in budgets) + " |",
             "| --- | --- |" + " --- |" * len(budgets)]
    lines += [f"| {each.task} | {each.contender} | "
              + " | ".join(f"{regret:.2f}" for regret in each.regrets) + " |" for each in scores]
    return "\n".join(lines)


def means(level: str, scores: Sequence[Score]) -> list[Score]:
    """Geometric means over the tasks of a level, a line a contender."""
    names = dict.fromkeys(each.contender for each in scores)
    return [Score(level, name, tuple(np.exp(np.mean(
        [np.log(each.regrets) for each in scores if each.contender == name], axis=0)).tolist()))
        for name in names]
