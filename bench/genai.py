"""A whole picture by Stable Diffusion 1.5 against the pipeline of OpenVINO GenAI.

    pip install ".[peers]" openvino-genai nncf
    python bench/make_checkpoint.py sd15.safetensors
    python bench/genai.py sd15.safetensors --exports exports [--ours f32,bf16,int8]
        [--theirs halves,weights,bytes] [--threads 2] [--steps 4] [--size 512] [--rounds 3]

Both are whole processes: they start, load, make a picture by Euler's method and write it. Theirs
load files that were exported before, which stay in the folder of `--exports`, and what OpenVINO
compiled the first time, as ours load what was compiled from the cache: that first time does not
count. All take turns, and the median of each counts. Their forms are weights in f16 (`halves`),
weights in 8 bits (`weights`, what `optimum` exports by default), and besides products of bytes in
the UNet (`bytes`, NNCF's static quantisation); the fastest is the peer. They compute in what
OpenVINO chooses, bf16 where the CPU has it; beside our f32, in f32.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from footprint import environment, generate_command
from genai_export import FORMS, export
from report import finish
from sd_cpp import GUIDANCE, PROMPT, SEED, whole, working_seconds

from smalti.benchmark.table import Row, duration
from smalti.benchmark.turns import in_fresh_process

BOUNDS = {"f32": 0.9, "bf16": 0.9, "int8": 0.8}
"""Our time over that of their fastest form, by our precision: as asked of blocks of models."""
THEIRS = """
import json, sys, time
import openvino_genai
from PIL import Image
folder, output, threads, steps, size, prompt, guidance, seed, options = sys.argv[1:]
pipe = openvino_genai.Text2ImagePipeline(
    folder, "CPU", INFERENCE_NUM_THREADS=int(threads), PERFORMANCE_HINT="LATENCY",
    CACHE_DIR=folder + "/compiled", **json.loads(options))
started = time.perf_counter()
picture = pipe.generate(prompt, width=int(size), height=int(size), guidance_scale=float(guidance),
                        num_inference_steps=int(steps), rng_seed=int(seed))
print("made in", time.perf_counter() - started, "s")
Image.fromarray(picture.data[0]).save(output)
"""
Run = Callable[[], tuple[float, float]]
"""Makes a picture; seconds of the whole process, and of what it did once it had loaded."""


def ours(given: argparse.Namespace, folder: Path, precision: str) -> tuple[float, float]:
    """One picture of ours."""
    seconds, told = whole(generate_command(
        PROMPT, "-o", str(folder / f"ours-{precision}.png"), "--model", str(given.checkpoint),
        "--precision", precision, "--steps", str(given.steps), "--size", str(given.size),
        "--sampler", "euler", "--noise", "normal", "--seed", str(SEED), "--guidance",
        str(GUIDANCE), "--threads", str(given.threads)), env=environment(folder / "cache"))
    return seconds, working_seconds(told)


def theirs(given: argparse.Namespace, folder: Path, form: str, precision: str
           ) -> tuple[float, float]:
    """One picture of theirs, in a precision or, where it is empty, in what OpenVINO chooses."""
    options = {"INFERENCE_PRECISION_HINT": precision} if precision else {}
    seconds, told = whole([
        sys.executable, "-c", THEIRS, str(given.exports / form), str(folder / f"{form}.png"),
        str(given.threads), str(given.steps), str(given.size), PROMPT, str(GUIDANCE), str(SEED),
        json.dumps(options)])
    return seconds, float(re.search(r"made in ([\d.]+) s", told)[1])


def in_turns(runs: dict[str, Run], rounds: int) -> dict[str, tuple[float, float]]:
    """The medians of each, after a first run that does not count."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            seconds = run()
            print(f"{name}: {seconds[0]:.2f} s, {seconds[1]:.2f} s without loading"
                  + ("" if number else " (the first time)"), file=sys.stderr, flush=True)
            if number:
                found[name].append(seconds)
    return {name: tuple(map(statistics.median, zip(*each))) for name, each in found.items()}


def rows(given: argparse.Namespace, folder: Path) -> list[Row]:
    """A row for each precision of ours."""
    for form in given.theirs:
        if not (given.exports / form / "model_index.json").exists():
            in_fresh_process(export, given.checkpoint, given.exports / form, form)
    runs: dict[str, Run] = {f"Smalti {each}": functools.partial(ours, given, folder, each)
                            for each in given.ours}
    peers: dict[str, tuple[str, ...]] = {each: () for each in given.ours}
    for form in given.theirs:
        for precision in ("f32", ""):
            beside = [each for each in given.ours if (each == "f32") == (precision == "f32")]
            if beside and (precision == "" or form == "halves"):
                name = f"{form} {precision or 'as chosen'}"
                runs[name] = functools.partial(theirs, given, folder, form, precision)
                peers |= {each: (*peers[each], name) for each in beside}
    medians = in_turns(runs, given.rounds)
    return [_row(given, precision, medians, min(peers[precision], key=lambda name: medians[name]))
            for precision in given.ours if peers[precision]]


def _row(given: argparse.Namespace, precision: str, medians: dict[str, tuple[float, float]],
         peer: str) -> Row:
    here, there = medians[f"Smalti {precision}"], medians[peer]
    ratio, bound = here[0] / there[0], BOUNDS[precision]
    return Row(
        f"picture {given.size}x{given.size}, {given.steps} steps, {precision}, against {peer}",
        f"<= {bound:.2f}x",
        f"{ratio:.3f}x: ours {duration(here[0])} ({duration(here[1])} without loading), theirs "
        f"{duration(there[0])} ({duration(there[1])})", ratio <= bound)


def names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Reads names with commas between them; what is not known ends the program."""
    def read(text: str) -> list[str]:
        found = text.split(",")
        if not set(found) <= set(known):
            raise argparse.ArgumentTypeError(f"{text}: names of {', '.join(known)} are expected")
        return found
    return read


def main() -> int:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--exports", type=Path, required=True)
    parser.add_argument("--ours", type=names(tuple(BOUNDS)), default=[*BOUNDS])
    parser.add_argument("--theirs", type=names(FORMS), default=[*FORMS])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return finish(rows(given, Path(folder)), given.json)


if __name__ == "__main__":
    raise SystemExit(main())
