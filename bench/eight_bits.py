"""What `--precision int8` gains, and how far its results are from f32: models of `smalti bench`.

    python bench/eight_bits.py                                  # on the best level of this CPU
    python bench/eight_bits.py --models unet --rounds 5
    python bench/eight_bits.py --target avx2 --models flux_block
    python bench/eight_bits.py --peers openvino,onnxruntime
    python bench/eight_bits.py --models flux_block --weights q8,q4_min     # as of GGUF files

Programs run in turns on one thread, and the median of its processor time counts, so that other work
on the machine matters little. Weights are seeded, and so are inputs. Of OpenVINO the fastest way
counts (see `smalti.benchmark.eight_bit_peers`). With `--weights` int8 is also measured with weights
in blocks, beside bf16 with the same ones. Layers that do not stand 8 bits are found as for a
picture, from what they read in one run; `--error` is what they may be off by, 1 for all of them.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import click
import numpy as np

from smalti.benchmark.eight_bit_peers import onnxruntime_dynamic, openvino_ways
from smalti.benchmark.engines import Job, export
from smalti.benchmark.suite import CASES
from smalti.benchmark.table import Row, show
from smalti.benchmark.turns import in_fresh_process
from smalti.compiler.options import ALL_ROUNDED
from smalti.compiler.targets import TARGETS
from smalti.diffusion import rounding
from smalti.diffusion.influence import influence
from smalti.graph.quantised import FORMATS, quantised
from smalti.rewrite.rounding import candidates
from smalti.runtime import Program, compile_graph
from smalti.runtime.cpu.adapter import best_level

BOUNDS = {"clip_l": 0.6, "flux_block": 0.6, "z_image_block": 0.6, "unet": 0.82, "unet_1": 0.82}
"""The most that int8 may take of the time of bf16, by model."""
BOUNDS_OF_F32 = {("flux_block", "avx2"): 0.6, ("flux_block", "avx2_vnni"): 0.4,
                 ("unet", "avx2"): 0.85, ("unet", "avx2_vnni"): 0.75}
"""The same of f32, by model and feature level."""
BOUND_OF_PEERS = 0.8
"""The same of OpenVINO and ONNX Runtime in integers."""
ERROR_MAX = 0.02
"""How far a result may be from that of f32, in the Euclidean norm."""


def program(name: str, target: str | None, precision: str, weights: str = "",
            kept: Mapping[str, str] = ALL_ROUNDED) -> Program:
    """A program of a model, with its weights bound; matrices that have whole groups in the format
    `weights`."""
    case = CASES[name]
    graph, read = case.graph(), case.read()
    blocks = {key: weights for key, value in graph.parameters.items() if weights
              and len(value.shape) == 2 and value.shape[1] % FORMATS[weights].group == 0}
    found = compile_graph(graph, precision=precision, threads=1, held=case.held, target=target,
                          weights=blocks, kept=kept)
    found.bind(lambda key: quantised(read(key), weights) if key in blocks else read(key))
    return found


def imprecise(name: str, target: str | None, error: float) -> dict[str, str]:
    """The layers of a model that are off by more than `error` in 8 bits, and what they have
    instead."""
    case, level = CASES[name], TARGETS[target or best_level() or "avx2"]
    graph, read = case.graph(), case.read()
    chosen = candidates(graph, level.multiplies_bytes)
    before = len(graph.nodes)
    known = influence(graph) if level.pairs_of_bytes else None
    taps = rounding.tapped(graph, level.multiplies_bytes)
    rounding.at_once(graph, len(graph.nodes) - before)
    plain = compile_graph(graph, threads=1, target=target)
    plain.bind(read)
    outputs = plain.run(case.inputs())
    reached = known.of(outputs) if known is not None else rounding.NOTHING
    return rounding.too_imprecise(taps, outputs, read, lambda name: None,
                                  paired=level.pairs_of_bytes, words=rounding.words_help(level),
                                  error_max=error, reached=reached, chosen=chosen)


def off(found: list[np.ndarray], truth: list[np.ndarray]) -> float:
    """The relative distance of the worst output."""
    return max(float(np.linalg.norm(one - values) / np.linalg.norm(values))
               for one, values in zip(found, truth, strict=True))


def runs_of(name: str, target: str | None, precisions: tuple[str, ...], peers: tuple[str, ...],
            weights: tuple[str, ...], kept: Mapping[str, str], folder: Path
            ) -> dict[str, Callable[[], list[np.ndarray]]]:
    """What computes a model once, by what is said of it."""
    inputs = CASES[name].inputs()

    def ours(precision: str, form: str = "") -> Callable[[], list[np.ndarray]]:
        ready = program(name, target, precision, form, kept if precision == "int8" else {})
        return lambda: list(ready.run(inputs).values())

    job = Job(CASES[name], "f32", 1, folder)
    if peers:
        in_fresh_process(export, job)  # so that what PyTorch holds is given back
    found = {precision: ours(precision) for precision in precisions}
    for form in weights:
        found |= {f"{precision} of {form}": ours(precision, form) for precision in precisions}
    if peers:
        if "openvino" in peers:
            products = not any(node.operation.name == "conv" for node in job.case.graph().nodes)
            found |= {f"OpenVINO {way}": run
                      for way, run in openvino_ways(job, dynamic=products).items()}
        if "onnxruntime" in peers:
            found["ONNX Runtime dynamic"] = onnxruntime_dynamic(job)
    return found


def in_turns(runs: dict[str, Callable[[], list[np.ndarray]]], rounds: int
             ) -> tuple[dict[str, float], dict[str, list[np.ndarray]]]:
    """The median of the seconds of a processor that each takes, and its outputs."""
    took: dict[str, list[float]] = {key: [] for key in runs}
    results = {}
    for _ in range(rounds):
        for key, run in runs.items():
            started = time.process_time()
            results[key] = run()
            took[key].append(time.process_time() - started)
    return {key: median(times) for key, times in took.items()}, results


def measured(name: str, target: str | None, rounds: int, peers: tuple[str, ...],
             weights: tuple[str, ...], error: float) -> list[Row]:
    """The rows of a model, whose layers may be off by `error`."""
    level = target or best_level() or ""
    precisions = ("f32", "bf16", "int8") if level.endswith("_bf16") else ("f32", "int8")
    kept = imprecise(name, target, error) if error < 1 else {}
    with tempfile.TemporaryDirectory() as folder:
        seconds, results = in_turns(
            runs_of(name, target, precisions, peers, weights, kept, Path(folder)), rounds)
    rows = []

    def over(one: str, other: str, bound: float) -> None:
        rows.append(Row.at_most(f"{name}, {level}: {one} over {other}", bound,
                                seconds[one] / seconds[other], "",
                                f"{seconds[one]:.3f} and {seconds[other]:.3f} s"))

    for beside in (each for each in precisions if each != "int8"):
        bound = BOUNDS_OF_F32.get((name, level), 1.0)
        over("int8", beside, BOUNDS.get(name, 1.0) if beside == "bf16" else bound)
        for form in weights:
            over(f"int8 of {form}", f"{beside} of {form}", 1.0)
    for engine in ("OpenVINO", "ONNX Runtime"):
        ways = [key for key in seconds if key.startswith(engine)]
        if ways:
            over("int8", min(ways, key=seconds.__getitem__), BOUND_OF_PEERS)
    for key in seconds:
        form = key.split(" of ")[-1]
        truth = f"f32 of {form}" if form in weights else "f32"
        if key != truth:
            rows.append(Row.at_most(f"{name}, {level}: {key} off f32", ERROR_MAX,
                                    off(results[key], results[truth]), "",
                                    f"{seconds[key]:.3f} s"))
    print(f"{name}, {level}: layers that do not stand 8 bits: {dict(Counter(kept.values()))}")
    return rows


def listed(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """The words of an option, with commas."""
    return tuple(filter(None, value.split(",")))


@click.command()
@click.option("--models", default="clip_l,flux_block,z_image_block,unet", show_default=True,
              callback=listed, help="Models of `smalti bench`, with commas.")
@click.option("--target", default=None, help="A feature level. Default: the best of this CPU.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each program.")
@click.option("--peers", default="", callback=listed,
              help="Others in integers: openvino, onnxruntime.")
@click.option("--weights", default="", callback=listed,
              help="Formats of quantised weights, such as q8 and q4_min.")
@click.option("--error", default=rounding.ERROR_MAX, show_default=True,
              help="What a layer in 8 bits may be off by.")
def main(models: tuple[str, ...], target: str | None, rounds: int, peers: tuple[str, ...],
         weights: tuple[str, ...], error: float) -> None:
    """Integers of 8 bits beside bf16 and f32."""
    print(show([row for name in models
                for row in measured(name, target, rounds, peers, weights, error)]))


if __name__ == "__main__":
    main()
