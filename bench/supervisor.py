"""What the supervisor gains and costs: steps of the SD 1.5 UNet with it and without, in turns.

    python bench/supervisor.py --size 512x512 --rows 2 --pictures 2

The store is empty at first. Each step is run twice, watched and plain, the order changing, so that
what else the machine does hurts both. A row is a picture: seconds of its steps with the supervisor
over those without, the median of the ratios of its steps, in most of which nothing is tried, what
it says it lost itself, and candidates tried so far. Outputs are compared byte by byte. Weights are
random.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass

import numpy as np

from smalti.benchmark.weights import seeded
from smalti.models import SD15, unet_graph
from smalti.runtime import compile_graph
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.supervisor import Supervisor


@dataclass(frozen=True)
class Picture:
    """Seconds of the steps of a picture with the supervisor and without, the median of their
    ratios, seconds lost by trying, and candidates tried so far."""

    watched: float
    plain: float
    usual: float
    lost: float
    tried: int


def unet(size: str, rows: int, threads: int) -> tuple[NativeProgram, dict[str, np.ndarray]]:
    """The UNet for a size in pixels, with random weights, and inputs."""
    width, height = (int(side) // 8 for side in size.split("x"))
    graph = unet_graph(SD15.denoiser, rows, height, width)
    program = compile_graph(graph, threads=threads, held=("context",))
    shapes = {name: value.shape for name, value in graph.parameters.items()}
    program.bind(lambda name: seeded(name, shapes[name]))
    return program, {name: seeded(name, value.shape) for name, value in graph.inputs.items()}


def picture(watched: Supervisor, inputs: dict[str, np.ndarray], steps: int) -> Picture:
    """Run the steps of a picture, each watched and plain."""
    program, seconds = watched.program, {True: [], False: []}
    watched.begin()
    for step in range(steps):
        outputs = []
        inputs = {**inputs, "latent": np.roll(inputs["latent"], 1, -1)}
        for way in (True, False) if step % 2 else (False, True):
            started = time.perf_counter()
            run = watched.run_checked if way else program.run_checked
            outputs.append(run(inputs))
            seconds[way].append(time.perf_counter() - started)
        for name, array in outputs[0].items():
            if array.tobytes() != outputs[1][name].tobytes():
                raise SystemExit(f"{name} differs in step {step}")
    usual = float(np.median(np.divide(seconds[True], seconds[False])))
    return Picture(sum(seconds[True]), sum(seconds[False]), usual, watched.regret, watched.tried)


def main() -> None:
    """Print a row for each picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="512x512")
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds, for all pictures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SMALTI_CACHE"] = folder
        program, inputs = unet(given.size, given.rows, given.threads)
        program.run(inputs)
        watched, end = Supervisor(program), time.monotonic() + given.limit
        print("| picture | with / without | usual step | without, s/step | lost | tried | chosen |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for number in range(1, given.pictures + 1):
            if time.monotonic() > end:
                break
            row = picture(watched, inputs, given.steps)
            print(f"| {number} | {row.watched / row.plain:.3f} | {row.usual:.3f} | "
                  f"{row.plain / given.steps:.3f} | "
                  f"{row.lost / row.plain:.1%} | {row.tried} | {watched.chosen} |", flush=True)


if __name__ == "__main__":
    main()
