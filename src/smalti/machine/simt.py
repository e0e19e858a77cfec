"""Time of a matrix product on the vector units of a GPU (not on matrix units), for given schedules.

A work-group computes a tile of the result; each of its threads a block of the tile, in registers. A
and B are staged in shared memory, or read through the first-level cache. For each k a warp issues
its multiply-adds and loads; shared memory takes a clock for each part of a load that is free of
bank conflicts, the first-level cache time for each line and each 64 bytes. All of this overlaps,
within a warp and between the warps that are resident; if these are few, latency shows. Many
schedules are timed at once: every field is an array.

The constants are fitted to the exhaustively measured space of CLBlast's SGEMM on an RTX 2080 Ti
(Kernel Tuner's benchmark hub); `bench/machine.py --kinds schedules` says how well it ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from smalti.dataclass import dataclass
from smalti.machine.device import DeviceModel
from smalti.machine.family import waves

WARP = 32
"""Threads of a warp, which run in lockstep, on NVIDIA's GPUs."""
BANKS = 32
"""Banks of shared memory, each of which gives one word in a clock."""
ISSUED_PER_CLOCK = 4
"""Instructions that a multiprocessor issues in a clock, one for each of its schedulers."""
WORD = 4
"""Bytes of an f32."""
VECTOR_BYTES = 16
"""The most bytes that one load of a thread reads."""
LINE = 128
"""Bytes of a cache line."""
L1_BYTES_PER_CLOCK = 64
"""Bytes from the first-level cache in a clock: a guess, which the constant "l1" scales."""
THREAD_REGISTERS = 255
"""The most registers of a thread; more are spilled."""

CONSTANTS = {
    "wavefront": 1.64,   # clocks of shared memory for a conflict-free part of a load
    "l1": 0.66,          # clocks of the first cache over lines and 64 bytes that a load touches
    "line": 2.0,         # clocks of a line, in those of 64 bytes
    "issue": 1.56,       # slots of the schedulers for an instruction
    "other": 8.2,        # instructions of a step beside multiply-adds and loads
    "latency": 35.0,     # clocks until what was loaded from shared memory is there
    "latency_l1": 165.0,  # clocks until what was loaded through the first cache is there
    "barrier": 980.0,    # clocks to stage the next part of k
    "registers": 15.0,   # registers of a thread beside sums and operands
    "fma": 0.89,         # clocks of a multiply-add over the ideal
    "spill": 2.6,        # slowdown for every 64 registers too many
    "copy": 1.76,        # clocks of copies into shared memory over the ideal
    "depth": 5.9,        # multiply-adds that wait for each other
    "overlap": 1.9,      # exponent with which times that overlap are added: 1 not at all
}


@dataclass(frozen=True)
class Schedules:
    """Schedules of a product: each field is an array [schedules]; `step` is how much of k is staged
    at a time.

    `tile_*` are rows and columns of a work-group, `threads_*` its threads along them, `vector_*`
    words of a load, `staged_*` 1 where the operand goes through shared memory.
    """

    tile_m: np.ndarray
    tile_n: np.ndarray
    threads_m: np.ndarray
    threads_n: np.ndarray
    vector_m: np.ndarray
    vector_n: np.ndarray
    staged_a: np.ndarray
    staged_b: np.ndarray
    step: int = 32


@lru_cache(maxsize=4096)
def wavefronts(lanes: int, stride: int, vector: int) -> int:
    """Clocks that shared memory takes for a load of a warp, because of bank conflicts.

    `lanes` lanes read `vector` words each, at addresses `stride` words apart; other lanes read the
    same addresses.

    >>> wavefronts(32, 1, 1), wavefronts(32, 32, 1), wavefronts(1, 8, 4)
    (1, 32, 1)
    """
    at_once, total = max(1, BANKS // vector), 0
    for first in range(0, lanes, at_once):
        words = {lane * stride + j for lane in range(first, min(lanes, first + at_once))
                 for j in range(vector)}
        total += int(np.bincount([word % BANKS for word in words]).max())
    return total


def _operand(c: Mapping[str, float], lanes: np.ndarray, block: np.ndarray, vector: np.ndarray,
             staged: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loads of a warp for its blocks of an operand for one k, and the clocks they take."""
    vector = np.minimum(vector, VECTOR_BYTES // WORD)
    loads = block / vector
    shared = np.array([max(1, wavefronts(int(a), int(b), int(v)))
                       for a, b, v in zip(lanes, block, vector)])
    lines = np.clip(np.ceil(lanes * block * WORD / LINE), 1, lanes)
    cached = c["l1"] * (c["line"] * lines + lanes * vector * WORD / L1_BYTES_PER_CLOCK)
    return loads, loads * np.where(staged > 0, c["wavefront"] * shared, cached)


def _copies(tile: np.ndarray, vector: np.ndarray, staged: np.ndarray,
            warps: np.ndarray) -> np.ndarray:
    """Clocks of a warp for copying its share of an operand into shared memory, for one k."""
    vector = np.minimum(vector, VECTOR_BYTES // WORD)
    return staged * tile / WARP / vector * (1 + vector) / warps


def seconds(device: DeviceModel, given: Schedules, m: int, n: int, k: int,
            constants: Mapping[str, float] = CONSTANTS) -> np.ndarray:
    """Seconds of a [m, k] times [k, n] product in f32 by each schedule: [schedules]; infinite if a
    work-group does not fit into a unit."""
    c, s = constants, given
    threads = s.threads_m * s.threads_n
    warps = np.maximum(threads / WARP, 1)
    rows, columns = s.tile_m / s.threads_m, s.tile_n / s.threads_n
    along_m = np.minimum(WARP, s.threads_m)
    loads_a, clocks_a = _operand(c, along_m, rows, s.vector_m, s.staged_a)
    loads_b, clocks_b = _operand(c, np.maximum(1, WARP / s.threads_m), columns, s.vector_n,
                                 s.staged_b)

    lanes = device.rate("f32") / 2 / device.clock / device.units
    products = rows * columns * WARP / lanes * c["fma"]
    issue = c["issue"] * (rows * columns + loads_a + loads_b + c["other"]) / ISSUED_PER_CLOCK
    copies = c["copy"] * (_copies(s.tile_m, s.vector_m, s.staged_a, warps)
                          + _copies(s.tile_n, s.vector_n, s.staged_b, warps))

    def together(*times: np.ndarray) -> np.ndarray:
        return sum(time ** c["overlap"] for time in times) ** (1 / c["overlap"])

    step = together(products, issue, clocks_a + clocks_b + copies)
    staged = s.staged_a + s.staged_b
    latency = (staged * c["latency"] + (2 - staged) * c["latency_l1"]) / 2
    alone = (latency + products * lanes / WARP * c["depth"] / ISSUED_PER_CLOCK
             + (staged > 0) * c["barrier"] / s.step)

    needed = rows * columns + rows + columns + c["registers"]
    resident = _resident(device, given, threads, np.minimum(needed, THREAD_REGISTERS))
    held = np.maximum(resident, 1)
    groups = np.ceil(m / s.tile_m) * np.ceil(n / s.tile_n)
    full, rest = waves(groups, device.units, held)
    clocks = k * (full * together(held * warps * step, alone)
                  + np.where(rest > 0, together(rest * warps * step, alone), 0))
    traffic = WORD * float(m) * n * k * (1 / s.tile_m + 1 / s.tile_n)
    found = together(clocks / device.clock, traffic / device.caches[0].bandwidth)
    spilled = np.maximum(0, needed - THREAD_REGISTERS) / 64
    return np.where(resident >= 1, found * (1 + c["spill"] * spilled) + device.launch, np.inf)


def _resident(device: DeviceModel, given: Schedules, threads: np.ndarray,
              registers: np.ndarray) -> np.ndarray:
    """How many work-groups a unit holds at a time: [schedules]; 0 if it has no room for one."""
    s = given
    shared = WORD * s.step * (s.staged_a * s.tile_m + s.staged_b * s.tile_n)
    allotted = WORD * 8 * np.ceil(registers / 8) * threads
    return np.floor(np.minimum.reduce([
        device.registers / allotted, device.threads / threads,
        np.full(len(threads), float(device.blocks)),
        device.shared / np.maximum(shared, 1)]))
