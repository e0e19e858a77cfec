"""Calibrations of many computers: what was measured, and how far the timing model was off.

    print(report(measured(cluster, None, print)))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from smalti import settings
from smalti.benchmark import calibration
from smalti.benchmark.table import columns
from smalti.cluster.greeting import Greeter
from smalti.cluster.interface import Cluster, Told
from smalti.cluster.waiting import answers
from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.machine.cpu import CpuCalibration
from smalti.runtime.cache import code_digest
from smalti.runtime.container import replaced
from smalti.runtime.cpu.adapter import best_level
from smalti.runtime.cpu.model import calibration_path, modelled_code


@dataclass(frozen=True)
class Calibrated:
    """What was measured, and what people call the computer."""

    name: str
    found: CpuCalibration


class CalibrateWorker:
    """Measures the CPU that it is on."""

    def __init__(self, code: str) -> None:
        Greeter(code)

    def measure(self, threads: int) -> CpuCalibration:
        """What was measured, which is kept there."""
        return kept(threads, lambda text: None)


def kept(threads: int, progress: Callable[[str], None]) -> CpuCalibration:
    """Measure this CPU, and keep what was found: expected times are then those of this computer.
    Raises InputError where there is no code for it."""
    level = best_level()
    if level is None:
        raise InputError("only kernels can be timed, and there is no code for this CPU: it runs "
                         "the numpy reference")
    found = calibration.calibrated(level, settings.checked_threads(threads), progress)
    calibration_path().parent.mkdir(parents=True, exist_ok=True)
    with replaced(calibration_path()) as stream:
        stream.write(found.text().encode())
    return found


def measured(cluster: Cluster, threads: int | None, tell: Callable[[str], None],
             make: Callable[..., Any] = CalibrateWorker) -> list[Calibrated]:
    """The CPUs of all nodes of a cluster, each measured by itself, all at the same time. Nodes
    where that cannot be are told; raises InputError where it can be nowhere."""
    waiting = {}
    for node in cluster.nodes():
        worker = cluster.begin(node, node.cores, make, (code_digest(),))
        waiting[cluster.ask(worker, "measure", threads or node.cores)] = node, worker
    found, refused = [], []
    nodes = {ticket: node for ticket, (node, _) in waiting.items()}
    for ticket, answer in answers(cluster, nodes, tell):
        node, worker = waiting.pop(ticket)
        cluster.end(worker)
        if isinstance(answer, Told):
            found.append(Calibrated(node.name, answer.value))
            tell(f"{node.name} is measured, {len(waiting)} are left")
            continue
        refused.append(f"{node.name} is left out: {answer.why}")
        tell(f"{refused[-1]}\n")
    if not found:
        raise InputError("; ".join(refused) or "the cluster has no node that gives out cores")
    return found


def report(fleet: Sequence[Calibrated]) -> str:
    """A row for each computer, by their devices; then how far the model was off on all of them."""
    rows = [("device", "computer", "cores", "clock", "f32", "memory", "off before", "and now",
             "measured", "by")]
    for name, found in sorted(((each.name, each.found) for each in fleet),
                              key=lambda each: (each[1].device, each[0])):
        before, after = found.error
        rows.append((found.device, name, str(found.cores), f"{found.clock / 1e9:.2f} GHz",
                     f"{found.f32 / 1e9:.0f} GFLOP/s", f"{found.memory / 1e9:.1f} GB/s",
                     _share(before), _share(after), found.date,
                     "this code" if found.code == modelled_code() else "other code"))
    errors = [each.found.error for each in fleet]
    devices = {each.found.device for each in fleet}
    usual, fitted = (_span(each) for each in zip(*errors, strict=True))
    return (f"{columns(rows)}\n{len(fleet)} computers with {len(devices)} kinds of CPU; expected "
            f"times were off by {usual} with the usual constants, and are by {fitted} with those "
            f"that were found")


def _share(error: float) -> str:
    """A mean absolute logarithm as a share."""
    return f"{100 * (math.exp(error) - 1):.1f} %"


def _span(errors: Sequence[float]) -> str:
    """The least and the most."""
    least, most = _share(min(errors)), _share(max(errors))
    return least if least == most else f"{least} to {most}"
