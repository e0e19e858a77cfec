"""`smalti tune`: schedules measured on this computer, and kept for all programs to come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

import smalti
from smalti.cli.arrays import parse_shapes
from smalti.cli.bench import say
from smalti.cli.explain import chosen_parts
from smalti.cli.generate import show_progress
from smalti.cli.interrupt import loading_modules
from smalti.cli.output import check_writable, replace_file
from smalti.cli.picture_options import parse_size
from smalti.cli.profile import check_shapes, is_onnx, of_onnx, of_suite
from smalti.cli.seconds import Seconds
from smalti.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from smalti.cluster.farm import TunedKind
    from smalti.runtime.interface import Program
    from smalti.runtime.sources import Read
    from smalti.runtime.tuner import TunedKernel, Tuner
    from smalti.tune.store import MeasurementScope

    Tunable = tuple[Program, dict[str, np.ndarray], Read]
    Shapes = dict[str, tuple[int, ...] | int]


@click.command()
@click.argument("model", required=False)
@click.option("--budget", type=Seconds(min=1), default=60.0, show_default=True,
              metavar="SECONDS", help="Time for all parts together.")
@click.option("--part", default=None, help="Only one of the parts of a checkpoint.")
@click.option("--size", default=None, metavar="WIDTH[xHEIGHT]",
              help="Pixels. Default: the model's own.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=NUMBERS",
              help="Shape of an input, or extent of a dimension, that an .onnx leaves open.")
@click.option("--device", default="cpu", show_default=True, help="One of `smalti devices`.")
@click.option("--precision", default="f32", show_default=True,
              help="f32 or bf16, or f16 on a GPU.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--top", type=click.IntRange(0, 100_000), default=20, show_default=True,
              help="Kernels to print, those that gained the most first.")
@click.option("--ray", "address", default=None, metavar="ADDRESS|auto",
              help="Measure on all computers of a cluster of Ray that this one is part of; those "
                   "of one kind share what there is to try. Needs pip install 'smalti[ray]'.")
@click.option("--export", "exported", type=click.Path(path_type=Path), default=None,
              metavar="FILE", help="Write all that is known, as JSON lines.")
@click.option("--import", "imported", type=click.Path(path_type=Path), default=None,
              metavar="FILE", help="Take over what another store has written so.")
def tune(model: str | None, budget: float, part: str | None, size: str | None,
         shapes: tuple[str, ...], device: str, precision: str, threads: int | None, top: int,
         address: str | None, exported: Path | None, imported: Path | None) -> None:
    """Measure schedules of MODEL's kernels and keep the best.

    MODEL is a checkpoint, an .onnx file, or a name of the suite of `smalti bench`. Without it, only
    --import and --export are done. Results never change by a byte. Ctrl-C keeps what was found.
    """
    from smalti import settings

    wanted = parse_shapes(shapes)
    check_shapes(model, shapes)
    if model is None:
        check_nothing_measured()
    if threads is not None:
        settings.checked_threads(threads)
    check_writable([exported] if exported else [])
    if imported is not None:
        take(imported)
    if model is not None:
        asked = partial(programs_here, part=part, size=size, shapes=wanted, device=device,
                        precision=precision)
        if address is not None:
            farm(address, partial(asked, from_anywhere(model)), threads, budget, top)
        else:
            left, programs = asked(model, threads=threads or settings.threads())
            for program, inputs, read in programs:
                started = time.monotonic()
                tune_one(program, inputs, read, budget / left, top)
                budget, left = budget - (time.monotonic() - started), left - 1
    if exported is not None:
        give(exported)


def check_nothing_measured() -> None:
    """Raise InputError where there is no MODEL, for what is then not done."""
    context = click.get_current_context()
    given = [each.opts[0] for each in context.command.params
             if context.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE]
    for name in given:
        if name not in ("--import", "--export"):
            raise InputError(f"{name} is for measuring; give a MODEL with it, or --import and "
                             f"--export alone")
    if not given:
        raise InputError("nothing to do: give a MODEL, --import or --export")


def programs_here(model: str, part: str | None, size: str | None, shapes: Shapes, device: str,
                  precision: str, threads: int) -> tuple[int, Iterator[Tunable]]:
    """`programs_of` on a device of this computer, where it has kernels."""
    with loading_modules():
        from smalti.runtime.choice import chosen
        from smalti.runtime.drivers import driver_of
    device = chosen(device)
    if not driver_of(device).runs(device):
        raise InputError("only kernels can be tuned, and there is no code for this CPU: it runs "
                         "the numpy reference")
    return programs_of(model, part, size, shapes, device, precision, threads)


def from_anywhere(model: str) -> str:
    """A model as other computers find it: a name of the suite, or a path from the root on."""
    from smalti.benchmark.suite import CASES

    return model if model in CASES else str(Path(model).absolute())


def farm(address: str, programs: Callable[..., tuple[int, Iterator[Tunable]]],
         threads: int | None, seconds: float, top: int) -> None:
    """Measure on all computers of a cluster, and print what each kind of them says."""
    with loading_modules():
        from smalti.cluster.farm import Farm
        from smalti.cluster.on_ray import joined
    with closing(joined(address)) as cluster:
        for made in Farm(cluster, programs, threads, seconds, show_progress).parts():
            show_progress("")
            for kind in made.kinds:
                click.echo(of_kind(made.name, kind, top))


def of_kind(name: str, kind: TunedKind, top: int) -> str:
    """What computers of a kind found: those schedules first that all of them find fastest."""
    from smalti.benchmark.table import columns

    rows = [("one found", "all judge", "from to", "schedule")]
    for (_, schedule), (found, ratios) in sorted(kind.finalists.items(),
                                                 key=lambda each: median(each[1][1]))[:top]:
        rows.append((f"{found:.3f}", f"{median(ratios):.3f}",
                     f"{min(ratios):.3f} {max(ratios):.3f}", schedule))
    return (f"{name} on {len(kind.nodes)} computers of {kind.scope}: {kind.tried} schedules tried, "
            f"{kind.kept} of {len(kind.finalists)} that one found faster are so on all\n"
            + (columns(rows) if kind.finalists else ""))


def take(path: Path) -> None:
    """Add the measurements that `smalti tune --export` wrote elsewhere to the store."""
    from smalti.runtime import cache
    from smalti.runtime.known import GENERATORS, store
    from smalti.tune.store import CODE_DIGITS

    code = cache.code_digest(*GENERATORS)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give a file that "
                         f"`smalti tune --export` wrote") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text; give a file that `smalti tune --export` wrote"
                         ) from None
    try:
        found = store().take(text.splitlines(), code)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if found.refused and not found.taken:
        raise InputError(f"{path}: all {sum(found.refused.values())} measurements are of other "
                         f"code than this Smalti's, {code[:CODE_DIGITS]}; export them with the "
                         f"same version:{listed(found.refused)}")
    click.echo(f"{sum(found.taken.values())} measurements taken from {path}, {found.known} of them "
               f"known here as well or better{listed(found.taken)}")
    if found.refused:
        click.echo(f"{sum(found.refused.values())} measurements refused, of other code than this "
                   f"Smalti's, {code[:CODE_DIGITS]}{listed(found.refused)}")


def give(path: Path) -> None:
    """Write the measurements of the store, and say where they are from."""
    from smalti.runtime.known import store

    lines = list(store().lines())
    replace_file(path, "".join(f"{line}\n" for line in lines).encode())
    click.echo(f"{path}: {len(lines)} measurements{listed(store().scopes())}")


def listed(scopes: Mapping[MeasurementScope, int]) -> str:
    """Where measurements are from, a line each."""
    return "".join(f"\n  {count} of {scope}" for scope, count in scopes.items())


def tune_one(program: Program, inputs: dict[str, np.ndarray], read: Read, seconds: float,
             top: int) -> None:
    """Measure schedules of a program for some seconds, and print what was gained."""
    from smalti.runtime.tuner import Tuner

    say(f"tuning {program.name}")
    end = time.monotonic() + seconds
    trials = program.trials()
    if trials is None:
        raise InputError(f"{program.name}: a model whose shapes depend on data cannot be tuned")
    tuner = Tuner(trials, inputs, read)
    try:
        while time.monotonic() < end and tuner.turn():
            show_progress(f"tuning {program.name}: {tuner.tried} schedules tried, "
                          f"{max(0, round(end - time.monotonic()))} s left")
    finally:
        show_progress("")
        click.echo(table(tuner, top))


def table(tuner: Tuner, top: int) -> str:
    """Print the kernels that gained the most time, then the time of the whole program."""
    from smalti.benchmark.table import columns, duration

    rows = tuner.rows()
    lines = [("before", "best", "gain", "tried", "form", "kernel", "what changed")]
    for row in rows[:top]:
        if row.best != row.schedule:
            lines.append((duration(row.seconds), duration(row.best_seconds),
                          f"{1 - row.best_seconds / row.seconds:.1%}", str(row.tried),
                          f"{row.form} x{row.regions}", row.scope, changes(row)))
    whole, best = (sum(getattr(row, name) for row in rows) for name in ("seconds", "best_seconds"))
    gained = sum(row.best != row.schedule for row in rows)
    return (f"{tuner.program.name}: {gained} of {len(rows)} kernels are faster, by "
            f"{1 - best / max(whole, 1e-12):.1%} of the whole; {tuner.tried} schedules tried\n"
            + (columns(lines) if gained else ""))


def changes(row: TunedKernel) -> str:
    """The decisions in which the best schedule differs from the one before."""
    from smalti.schedule import parse
    from smalti.schedule.decisions import decisions

    before, best = decisions(parse(row.schedule)), decisions(parse(row.best))
    return ", ".join(f"{name} {before.get(name, '-')} to {best.get(name, '-')}"
                     for name in dict.fromkeys([*before, *best])
                     if before.get(name) != best.get(name))


def programs_of(model: str, part: str | None, size: str | None, shapes: Shapes, device: str,
                precision: str, threads: int) -> tuple[int, Iterator[Tunable]]:
    """The number of programs of a model, and an iterator over them: each with inputs, and the
    function that reads its weights."""
    from smalti.benchmark.suite import CASES

    if model in CASES:
        return 1, ((*each, CASES[model].read()) for each in of_suite(
            model, precision, threads, device))
    if not Path(model).exists():
        raise InputError(f"{model} is neither a file nor a model of the suite; the suite has "
                         f"{', '.join(CASES)}")
    if is_onnx(model):
        return 1, with_weights(of_onnx(Path(model), shapes, precision, threads, device),
                               Path(model), shapes)
    width, height = parse_size(size)
    pipe = smalti.Pipeline.load(model, device=device, precision=precision, threads=threads,
                                progress=show_progress)
    names = chosen_parts(pipe, part)
    return len(names), of_parts(
        {name: partial(pipe.program, name, width=width, height=height) for name in names}, model)


def of_parts(programs: Mapping[str, Callable[[], Program]], model: str) -> Iterator[Tunable]:
    """Parts of a checkpoint, with random inputs."""
    from smalti import checkpoint
    from smalti.benchmark.profile import seeded_inputs

    read = checkpoint.load(model).given
    for made in programs.values():
        program = made()
        yield program, seeded_inputs(program), read


def with_weights(programs: Iterator[tuple[Program, dict[str, np.ndarray]]], model: Path,
                 shapes: Shapes) -> Iterator[Tunable]:
    """Programs of an ONNX file and their inputs, each with the function that reads its weights."""
    from smalti.frontend.onnx import load

    for program, inputs in programs:
        yield program, inputs, load(model, shapes).parameters.__getitem__
