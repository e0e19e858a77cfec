"""What the shapes of tensors show: each number is read from every tensor that shows it.

The most frequent answer wins, so that a few missing or misshapen tensors do not hide what the
others say; those are then listed by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from smalti.errors import CheckpointError
from smalti.families.prefixes import UNET

BLOCKS_MAX = 64  # a name may hold any number, but a table of any size must not be built

Shapes = Mapping[str, tuple[int, ...]]


def sizes(shapes: Shapes, pattern: str, axis: int) -> list[int]:
    """Length of `axis` of every tensor whose name matches from its start.

    >>> sizes({"a.0.bias": (3,), "a.1.bias": (4,)}, r"a\\.\\d+\\.bias$", 0)
    [3, 4]
    """
    matches = re.compile(pattern).match
    return [s[axis] for name, s in shapes.items() if len(s) > axis and matches(name)]


def most(where: object, what: str, values: Iterable[int]) -> int:
    """The most frequent of `values`. Raises CheckpointError where there is none."""
    counted = Counter(values).most_common(1)
    if not counted:
        raise CheckpointError(f"{where}: nothing in it shows the {what}; the file is incomplete")
    return counted[0][0]


def count(where: object, what: str, shapes: Shapes, pattern: str) -> int:
    """One more than the highest number that the pattern's group matches in a name.

    Raises CheckpointError where no name matches, or for a number that no model has.
    """
    matches = re.compile(pattern).match
    numbers = {int(match[1]) for match in map(matches, shapes) if match}
    if not numbers:
        raise CheckpointError(f"{where}: no tensor is part of a {what}; the file is incomplete")
    if max(numbers) >= BLOCKS_MAX:
        raise CheckpointError(
            f"{where}: {what} {max(numbers)} occurs; expected fewer than {BLOCKS_MAX} of them"
        )
    return 1 + max(numbers)


def has(shapes: Shapes, *starts: str) -> bool:
    """Whether the name of a tensor starts with one of `starts`."""
    return any(name.startswith(starts) for name in shapes)


class Shown:
    """The numbers of a denoiser, each from a tensor that it cannot be without."""

    def __init__(self, where: object, shapes: Shapes, prefix: str = UNET) -> None:
        self.where = where
        self.shapes = shapes
        self.prefix = prefix

    def has(self, pattern: str) -> bool:
        """Whether a tensor's name starts so."""
        start = re.compile(re.escape(self.prefix) + pattern)
        return any(map(start.match, self.shapes))

    def count(self, pattern: str) -> int:
        """How many different numbers the group of the pattern matches."""
        start = re.compile(re.escape(self.prefix) + pattern)
        return len({match[1] for match in map(start.match, self.shapes) if match})

    def size(self, name: str, axis: int) -> int:
        """Length of an axis of a tensor."""
        return most(self.where, f"{axis + 1}. extent of {name}",
                    sizes(self.shapes, re.escape(self.prefix + name) + "$", axis))

    def blocks(self, name: str) -> int:
        """How many blocks of a name there are."""
        return count(self.where, f"{name.replace('_', ' ')[:-1]}", self.shapes,
                     re.escape(f"{self.prefix}{name}.") + r"(\d{1,4})\.")

    def parts(self, whole: int, part: int) -> int:
        """How often `part` goes into `whole`. Raises CheckpointError where something is left."""
        if not part or whole % part:
            raise CheckpointError(f"{self.where}: {whole} channels cannot be split into parts of "
                                  f"{part}; the file is damaged or of another model")
        return whole // part

    def axes(self, head_dim: int, first: float, place: float) -> tuple[int, int, int]:
        """The channels of a head that turn with the first coordinate of a token, its row and its
        column, by their shares. Raises CheckpointError for parts that are not even."""
        found = int(head_dim * first), int(head_dim * place), int(head_dim * place)
        if sum(found) != head_dim or any(axis % 2 for axis in found):
            raise CheckpointError(
                f"{self.where}: heads of {head_dim} channels cannot be split into even parts of "
                f"{first:g}, {place:g} and {place:g}; the file is damaged or of another model")
        return found
