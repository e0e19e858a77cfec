"""Barriers stand where commands depend on each other, and nowhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from smalti.runtime.vulkan.hazards import PENDING_MAX, Hazards

RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(10, 12)).map(
    lambda found: (found[0], found[1], min(found[1] + found[2] - 8, 12))), max_size=2)


def depends(reads: list, writes: list, before: tuple[list, list]) -> bool:
    """Whether a command reads or writes a byte that one before it writes, or writes one that it
    reads."""
    def bytes_of(ranges: list) -> set:
        return {(buffer, byte) for buffer, begin, end in ranges for byte in range(begin, end)}

    read, written = bytes_of(before[0]), bytes_of(before[1])
    return bool(written & (bytes_of(reads) | bytes_of(writes)) or read & bytes_of(writes))


@given(st.lists(st.tuples(RANGES, RANGES), max_size=12))
def test_a_barrier_stands_exactly_where_one_is_needed(commands: list) -> None:
    hazards, since = Hazards(), []
    for reads, writes in commands:
        needed = any(depends(reads, writes, before) for before in since)
        assert hazards.add(reads, writes) == needed
        since = [*([] if needed else since), (reads, writes)]


def test_reading_twice_needs_no_barrier() -> None:
    hazards = Hazards()
    assert not any(hazards.add([(1, 0, 8)], [(2, i, i + 1)]) for i in range(PENDING_MAX))


def test_so_many_commands_side_by_side_are_enough() -> None:
    hazards = Hazards()
    found = [hazards.add([], [(2, i, i + 1)]) for i in range(2 * PENDING_MAX)]
    assert [i for i, barrier in enumerate(found) if barrier] == [PENDING_MAX]
