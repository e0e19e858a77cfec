"""What the shapes of tensors show: each number is read from every tensor that shows it.

The most frequent answer wins, so that a few missing or misshapen tensors do not hide what the
others say; those are then listed by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from smalti.errors import CheckpointError

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
