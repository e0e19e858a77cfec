"""`smalti batch`: a table of records becomes a folder of pictures."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from smalti import settings
from smalti.cli.generate import adapters, show_progress
from smalti.cli.interrupt import loading_modules
from smalti.cli.loading_options import compute_options, model_options
from smalti.cli.picture_options import PictureCommand, asked_for
from smalti.errors import InputError

if TYPE_CHECKING:
    from smalti.batch.folder import BatchFolder, BatchOutcome
    from smalti.batch.records import BatchRecord
    from smalti.cluster.on_ray import RayCluster

    Make: TypeAlias = Callable[[Sequence[BatchRecord]], Iterator[BatchOutcome]]

TOLD_SECONDS = 60.0
"""Between two lines of how far a batch is, where there is no terminal for a bar."""


@click.command(cls=PictureCommand)
@click.argument("table", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FOLDER",
              help="Where pictures go, with a table of results and a contact sheet.")
@click.option("--sweep", "sweeps", multiple=True, metavar="NAME=VALUES",
              help="Make each row with all of these values: seed=1..4, or sampler=euler|heun; of "
                   "several sweeps every combination. May be given several times.")
@click.option("--workers", type=int, default=None,
              help="Processes that make pictures, each with the model in its own memory, which "
                   "share the --threads.  [default: one for each thread where a small model "
                   "makes many pictures on the CPU, else 1]")
@click.option("--ray", "address", default=None, metavar="ADDRESS|auto",
              help="Make them on a cluster of Ray that this computer is part of: on every node a "
                   "worker for each GPU, else --workers that share the node's --threads. Needs "
                   "pip install 'smalti[ray]'.")
@click.option("--dry-run", is_flag=True, help="Say what would be made, and make nothing.")
@model_options
@compute_options
def batch(table: Path, output: Path, sweeps: tuple[str, ...], workers: int | None,
          address: str | None, dry_run: bool, **given: Any) -> None:
    """Make the pictures of TABLE (.jsonl, .csv, .parquet), a row each.

    Columns are options of a picture, by their names in Python. What is there already is not made
    again, so that a run that was stopped goes on. Options of a picture that are given here count
    where a row says nothing.
    """
    with ExitStack() as until:
        cluster = until.enter_context(_cluster(address, dry_run, workers or 1, given))
        with loading_modules():
            from smalti.batch.folder import BatchFolder
            from smalti.batch.records import distinct, records
            from smalti.batch.run import check_workers
            from smalti.batch.table import rows
            from smalti.diffusion.options import OPTIONS
        usual = asked_for({name: given.pop(name) for name in [*given] if name in OPTIONS})
        check_workers(1 if workers is None else workers)
        loaded = {"path": given.pop("model"), **adapters(given, None), **given}
        told, make = (_here(loaded, output, workers) if cluster is None else
                      _there(cluster, loaded, output, workers or 1))
        found = records(rows(table), table.absolute().parent, told, usual,
                        dict(map(_sweep, sweeps)))
        folder = BatchFolder(output)
        wanted = distinct(found)
        missing = [record for record in wanted if not folder.done(record)]
        again = len(found) - len(wanted)
        click.echo(f"{len(found)} pictures" + f", {again} of them twice" * bool(again)
                   + f": {len(wanted) - len(missing)} are there, {len(missing)} are to be made")
        if dry_run:
            return
        with folder.alone():
            started = time.perf_counter()
            if missing:
                _watch(make(missing), folder, missing)
            _end(folder, found, time.perf_counter() - started)


@contextmanager
def _cluster(address: str | None, dry_run: bool, workers: int, given: Mapping[str, Any]
             ) -> Iterator[Callable[[], RayCluster] | None]:
    """Inside, what gives the cluster at an address, or None without one. Its nodes load code while
    this process does, which takes either a second."""
    if address is None:
        yield None
        return
    with loading_modules():
        from smalti.cluster.interface import cpu_share
        from smalti.cluster.on_ray import check_address, joined, joined_ahead
    check_address(address)
    if dry_run:
        yield partial(joined, address)
        return

    def cores(there: int) -> int:
        return cpu_share(there, given["threads"], workers)[1]

    on_cpus = given["device"] in ("auto", "cpu")
    with joined_ahead(address, "smalti.batch.spread", cores if on_cpus else None) as cluster:
        yield cluster


def _here(loaded: dict[str, Any], output: Path, workers: int | None) -> tuple[str, Make]:
    """What tells the model from others, and what makes records on this computer."""
    with loading_modules():
        from smalti.batch.run import made, resolved, usual_workers
        from smalti.batch.worker import BatchWork
        from smalti.diffusion.load_options import LoadOptions

    loading, told = resolved(LoadOptions(**loaded, progress=show_progress))

    def make(missing: Sequence[BatchRecord]) -> Iterator[BatchOutcome]:
        threads = loaded["threads"] or settings.threads()
        count = workers or usual_workers(loading, threads, len(missing))
        share = {**loading, "threads": _share(threads, count)}
        return made(missing, BatchWork(output, share), count, show_progress)

    return told, make


def _there(cluster: Callable[[], RayCluster], loaded: dict[str, Any], output: Path, workers: int
           ) -> tuple[str, Make]:
    """The same on a cluster."""
    with loading_modules():
        from smalti.batch.crew import made_by
        from smalti.batch.folder import BatchFolder
        from smalti.batch.spread import ClusterCrew, SpreadWork

    work = SpreadWork.of(loaded, workers, show_progress)

    def make(missing: Sequence[BatchRecord]) -> Iterator[BatchOutcome]:
        crew = ClusterCrew(cluster(), work, BatchFolder(output), show_progress)
        return made_by(crew, missing)

    return work.told, make


def _share(threads: int, workers: int) -> int:
    """Threads of each worker."""
    return max(1, threads // workers)


def _sweep(text: str) -> tuple[str, str]:
    """Name and values of `NAME=VALUES`."""
    name, equals, values = text.partition("=")
    if not equals or not name or not values:
        raise InputError(f"--sweep is {text!r:.80}; expected NAME=VALUES, such as seed=1..4 or "
                         f"sampler=euler|heun")
    return name.removesuffix("*"), values


def _watch(work: Any, folder: BatchFolder, missing: Sequence[BatchRecord]) -> None:
    """Go through what is made with a progress bar, or lines in a log, and note it. Workers have
    ended when this has, also where something cannot be noted, so that a cluster is left after."""
    seen = sys.stderr.isatty()
    began = told = time.monotonic()
    with closing(work), click.progressbar(length=len(missing), label="pictures", file=sys.stderr,
                                          hidden=not seen) as bar:
        about: BatchOutcome
        for count, about in enumerate(work, 1):
            folder.note(about)
            bar.update(1)
            now = time.monotonic()
            if not seen and now - told >= TOLD_SECONDS:
                told, left = now, (now - began) / count * (len(missing) - count)
                show_progress(f"{count} of {len(missing)} pictures, about {left / 60:.0f} minutes "
                              f"left\n")


def _end(folder: BatchFolder, found: Sequence[BatchRecord], seconds: float) -> None:
    """Write the table and the sheets, and say what became of all. Raises InputError for records
    that could not be made."""
    from smalti.batch.records import distinct
    from smalti.batch.sheet import sheets

    noted = folder.noted()
    table = folder.write_table(found, noted)
    written = sheets(folder.path, distinct(found))
    failed = [record for record in distinct(found) if not folder.done(record)]
    click.echo(f"{folder.path}: {len(found) - len(failed)} pictures, {table.name}"
               + "".join(f", {path.name}" for path in written) + f", {seconds:.1f} s")
    if failed:
        first = noted[failed[0].digest].error if failed[0].digest in noted else "it was not made"
        raise InputError(f"{len(failed)} of {len(found)} pictures could not be made, such as that "
                         f"of {failed[0].place}: {first}; {table} has all, and the next run tries "
                         f"them again")
