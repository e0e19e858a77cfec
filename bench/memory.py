"""Models larger than the memory that they may take: peak memory, beside what is foretold.

    python bench/make_checkpoint.py FOLDER --family sdxl          # or another
    python bench/memory.py FOLDER [--share 0.5 | --memory 8GB] [--size 512] [--steps 1]

FOLDER holds model.safetensors or model.gguf, and files of text encoders and of the autoencoder
where the family has them apart. What is given to `smalti generate --memory` is a share of the bytes
of all files, or a size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from footprint import environment, generate_command, peak_of
from report import finish

from smalti.benchmark.table import Row, duration
from smalti.diffusion.request import memory_bytes

TOLERANCE = 1.1
"""Peak of resident memory over what was given."""


def rows(given: argparse.Namespace) -> list[Row]:
    """Peak of a process that makes a picture, beside what it may be and what is foretold."""
    files = sorted(path for path in given.folder.iterdir()
                   if path.suffix in (".safetensors", ".gguf"))
    model = next(str(file) for file in files if file.stem == "model")
    whole = sum(file.stat().st_size for file in files)
    memory = int(given.share * whole) if given.memory is None else memory_bytes(given.memory)
    command = ["--steps", str(given.steps), "--size", str(given.size), "--threads",
               str(given.threads), "--memory", str(memory), "--device", "cpu"]
    for file in files:
        if file.stem == "vae":
            command += ["--vae", str(file)]
        elif file.stem != "model":
            command += ["--text-encoder", str(file)]
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        subprocess.run([sys.executable, "-m", "smalti", "inspect", model, *command, "--json", plan],
                       env=environment(Path(folder)), check=True)
        foretold = json.loads(plan.read_text())["peak_bytes"]
        started = time.perf_counter()
        peak = peak_of(generate_command("a red apple", "--model", model, *command, "-o",
                                        f"{folder}/apple.png"), environment(Path(folder)))
        seconds = time.perf_counter() - started
    title = f"{given.folder.name}, {whole / 1e9:.1f} GB of files, in {memory / 1e9:.1f} GB"
    return [Row.at_most(
        f"{title}: peak of resident memory", TOLERANCE * memory / 1e9, peak.resident / 1e9, " GB",
        f"a picture of {given.size}x{given.size}, steps: {given.steps}, took {duration(seconds)}"),
        Row.at_most(f"{title}: peak over what smalti inspect foretells", TOLERANCE,
                    peak.resident / foretold, "", f"foretold {foretold / 1e9:.1f} GB")]


def main() -> int:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--memory")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    return finish(rows(given), given.json)


if __name__ == "__main__":
    raise SystemExit(main())
