"""What the drivers of all architectures have in common: what a driver does, the slots of its frame,
and the numbers by which systems are asked to let threads sleep.

Each worker thread makes one native call a run, `driver(context, thread)`. It goes through the
launch table; for each launch, threads take tiles from a shared counter until there are none, or
until what is left is done sooner without them, then wait at a barrier:

    mine, all = PRIOR, PRIOR * threads
    for launch in launches[first:last]:
        while threads:
            taken = min(launch.counter.low, launch.tiles)
            left = launch.tiles - taken
            if this thread has done a tile of the launch
                    and (left or mine * (taken - tile) > all):
                mine += 1; all += taken - tile
                if mine >= WINDOW: mine /= 2; all /= 2
            if left == 0: break
            if threads > 1 and mine * (left + threads + 1) < all:
                if fetch_and_add(launch.counter.high, 1) + 1 < threads: break
            if (tile := fetch_and_add(launch.counter.low, 1)) >= launch.tiles: break
            launch.function(launch.pointers, tile, scratch + thread * scratch_bytes, thread)
        barrier: leave if it says stopped

    barrier:
        seen = generation
        if fetch_and_add(arrivals, 1) + 1 == threads:
            arrivals = 0; stopped = cancel; note the time; generation += 1
            if sleepers: wake all that wait for generation
        else:
            look `spins` times for generation != seen, then
            sleepers += 1; while generation == seen: wait for generation; sleepers -= 1

Cores need not be equally fast: there are cores for efficiency, and cores that other programs keep
busy. While a thread computes a tile, `taken - tile` are taken by all; if all were as fast, that
would be `threads`. (If there are none left then, more could have been: that counts only if it is
more than was expected.) So `all / mine` is the time that a tile takes this thread, in units of the
time in which all threads together do one, and a thread of average speed needs `threads` units. The
others need `left` for what is left, and then wait for this thread's tile, if that is the longest. A
thread does not take a tile which it would be done with later than the others with all that is left
and one more of their tiles: all / mine > left + threads + 1. The last thread never leaves, so that
every tile is computed, whatever the estimates are. (`bench/hybrid.py` has what this gains.)

No wake-up is lost: a thread counts itself as a sleeper before the system compares the generation
with what it saw, and the last to arrive moves the generation before it looks for sleepers; both
writes come before both reads (locked on x86, with full barriers between them on AArch64), so at
least one of the two sees the other. `stopped` is written before the generation moves, and not again
before all threads have read it. Whoever arrives last notes when: a thread that wakes up late has a
part in the next launch, not in this one.
"""

from __future__ import annotations

from smalti.errors import DeviceError

SYSTEMS = ("linux", "darwin", "win32")
"""The systems that drivers are made for, as `sys.platform` names them."""
SLOTS = ("context", "thread", "launch", "left", "scratch", "stamp", "seen", "tile", "mine", "all")
"""The slots of a driver's frame, 8 bytes each: what has to outlive a call."""
NO_TILE = -1
"""The number of the tile of a thread that has done none of a launch."""
STAMP_BYTES = 8
"""Bytes of a time stamp in the table of times."""

FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE = 128, 129
"""What the system call `futex` of Linux is asked to do, as linux/futex.h numbers it."""
ALL_SLEEPERS = 2**31 - 1
"""How many threads `futex` wakes at most: the largest number it takes."""
ULOCK_COMPARE_AND_WAIT, ULOCK_WAKE_ALL = 1, 0x100
"""What `__ulock_wait` and `__ulock_wake` of macOS are asked to do, as XNU's sys/ulock.h has it."""
FOREVER = 2**32 - 1
"""INFINITE of Windows: how long `WaitOnAddress` waits at most."""


def checked_system(system: str) -> str:
    """`system` itself. Raises DeviceError for one that no driver is made for."""
    if system not in SYSTEMS:
        raise DeviceError(f"programs cannot run on {system!r}; known: {', '.join(SYSTEMS)}")
    return system
