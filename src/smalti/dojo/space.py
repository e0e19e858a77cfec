"""A space of schedules as a tree of decisions: one field after the other, as long as some legal
schedule begins with what was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from itertools import product

import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import InputError

STEP = 32
"""Elements of k that are staged at a time (KWG of CLBlast's kernel)."""
THREADS_MAX = 1024
"""Threads of a work-group: the limit of CUDA, and of most drivers of OpenCL."""
SHARED_BYTES_MAX = 48 << 10
"""Shared memory of a work-group: what CUDA gives without being asked for more."""
WORD = 4
"""Bytes of an f32."""
PRODUCT_CHOICES = {
    "tile_m": (16, 32, 64, 128), "tile_n": (16, 32, 64, 128),
    "threads_m": (8, 16, 32), "threads_n": (8, 16, 32),
    "copiers_m": (8, 16, 32), "copiers_n": (8, 16, 32),
    "vector_m": (1, 2, 4, 8), "vector_n": (1, 2, 4, 8),
    "staged_a": (0, 1), "staged_b": (0, 1),
}


@dataclass(frozen=True)
class Space:
    """All legal schedules of a kind of kernel.

    `candidates` [schedules, fields] hold the value of each field; `choices` are the values that a
    field may have at all, in rising order.

    >>> space = Space("two", ("tile", "unroll"), np.array([[8, 1], [8, 2], [16, 1]]))
    >>> space.choices, space.mask(0).tolist()
    (((8, 16), (1, 2)), [True, True])
    >>> node = space.tree[0, 1]              # tile 16 leaves one way to unroll
    >>> space.mask(node).tolist(), int(space.tree[node, 0])
    ([True, False], 2)
    """

    name: str
    fields: tuple[str, ...]
    candidates: np.ndarray

    def __len__(self) -> int:
        return len(self.candidates)

    @cached_property
    def choices(self) -> tuple[tuple[int, ...], ...]:
        """The values of each field."""
        return tuple(tuple(np.unique(column).tolist()) for column in self.candidates.T)

    @property
    def width(self) -> int:
        """The most choices that a field has."""
        return max(len(values) for values in self.choices)

    @cached_property
    def picks(self) -> np.ndarray:
        """The candidates as numbers of choices, [schedules, fields]."""
        columns = [np.searchsorted(values, column)
                   for values, column in zip(self.choices, self.candidates.T, strict=True)]
        return np.stack(columns, axis=1)

    @cached_property
    def tree(self) -> np.ndarray:
        """What follows a choice: [nodes, width], -1 where nothing legal does.

        Node 0 is the root. An entry is the node of the next field, and behind the last field the
        number of the candidate.
        """
        rows = [[-1] * self.width]
        last = len(self.fields) - 1
        for number, picks in enumerate(self.picks.tolist()):
            node = 0
            for depth, pick in enumerate(picks):
                if depth == last:
                    if rows[node][pick] >= 0:
                        raise InputError(f"space {self.name}: candidates {rows[node][pick]} and "
                                         f"{number} are the same schedule")
                    rows[node][pick] = number
                elif rows[node][pick] < 0:
                    rows[node][pick] = len(rows)
                    rows.append([-1] * self.width)
                node = rows[node][pick]
        return np.array(rows, np.int32)

    def mask(self, node: int | np.ndarray) -> np.ndarray:
        """Which choices are legal at a node or at many: [..., width] of bool."""
        return self.tree[node] >= 0

    def of_table(self, fields: Sequence[str], rows: np.ndarray) -> np.ndarray:
        """The number of the candidate that each row of a table is; columns in the order `fields`.

        Raises InputError for a row that is none.
        """
        places = {tuple(row): number for number, row in enumerate(self.candidates.tolist())}
        order = [list(fields).index(name) for name in self.fields]
        found = [places.get(tuple(row), -1) for row in rows[:, order].astype(int).tolist()]
        if min(found, default=0) < 0:
            raise InputError(f"space {self.name}: row {found.index(-1)} of the table is no legal "
                             f"schedule")
        return np.array(found)


@cache
def product_space() -> Space:
    """Schedules of a matrix product without matrix units: tiles, threads, vectors, staging.

    The rules are those of CLBlast's direct form (`xgemm`, KWG 32): every thread computes and copies
    whole vectors, a work-group has at most 1024 threads and 48 KiB of shared memory.

    >>> len(product_space())
    17956
    """
    legal = [values for values in product(*PRODUCT_CHOICES.values()) if _legal(*values)]
    return Space("product", tuple(PRODUCT_CHOICES), np.array(legal))


def _legal(tile_m: int, tile_n: int, threads_m: int, threads_n: int, copiers_m: int,
           copiers_n: int, vector_m: int, vector_n: int, staged_a: int, staged_b: int) -> bool:
    threads = threads_m * threads_n
    whole = (tile_m % (threads_m * vector_m), tile_n % (threads_n * vector_n),
             tile_m % (copiers_m * vector_m), tile_n % (copiers_n * vector_n),
             threads % copiers_m, threads % copiers_n)
    if any(whole) or threads > THREADS_MAX:
        return False
    if STEP % (threads // copiers_m) or STEP % (threads // copiers_n):
        return False
    return WORD * STEP * (staged_a * tile_m + staged_b * tile_n) <= SHARED_BYTES_MAX
