"""`smalti calibrate`: measure this CPU, so that expected times are those of this very machine."""

from __future__ import annotations

import math

import click

from smalti.cli.generate import show_progress
from smalti.cli.interrupt import ending_at_once
from smalti.cli.output import replace_file
from smalti.errors import InputError


@click.command()
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
def calibrate(threads: int | None) -> None:
    """Measure this CPU, in less than ten seconds.

    Expected times, and what is chosen by them, are then those of this machine. Leave it idle
    meanwhile.
    """
    with ending_at_once():
        from smalti import settings
        from smalti.benchmark import calibration
        from smalti.benchmark.table import columns
        from smalti.runtime.cpu.adapter import best_level
        from smalti.runtime.cpu.model import calibration_path
    count = settings.threads() if threads is None else settings.checked_threads(threads)
    level = best_level()
    if level is None:
        raise InputError("only kernels can be timed, and there is no code for this CPU: it runs "
                         "the numpy reference")
    found = calibration.calibrated(level, count, show_progress)
    show_progress("")
    path = calibration_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, found.text().encode())
    rates = [("clock of a core", f"{found.clock / 1e9:.2f} GHz"),
             ("multiply-adds, f32", f"{found.f32 / 1e9:.0f} GFLOP/s")]
    if found.bf16:
        rates.append(("multiply-adds, bf16", f"{found.bf16 / 1e9:.0f} GFLOP/s"))
    for name in ("l2", "l3", "memory"):
        rates.append((f"read from {name}", f"{getattr(found, name) / 1e9:.1f} GB/s"))
    rates.append(("read from memory by one core", f"{found.reach / 1e9:.1f} GB/s"))
    for name, seconds in found.latency.items():
        rates.append((f"latency of {name}", f"{1e9 * seconds:.1f} ns"))
    rates.append(("barrier", f"{1e6 * found.launch:.2f} us"))
    before, after = (f"{100 * (math.exp(error) - 1):.1f} %" for error in found.error)
    rates += [("expected times are off by, before", before), ("and now", after)]
    click.echo(f"{found.device}, {count} threads, {found.date}")
    click.echo(columns([("what", "measured"), *rates]))
    click.echo(f"kept in {path}")
