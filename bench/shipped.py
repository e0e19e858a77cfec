"""Measure the model that ships with Smalti, and the installation.

    python bench/shipped.py [--threads 2] [--rows time,same,picture,install] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from footprint import environment, generate_command, install_row
from PIL import Image
from report import finish

from smalti.benchmark.table import Row, spread

ROWS = ("time", "same", "picture", "install")
PROMPT = "a red apple"
FIRST_SECONDS_MAX = 3
LATER_SECONDS_MAX = 1
"""Of two cores with AVX-512, at the model's default size and steps."""
LATER_RUNS = 5


def generate(folder: Path, threads: int, name: str = "apple.png") -> tuple[float, bytes]:
    """Seconds of the whole process and the picture's pixels; the cache is in `folder`."""
    path = folder / name
    command = generate_command(PROMPT, "-o", str(path), "--threads", str(threads))
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment(folder / "cache"))
    seconds = time.perf_counter() - started
    with Image.open(path) as image:
        return seconds, image.tobytes()


def time_rows(threads: int) -> list[Row]:
    """Default settings, whole process: with an empty cache, then with what that left."""
    with tempfile.TemporaryDirectory() as folder:
        first, *later = [generate(Path(folder), threads)[0] for _ in range(1 + LATER_RUNS)]
    return [Row.at_most("first run ever", FIRST_SECONDS_MAX, first, " s"),
            Row.at_most("later runs", LATER_SECONDS_MAX, statistics.median(later), " s",
                        spread(later))]


def same_row() -> Row:
    """The same seed on 1 thread and on 2, each twice."""
    with tempfile.TemporaryDirectory() as folder:
        pictures = [generate(Path(folder), threads, f"{threads}-{turn}.png")[1]
                    for turn in range(2) for threads in (1, 2)]
    different = sum(picture != pictures[0] for picture in pictures)
    return Row("same seed on 1 and 2 threads, twice", "identical bytes",
               f"{different} of {len(pictures)} pictures differ", different == 0)


def picture_rows(threads: int) -> list[Row]:
    """Whole pictures against diffusers; needs the peers."""
    from agreement import picture_row

    from smalti.diffusion.pipeline import SHIPPED_MODEL

    return [picture_row(SHIPPED_MODEL, noise, 5, threads) for noise in ("karras", "normal")]


def main() -> int:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=ROWS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    unknown = set(given.rows) - set(ROWS)
    if unknown:
        parser.error(f"unknown rows {sorted(unknown)}; known: {', '.join(ROWS)}")
    rows: list[Row] = []
    if "time" in given.rows:
        rows += time_rows(given.threads)
    if "same" in given.rows:
        rows.append(same_row())
    if "picture" in given.rows:
        rows += picture_rows(given.threads)
    if "install" in given.rows:
        rows.append(install_row())
    return finish(rows, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
