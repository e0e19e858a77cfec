"""When a slow thread leaves a launch, by the pseudo code of `codegen/cpu/driver.py`."""

from __future__ import annotations

from smalti.codegen.cpu.layout import PRIOR, WINDOW

LAUNCHES = 30
"""How many are gone through: what is known of a thread's speed counts half in the meantime."""
SPEEDS = ((4, 3, 50), (4, 12, 45), (4, 40, 500), (8, 30, 100), (2, 9, 12), (16, 40, 60))
"""Threads, tiles that the others take in the time of one of the slow thread, tiles of a launch."""


def left_by_rule(threads: int, taken: int, tiles: int) -> list[int]:
    """How many tiles of each launch are taken when the slow thread leaves it, or when it finds that
    there are no more."""
    mine, every, ends = PRIOR, PRIOR * threads, []
    for _ in range(LAUNCHES):
        counter, tile = 0, None
        while True:
            here = min(counter, tiles)
            left = tiles - here
            if tile is not None and (left or mine * (here - tile) > every):
                mine, every = mine + 1, every + here - tile
                if mine >= WINDOW:
                    mine, every = mine // 2, every // 2
            if not left or mine * (left + threads + 1) < every:
                break
            tile, counter = counter, counter + 1 + taken
        ends.append(counter)
    return ends
