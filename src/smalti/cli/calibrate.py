"""`smalti calibrate`: measure this CPU, so that expected times are those of this very machine."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smalti.cli.generate import show_progress
from smalti.cli.interrupt import loading_modules
from smalti.errors import InputError

if TYPE_CHECKING:
    from smalti.machine.cpu import CpuCalibration


@click.command()
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--ray", "address", default=None, metavar="ADDRESS|auto",
              help="Measure the CPUs of all computers of a cluster of Ray that this one is part "
                   "of. Needs pip install 'smalti[ray]'.")
@click.option("--report", "files", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
              help="Measure nothing: compare what was measured on several computers, whose "
                   "calibration.json these are; may be given several times.")
def calibrate(threads: int | None, address: str | None, files: tuple[Path, ...]) -> None:
    """Measure this CPU, in less than ten seconds.

    Expected times, and what is chosen by them, are then those of this machine. Leave it idle
    meanwhile.
    """
    with loading_modules():
        from smalti import settings
        from smalti.benchmark import fleet
        from smalti.benchmark.table import columns
        from smalti.cluster.on_ray import joined
        from smalti.runtime.cpu.model import calibration_path
    if files and (address is not None or threads is not None):
        raise InputError("--report measures nothing; give it without --ray and --threads")
    if threads is not None:
        settings.checked_threads(threads)
    if files:
        click.echo(fleet.report([fleet.Calibrated(str(path), read(path)) for path in files]))
        return
    if address is not None:
        with closing(joined(address)) as cluster:
            found_there = fleet.measured(cluster, threads, show_progress)
        show_progress("")
        click.echo(fleet.report(found_there))
        return
    count = settings.threads() if threads is None else threads
    found = fleet.kept(count, show_progress)
    show_progress("")
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
    click.echo(f"kept in {calibration_path()}")


def read(path: Path) -> CpuCalibration:
    """What `smalti calibrate` kept on a computer. Raises InputError."""
    from smalti.machine.cpu import CpuCalibration

    try:
        return CpuCalibration.of(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give a "
                         f"calibration.json that `smalti calibrate` kept") from None
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
