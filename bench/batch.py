#!/usr/bin/env python3
"""`smalti batch`: workers of one thread against one process with all, and runs that are killed.

Pictures of the shipped model, the same in each way, in turns; then a run that is killed with
SIGKILL at random moments until it ends, of which no picture may be made twice, missing or half.

    PYTHONPATH=src python bench/batch.py                          # 500 pictures, 10 kills
    PYTHONPATH=src python bench/batch.py --pictures 40 --kills 3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

JOURNAL = Path(".smalti-batch") / "journal.jsonl"


def command(table: Path, out: Path, workers: int, threads: int) -> list[str]:
    """What makes the table."""
    return [sys.executable, "-m", "smalti", "batch", str(table), "-o", str(out), "--device", "cpu",
            "--workers", str(workers), "--threads", str(threads)]


def seconds(table: Path, out: Path, workers: int, threads: int) -> float:
    """How long a run takes, from start to end."""
    started = time.perf_counter()
    subprocess.run(command(table, out, workers, threads), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def pictures(out: Path) -> dict[str, bytes]:
    """Pictures by their files."""
    return {path.name: path.read_bytes() for path in out.glob("*.png")
            if not path.name.startswith("contact")}


def killed(table: Path, out: Path, workers: int, threads: int, kills: int, whole: float) -> str:
    """A run that is killed so often, at moments drawn from the time of a whole one; what was found.
    """
    random_ = random.Random(0)
    done = 0
    while True:
        process = subprocess.Popen(command(table, out, workers, threads),
                                   stdout=subprocess.DEVNULL)
        try:
            process.wait(None if done == kills else random_.uniform(.2, .5) * whole)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            done += 1
            continue
        break
    noted = [json.loads(line)["digest"] for line in (out / JOURNAL).read_text().splitlines()]
    for path in out.glob("*.png"):
        Image.open(path).load()
    return (f"{done} kills: {len(pictures(out))} pictures, all whole; noted as made "
            f"{len(noted)} times, {len(noted) - len(set(noted))} of them twice; "
            f"{len([*out.glob('*.part')])} half files")


def main() -> int:
    """Compare, and say what was found; 1 where pictures are missing, or differ after kills."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        table = folder / "table.jsonl"
        table.write_text(json.dumps({"prompt": "a red apple", "steps": asked.steps,
                                     "seed*": f"1..{asked.pictures}"}))
        for workers in (1, asked.threads):  # compiles
            few = folder / "few.jsonl"
            few.write_text(json.dumps({"prompt": "a red apple", "steps": 1}))
            seconds(few, folder / f"first-{workers}", workers, asked.threads)
        times = {workers: seconds(table, folder / f"{workers}", workers, asked.threads)
                 for workers in (1, asked.threads)}
        for workers, took in times.items():
            print(f"{workers} workers of {asked.threads // workers} threads: {took:.1f} s, "
                  f"{took / asked.pictures * 1e3:.0f} ms a picture", flush=True)
        whole = pictures(folder / f"{asked.threads}")
        same = whole.keys() == pictures(folder / "1").keys()
        print(f"the same bytes: {whole == pictures(folder / '1')}")
        if asked.kills:
            print(killed(table, folder / "killed", asked.threads, asked.threads, asked.kills,
                         min(times.values())))
            same = same and pictures(folder / "killed") == whole
            print(f"the same bytes as without: {same}")
    return not same


if __name__ == "__main__":
    sys.exit(main())
