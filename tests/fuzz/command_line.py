"""What a script of hostile files is asked, and what it prints in the end."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence


def started(document: str, work: Callable[[int, int], object],
        supervise: Callable[[float, int], int]) -> int:
    """Read the command line; 1 when a case was bad.

    `work(seed, cases)` does some cases, in a child process; `supervise(minutes, seed)` starts such
    children and counts the bad cases. The first line of `document` says what it is.
    """
    parser = argparse.ArgumentParser(description=document.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.seed, given.worker)
        return 0
    return int(supervise(given.minutes, given.seed) > 0)


def report(counts: Mapping[Sequence[str], int], done: int, bad: Sequence[object]) -> int:
    """Print how many cases ended how; the number of bad ones."""
    print(f"{done} cases, {len(bad)} bad: {bad}")
    for words, count in sorted(counts.items()):
        print(f"{count:8d} {' '.join(words)}")
    return len(bad)
