"""Which candidates of kernels one of several computers tries: a part of all, or those of a final.

A tuner alone tries all. Computers of one kind share candidates, each a part of every kernel's, with
as many of the promising ones; then each judges what all of them found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from smalti.dataclass import dataclass


class Heat(Protocol):
    """What is tried."""

    @property
    def again(self) -> bool:
        """Whether that is tried, too, which this computer has measured before."""

    def has(self, kernel: str) -> bool:
        """Whether candidates of the kernel of this text are tried."""

    def among(self, kernel: str, schedules: Sequence[str], expected: np.ndarray) -> Iterable[int]:
        """Which of the schedules, by their numbers; `expected` are their times by the model."""


@dataclass(frozen=True)
class PartOf:
    """One of so many equal parts of all candidates.

    >>> parts = [PartOf(number, 2) for number in range(2)]
    >>> [sorted(map(int, part.among("", "abcd", np.array([4.0, 1.0, 3.0, 2.0])))) for part in parts]
    [[1, 2], [0, 3]]
    """

    number: int = 0
    of: int = 1
    again: bool = False

    def has(self, kernel: str) -> bool:
        """All have."""
        return True

    def among(self, kernel: str, schedules: Sequence[str], expected: np.ndarray) -> Iterable[int]:
        """One of every so many, in the order of what the model expects."""
        return np.argsort(expected, kind="stable")[self.number::self.of]


@dataclass(frozen=True)
class Final:
    """The schedules to be judged, by the texts of kernels."""

    wanted: Mapping[str, Collection[str]]
    again: bool = True

    def has(self, kernel: str) -> bool:
        """Whether some of its schedules are judged."""
        return kernel in self.wanted

    def among(self, kernel: str, schedules: Sequence[str], expected: np.ndarray) -> Iterable[int]:
        """Those that are judged."""
        return [n for n, text in enumerate(schedules) if text in self.wanted[kernel]]


ALL = PartOf()
"""What a computer tries that is alone."""
