#!/usr/bin/env python3
"""`smalti batch --ray` on two nodes of this computer, against as many workers without Ray.

Pictures of the shipped model, the same in both ways, in turns; then with Ray again, while a node is
killed twice and another one comes for it. Every picture has to be there once, with the same bytes.
Ray's own processes share the cores of both nodes with their workers, as on a user's: among them the
reader of logs, one for each computer. Only the dashboard, of which a cluster has one, is left out.

    PYTHONPATH=src python bench/cluster.py                     # 500 pictures
    PYTHONPATH=src python bench/cluster.py --pictures 40 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from batch import JOURNAL, pictures
from ray.cluster_utils import Cluster

NODES = 2
STORE_BYTES = 200 << 20
POLL_SECONDS = 0.2


def node(cluster: Cluster) -> Any:
    """One more node, of one core."""
    return cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)


def command(table: Path, out: Path, *more: str) -> list[str]:
    """What makes the table."""
    return [sys.executable, "-m", "smalti", "batch", str(table), "-o", str(out), "--device", "cpu",
            *more]


def told_seconds(asked: list[str]) -> tuple[float, float]:
    """How long a run takes, from start to end, and as it says, without loading Python's modules."""
    started = time.perf_counter()
    told = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout
    return time.perf_counter() - started, float(told.split(", ")[-1].split()[0])


def busy(out: Path, seconds: float) -> float:
    """The share of its workers' time that a run spent on pictures; the rest is begun and waited."""
    noted = (out / JOURNAL).read_text().splitlines()
    return sum(json.loads(line)["seconds"] for line in noted) / (NODES * seconds)


def killed(cluster: Cluster, asked: list[str], out: Path, count: int) -> str:
    """A run with Ray, of which a node is killed when a third is made, and when two thirds are."""
    process = subprocess.Popen(asked, stdout=subprocess.DEVNULL)
    kills = 0
    while process.poll() is None:
        made = len([*out.glob("*.png")]) if out.exists() else 0
        if kills < 2 and made > (kills + 1) * count / 3:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            kills += 1
            node(cluster)
        time.sleep(POLL_SECONDS)
    noted = [json.loads(line)["digest"] for line in (out / JOURNAL).read_text().splitlines()]
    return (f"{kills} kills, exit code {process.returncode}: {len(pictures(out))} pictures, "
            f"{len(noted) - len(set(noted))} of them written twice")


def main() -> int:
    """Compare, and say what was found; 1 where pictures are missing, or differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["SMALTI_CACHE"] = str(folder / "cache")
        table = folder / "table.jsonl"
        table.write_text(json.dumps({"prompt": "a red apple", "steps": asked.steps,
                                     "seed*": f"1..{asked.pictures}"}))
        few = folder / "few.jsonl"
        few.write_text(json.dumps({"prompt": "a red apple", "steps": 1}))
        subprocess.run(command(few, folder / "first", "--threads", "1"), check=True,
                       stdout=subprocess.DEVNULL)  # compiles
        cluster = Cluster(initialize_head=True, head_node_args={
            "num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES})
        node(cluster)
        ways = {"local": ["--workers", str(NODES), "--threads", str(NODES)],
                "ray": ["--ray", cluster.address]}
        best: dict[str, tuple[float, float]] = {}
        for number in range(asked.rounds):
            for way, more in [*ways.items()][::-1 if number % 2 else 1]:
                out = folder / f"{way}-{number}"
                took = told_seconds(command(table, out, *more))
                best[way] = min(took, best.get(way, took))
                idle = (1 - busy(out, took[1])) * took[1]
                print(f"{way}: {took[0]:.1f} s, {took[1]:.1f} s of them at work, of which each "
                      f"worker did nothing for {idle:.1f} s", flush=True)
        share = best["ray"][0] / best["local"][0] - 1
        print(f"{asked.pictures} pictures, the best of {asked.rounds}: with Ray {share:+.1%}")
        whole = pictures(folder / "local-0")
        same = whole == pictures(folder / "ray-0")
        print(f"the same bytes: {same}")
        out = folder / "killed"
        print(killed(cluster, command(table, out, *ways["ray"]), out, asked.pictures))
        again = pictures(out) == whole
        print(f"the same bytes: {again}")
        cluster.shutdown()
    return not (same and again and len(whole) == asked.pictures)


if __name__ == "__main__":
    sys.exit(main())
