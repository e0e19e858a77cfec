"""What `--precision int8` gains, and how far its results are from f32: models of `smalti bench`.

    python bench/eight_bits.py                                  # on the best level of this CPU
    python bench/eight_bits.py --models unet --rounds 5
    python bench/eight_bits.py --target avx2 --models flux_block

Programs run in turns on one thread, and the median of its processor time counts, so that other work
on the machine matters little. Weights are seeded, and so are inputs.
"""

from __future__ import annotations

import time
from statistics import median

import click
import numpy as np

from smalti.benchmark.suite import CASES
from smalti.benchmark.table import Row, show
from smalti.runtime import Program, compile_graph
from smalti.runtime.cpu.adapter import best_level

BOUNDS = {"clip_l": 0.6, "flux_block": 0.6, "z_image_block": 0.6, "unet": 0.82, "unet_1": 0.82}
"""The most that int8 may take of the time of bf16, by model."""
BOUNDS_OF_F32 = {("flux_block", "avx2"): 0.6, ("flux_block", "avx2_vnni"): 0.4,
                 ("unet", "avx2"): 0.85, ("unet", "avx2_vnni"): 0.75}
"""The same of f32, by model and feature level."""
ERROR_MAX = 0.02
"""How far a result may be from that of f32, in the Euclidean norm."""


def programs(name: str, target: str | None, precisions: tuple[str, ...]) -> dict[str, Program]:
    """Programs of a model, by precision, with its weights bound."""
    case, found = CASES[name], {}
    for precision in precisions:
        found[precision] = compile_graph(case.graph(), precision=precision, threads=1,
                                         held=case.held, target=target)
        found[precision].bind(case.read())
    return found


def off(found: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> float:
    """The relative distance of the worst output."""
    return max(float(np.linalg.norm(found[name] - values) / np.linalg.norm(values))
               for name, values in truth.items())


def measured(name: str, target: str | None, rounds: int) -> list[Row]:
    """The rows of a model."""
    level = target or best_level() or ""
    pairs = level.endswith("_bf16")
    runs = programs(name, target, ("f32", "bf16", "int8") if pairs else ("f32", "int8"))
    inputs = CASES[name].inputs()
    took: dict[str, list[float]] = {precision: [] for precision in runs}
    results = {}
    for _ in range(rounds):
        for precision, program in runs.items():
            started = time.process_time()
            results[precision] = program.run(inputs)
            took[precision].append(time.process_time() - started)
    seconds = {precision: median(times) for precision, times in took.items()}
    rows = []
    for beside in seconds:
        if beside != "int8":
            bound = (BOUNDS if beside == "bf16" else {}).get(name, 1.0)
            if beside == "f32":
                bound = BOUNDS_OF_F32.get((name, level), bound)
            rows.append(Row.at_most(f"{name}, {level}: int8 over {beside}", bound,
                                    seconds["int8"] / seconds[beside], "",
                                    f"{seconds['int8']:.3f} and {seconds[beside]:.3f} s"))
        if beside != "f32":
            rows.append(Row.at_most(f"{name}, {level}: {beside} off f32", ERROR_MAX,
                                    off(results[beside], results["f32"])))
    return rows


@click.command()
@click.option("--models", default="clip_l,flux_block,z_image_block,unet", show_default=True,
              help="Models of `smalti bench`, with commas.")
@click.option("--target", default=None, help="A feature level. Default: the best of this CPU.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each program.")
def main(models: str, target: str | None, rounds: int) -> None:
    """Integers of 8 bits beside bf16 and f32."""
    print(show([row for name in models.split(",") for row in measured(name, target, rounds)]))


if __name__ == "__main__":
    main()
