"""What was measured, for machines and for a README: JSON, and the chart's groups."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from smalti import __version__
from smalti.benchmark.chart import Drawing, Group, chart
from smalti.benchmark.comparison import Measured
from smalti.benchmark.engines import ENGINES
from smalti.runtime.choice import described
from smalti.runtime.cpu.adapter import cpu
from smalti.runtime.drivers import driver_of

VERSIONS = ("numpy", "torch", "diffusers", "transformers", "onnxruntime", "openvino")


def document(results: Sequence[Measured], threads: int, rounds: int,
             ran_on: str = "cpu") -> dict[str, Any]:
    """Machine, versions, every turn's seconds, agreement, and the rows of the table."""
    device = cpu()
    return {
        "machine": {"cpu": device.name, "cores": device.cores, "features": list(device.features),
                    "memory_bytes": device.memory_bytes, "system": platform.platform(),
                    "device": ran_on, "name": described(ran_on).name},
        "versions": versions(), "threads": threads, "rounds": rounds,
        "results": [{
            "model": result.case.name, "title": result.case.title, "precision": result.precision,
            "target": result.target,
            "bound": result.bound,
            "alone_seconds": result.alone,
            "agreement": asdict(result.agreement) if result.agreement else None,
            "best_peer": result.best.peer if result.best else None,
            "ratio": result.best.ratio if result.best else None,
            "duels": [{"peer": duel.peer, "our_seconds": duel.ours, "their_seconds": duel.theirs,
                       "ratio": duel.ratio, "agreement": asdict(duel.agreement),
                       "note": duel.note} for duel in result.duels],
            "row": asdict(result.row()),
        } for result in results],
    }


def versions() -> dict[str, str]:
    """Of Smalti, Python and the libraries that are installed."""
    found = {"smalti": __version__, "python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def drawing(results: Sequence[Measured], threads: int, ran_on: str = "cpu") -> Drawing:
    """The chart of median times."""
    machine = described(ran_on).name
    if not driver_of(ran_on).of_gpus:
        machine += f", {threads} thread{'s' if threads > 1 else ''}"
    groups = []
    for result in results:
        title = result.case.title + ("" if result.arithmetic == "f32" else f", {result.arithmetic}")
        bars = [(ENGINES["smalti"].title, result.ours)]
        bars += [(ENGINES[duel.peer].title, duel.median) for duel in result.duels]
        groups.append(Group(title, tuple(bars)))
    return chart(groups, "Time of one run, shorter is better",
                 f"{machine}; medians; each group has a scale of its own")
