"""What a program is compiled for, whatever the target: one record, checked in one place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from smalti import settings
from smalti.codegen.target import Limits, Target
from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.graph.operation import HALVES
from smalti.graph.operations.contraction import WORD_FACTOR
from smalti.graph.quantised import FORMATS
from smalti.tune.objective import OBJECTIVES
from smalti.tune.objective import checked as checked_objective

ALL_F32: Mapping[str, str] = MappingProxyType({})
ALL_ROUNDED: Mapping[str, str] = MappingProxyType({})
"""No layers that do not stand 8 bits: else the names of their weights, and what they are computed
in."""
KEPT = ("f32", WORD_FACTOR)
"""What such layers are computed in: as they would be without integers, or in those of 16 bits."""
AUTO, ROUNDED = "auto", "int8"
"""Precisions that stand for others: the usual one of a target, and integers of 8 bits for the sums
of a model, with the rest in what the target has beside them."""
USUAL_HALVES = "f16"
"""What weights are held as where they are given in a dtype that the target cannot hold."""


@dataclass(frozen=True)
class Options:
    """How a graph is compiled.

    `precision` is what values between kernels are stored in. Inputs named in `held` are expected to
    stay the same for many runs. Schedules are chosen for `threads`, and for an `objective`; any
    number of threads runs a module and gives the same bytes. `weights` are names and dtypes of the
    parameters that are held as halves or quantised, `winograd_sizes` the largest F(m) of weights
    that do not stand F(4). Layers are `rounded` to integers of 8 bits; of those whose weights are
    `kept` it says in what else they are computed.
    """

    precision: str = "f32"
    held: tuple[str, ...] = ()
    threads: int = 1
    weights: tuple[tuple[str, str], ...] = ()
    objective: str = OBJECTIVES[0]
    winograd_sizes: tuple[tuple[str, int], ...] = ()
    rounded: bool = False
    kept: tuple[tuple[str, str], ...] = ()

    @property
    def asked(self) -> str:
        """The precision as users know it: "int8" where layers are rounded."""
        return ROUNDED if self.rounded else self.precision


def checked(graph: Graph, target: Target, limits: Limits, device: str, *, precision: str,
            held: Collection[str] = (), threads: int | None = None,
            weights: Mapping[str, str] = ALL_F32, objective: str = OBJECTIVES[0],
            kept: Mapping[str, str] = ALL_ROUNDED) -> Options:
    """Options for a graph on a target, of a device that errors call by this name.

    Raises InputError for an unknown precision or one that the device lacks, an unknown objective,
    dtype or held input, or a number of threads outside 1 to 256.
    """
    known = _known_precision(precision, target, limits, device)
    if unknown := sorted(set(held) - set(graph.inputs)):
        raise InputError(f"there is no input {', '.join(unknown)} to hold; the graph has "
                         f"{', '.join(graph.inputs)}")
    if unknown := sorted(set(weights.values()) - {*HALVES, *FORMATS}):
        raise InputError(f"weights are held as f32, {', '.join((*HALVES, *FORMATS))}, not as "
                         f"{', '.join(unknown)}")
    if unknown := sorted(set(kept.values()) - set(KEPT)):
        raise InputError(f"layers are kept in {' or '.join(KEPT)}, not in {', '.join(unknown)}")
    if threads is None:
        threads = 1 if checked_objective(objective) == "throughput" else settings.threads()
    stored = {name: dtype if dtype in target.held else USUAL_HALVES
              for name, dtype in weights.items() if target.halves(limits)}
    return Options(known, tuple(held), settings.checked_threads(threads),
                   tuple(sorted(stored.items())), checked_objective(objective),
                   rounded=precision == ROUNDED, kept=tuple(sorted(kept.items())))


def _known_precision(precision: str, target: Target, limits: Limits, device: str) -> str:
    """The precision that is meant. Raises InputError where the device lacks it."""
    known = (AUTO, *target.precisions, *([ROUNDED] if target.beside_integers else []))
    if precision not in (*known, *target.lacks):
        raise InputError(f"precision {precision!r} is unknown; {device} has {', '.join(known)}")
    halves = target.halves(limits)
    if precision == ROUNDED and target.beside_integers:
        return target.beside_integers
    if precision == AUTO:
        return target.automatic if halves else "f32"
    if precision != "f32" and not halves:
        raise InputError(f"{device} does not store 16 bits, which precision {precision!r} needs; "
                         f"use f32")
    if precision in target.lacks:
        raise InputError(f"{device} {target.lacks[precision]}")
    return precision
