"""A whole picture by Stable Diffusion 1.5 against stable-diffusion.cpp, each a process of its own.

    pip install stable-diffusion-cpp-python        # here or in another environment: --python
    python bench/sd_cpp.py sd15.safetensors [--python PYTHON] [--threads 2] [--steps 4]
        [--size 512] [--json FILE]

Both are whole processes: they start, load the same file, make a picture by Euler's method and write
it. Ours runs three times: with an empty compile cache, then before and after theirs with what that
left, which is what counts, as the mean of the two.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from footprint import environment, generate_command
from report import finish

from smalti.benchmark.table import Row, duration

RATIO_MAX = 0.10
PROMPT = "a red apple on a wooden table, photograph"
SEED = 3
GUIDANCE = 7.0

THEIRS = """
import sys, time
import stable_diffusion_cpp
path, output, threads, steps, size, prompt, guidance, seed = sys.argv[1:]
model = stable_diffusion_cpp.StableDiffusion(
    model_path=path, n_threads=int(threads), vae_decode_only=True, verbose=False)
started = time.perf_counter()
(picture,) = model.generate_image(
    prompt=prompt, width=int(size), height=int(size), cfg_scale=float(guidance),
    sample_method="euler", scheduler="karras", sample_steps=int(steps), seed=int(seed))
print("made in", time.perf_counter() - started, "s")
picture.save(output)
"""


def whole(command: list[str], **options: object) -> tuple[float, str]:
    """Seconds of a process from start to end, and what it printed."""
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, **options)
    return time.perf_counter() - started, done.stdout


def working_seconds(told: str) -> float:
    """Seconds of a picture of ours without loading, of what `smalti generate` printed."""
    return sum(float(re.search(rf"{part} ([\d.]+) s", told)[1])
               for part in ("text", "denoise", "decode"))


def row(given: argparse.Namespace, folder: Path) -> Row:
    """Our time over theirs."""
    our_command = generate_command(
        PROMPT, "-o", str(folder / "ours.png"), "--model", str(given.checkpoint), "--steps",
        str(given.steps), "--size", str(given.size), "--sampler", "euler", "--seed", str(SEED),
        "--guidance", str(GUIDANCE), "--threads", str(given.threads))
    first, _ = whole(our_command, env=environment(folder / "cache"))
    runs = [whole(our_command, env=environment(folder / "cache"))]
    theirs, said = whole(
        [given.python, "-c", THEIRS, str(given.checkpoint), str(folder / "theirs.png"),
         str(given.threads), str(given.steps), str(given.size), PROMPT, str(GUIDANCE), str(SEED)])
    made = float(re.search(r"made in ([\d.]+) s", said)[1])
    runs.append(whole(our_command, env=environment(folder / "cache")))
    cached = statistics.mean(seconds for seconds, _ in runs)
    ready = statistics.mean(working_seconds(told) for _, told in runs)
    return Row(
        f"picture {given.size}x{given.size}, {given.steps} steps, against stable-diffusion.cpp",
        f"<= {RATIO_MAX:.2f}x",
        f"{cached / theirs:.3f}x: ours {duration(cached)} ({duration(ready)} without loading; "
        f"{duration(first)} the first time), theirs {duration(theirs)} ({duration(made)} without "
        f"loading)",
        cached / theirs <= RATIO_MAX)


def main() -> int:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--python", default=sys.executable,
                        help="an interpreter that has stable-diffusion-cpp-python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return finish([row(given, Path(folder))], given.json)


if __name__ == "__main__":
    raise SystemExit(main())
