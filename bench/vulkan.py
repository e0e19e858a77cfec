"""What it costs the host to run a recorded program on a GPU."""

from __future__ import annotations

import statistics
import time

from smalti.runtime.gpu import Gpu, Recording

RUNS = 30


def submit_seconds(gpu: Gpu, recording: Recording, runs: int = RUNS) -> float:
    """The median time of the call that runs `recording` on a device that is idle."""
    taken = []
    for _ in range(runs):
        gpu.wait()
        started = time.perf_counter()
        gpu.run(recording)
        taken.append(time.perf_counter() - started)
    gpu.wait()
    return statistics.median(taken)
