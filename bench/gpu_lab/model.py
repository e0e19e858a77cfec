"""How well registers, spills and occupancy of programs are predicted, and better constants.

A prediction is what `smalti.codegen.gpu.registers` finds kept alive, and what the unit of the chip
(`smalti.schedule.compute_units`) makes of that; what is compared with it are reports of `table`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from smalti.schedule.compute_units import compute_unit
from smalti.schedule.residency import CompilerNeeds, ComputeUnit, KeptWords

from .chips import CHIPS

Report = Mapping[str, Any]

REGISTER_BYTES = 32
"""Intel's compiler counts registers of so many bytes, whatever a subgroup's invocations take."""
CLOSE = 0.15
"""Errors of registers that count as close."""
FEWEST = 16
"""Errors of programs of fewer registers are taken of so many: they never bound anything."""
ROUNDS, SWEEPS, SMALL = 30, 300, 0.02
"""Rounds of a fit, each of which looks anew where most is alive, sweeps of one, and the relative
error below which none counts more."""
START, LEAST = (1.0, 1.0, 1.0, 1.0, 0.5, 0.2, 0.2, 1.0, 8.0), (0.9, 0.5, *(0.0,) * 5, 0.9, 0.0)
"""Constants that a fit begins with, and the least ones: a sum is a register for all of a loop."""
COLUMNS = ("chip", "programs", "registers: mean error", "within 15 %", "spills right", "missed",
           "occupancy exact", "within a quarter", "chooser's registers", "within 15 %")


@dataclass(frozen=True)
class Comparison:
    """A program: registers of a lane that its compiler needed and those that were predicted.

    `spills` and `occupancy` are each as it is and as predicted; `chooser` is what the chooser of
    schedules thought of its registers, 0 where it did not. A compiler that tells what it gave, not
    what it wanted, is `capped` where that was all there is.
    """

    needed: float
    predicted: int
    spills: tuple[bool, bool]
    occupancy: tuple[int, int]
    chooser: float
    capped: bool

    def error(self, registers: float) -> float:
        """Of so many predicted registers, relative to those that were needed."""
        off = registers - self.needed
        return max(-off, 0.0 if self.capped else off) / max(self.needed, FEWEST)


def needed(report: Report, unit: ComputeUnit) -> float:
    """Registers of a lane that the compiler says a program needs."""
    if unit.fixed_bytes:
        return report["needed"] * REGISTER_BYTES / (4 * report["subgroup"])
    return report["needed"]


def points(report: Report) -> list[KeptWords]:
    """What is alive in a program where most is."""
    return [KeptWords(*each) for each in report["kept"]]


def compared(report: Report, unit: ComputeUnit, needs: CompilerNeeds) -> Comparison:
    """A report beside what is predicted with these constants."""
    subgroup, size = report["subgroup"], report["size"]
    unit = replace(unit, needs=needs)
    alive = points(report)
    predicted = max(unit.held(each) for each in alive)
    resident = unit.resident(predicted, subgroup, size, report["shared"],
                             any(each.factors for each in alive))
    return Comparison(
        needed(report, unit), predicted,
        (report["spills"] > 0, predicted > unit.capacity(subgroup, size)),
        (report["occupancy"], resident),
        report.get("chooser", {}).get("registers", 0.0), capped(report, unit))


def capped(report: Report, unit: ComputeUnit) -> bool:
    """Whether a compiler tells what it gave of too few registers, not what it wanted."""
    return (not unit.fixed_bytes and not unit.double and report["spills"] > 0)


def usable(reports: Sequence[Report]) -> list[Report]:
    """Reports of programs that were compiled, and of which something is known to be kept."""
    return [each for each in reports if "error" not in each and each.get("kept")]


def row(chip: str, found: Sequence[Comparison]) -> tuple[str, ...]:
    """The comparisons of a chip as cells of `COLUMNS`."""
    def share(values: Sequence[bool]) -> str:
        return f"{100 * statistics.fmean(values):.1f} %" if values else "-"

    errors = [each.error(each.predicted) for each in found]
    chosen = [each.error(each.chooser) for each in found if each.chooser]
    return (chip, str(len(found)), f"{100 * statistics.fmean(errors):.1f} %",
            share([error <= CLOSE for error in errors]),
            share([each.spills[0] == each.spills[1] for each in found]),
            str(sum(each.spills[0] and not each.spills[1] for each in found)),
            share([each.occupancy[0] == each.occupancy[1] for each in found]),
            share([abs(each.occupancy[0] - each.occupancy[1]) <= each.occupancy[0] / 4
                   for each in found]),
            f"{100 * statistics.fmean(chosen):.1f} %" if chosen else "-",
            share([error <= CLOSE for error in chosen]))


def fitted(reports: Sequence[Report], unit: ComputeUnit) -> CompilerNeeds:
    """Constants that fit reports of one chip best, by the sum of relative errors: squares whose
    weights are those of the errors of the round before."""
    reports = [each for each in reports if not capped(each, unit)]
    rows = [np.array([(*astuple(each), 1.0) for each in points(report)]) for report in reports]
    step = unit.needs.step  # in the middle of what is rounded up to the same
    wanted = np.array([needed(report, unit) - (step - 1) / 2 for report in reports])
    scale = 1 / np.maximum(wanted, FEWEST)
    found, best = np.array(START), (np.inf, np.array(START))
    for _ in range(ROUNDS):
        worst = np.array([each[np.argmax(each @ found)] for each in rows])
        errors = np.abs(worst @ found - wanted) * scale
        best = min(best, (float(errors.sum()), found), key=lambda pair: pair[0])
        weights = scale / np.sqrt(np.maximum(errors, SMALL))
        solved = _bounded(worst * weights[:, None], wanted * weights, found)
        found = 0.5 * found + 0.5 * solved
    *words, held, base = (round(float(value), 2) for value in best[1])
    return CompilerNeeds(*words, base, step=step, saves=unit.needs.saves, held=held)


def _bounded(rows: np.ndarray, wanted: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Least squares with the lower bounds `LEAST`, coordinate by coordinate."""
    gram, right, found = rows.T @ rows, rows.T @ wanted, np.maximum(start, LEAST)
    for _ in range(SWEEPS):
        for column in np.flatnonzero(gram.diagonal()):
            rest = right[column] - gram[column] @ found + gram[column, column] * found[column]
            found[column] = max(LEAST[column], rest / gram[column, column])
    return found


def across(graphs: Mapping[str, Sequence[Report]], unit: ComputeUnit) -> list[Comparison]:
    """Comparisons of each graph with constants that were fitted to all others."""
    found = []
    for name, reports in graphs.items():
        others = [report for other, each in graphs.items() if other != name for report in each]
        if others:
            needs = fitted(others, unit)
            found += [compared(report, unit, needs) for report in reports]
    return found


def unit_of(chip: str) -> ComputeUnit:
    """The unit of a chip."""
    return compute_unit(CHIPS[chip].architecture)
