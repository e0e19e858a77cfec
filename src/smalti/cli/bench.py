"""`smalti bench`: whole models against other engines."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from smalti.cli.interrupt import loading_modules
from smalti.cli.output import check_writable, replace_file
from smalti.errors import InputError

ALL = "all"
"""What `--peers` without names stands for."""


def names(text: str | None) -> tuple[str, ...]:
    """The names in a list with commas, each once.

    >>> names("f32, bf16, f32"), names(None)
    (('f32', 'bf16'), ())
    """
    parts = (part.strip() for part in (text or "").split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


@click.command()
@click.option("--peers", is_flag=False, flag_value=ALL, default=None, metavar="[NAMES]",
              help="Also measure torch, onnxruntime and openvino, or those named; smalti_onnx is "
                   "our own program of the exported file.")
@click.option("--models", default=None, metavar="NAMES", help="Only these. Default: the suite.")
@click.option("--device", default="cpu", show_default=True,
              help="One of `smalti devices`. On a GPU, PyTorch is a peer where it has CUDA.")
@click.option("--precision", default="f32", show_default=True,
              help="f32, bf16, f16 on a GPU, or several with commas.")
@click.option("--target", default=None, metavar="LEVEL",
              help="Hold all engines to avx2, avx2_vnni, avx512, avx512_vnni or "
                   "avx512_bf16. Default: what the CPU has.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--objective", default="latency", show_default=True,
              help="What our schedules are chosen for: latency, throughput (one thread) or energy.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True,
              help="Turns of each engine.")
@click.option("--exports", type=click.Path(path_type=Path), default=None, metavar="FOLDER",
              help="Keeps the ONNX files of the peers for the next run.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), default=None,
              metavar="FILE", help="Everything that was measured.")
@click.option("--chart", "chart_path", type=click.Path(path_type=Path), default=None,
              metavar="FILE", help="A bar chart, .svg or .png.")
def bench(peers: str | None, models: str | None, device: str, precision: str, target: str | None,
          threads: int | None, objective: str, rounds: int, exports: Path | None,
          json_path: Path | None, chart_path: Path | None) -> None:
    """Measure whole models, alone or beside other engines.

    Weights and inputs are random numbers from a fixed seed; engines take turns, so that all meet
    the same state of the machine. Exit code 1 when a result is slower or less exact than asked for.
    """
    with loading_modules():
        from smalti import settings
        from smalti.benchmark import chart, comparison, report, suite, table
        from smalti.benchmark.engines import ENGINES, HELD_BY
        from smalti.runtime.choice import chosen
        from smalti.runtime.cpu.adapter import checked_level
        from smalti.runtime.drivers import driver_of
        from smalti.tune.objective import checked
    device = chosen(device)
    precisions, known = names(precision), ENGINES["smalti"].precisions(device)
    if not precisions or set(precisions) - set(known):
        raise InputError(f"--precision is {precision!r}; expected some of {', '.join(known)}, with "
                         f"commas")
    if target is not None:
        if driver_of(device).of_gpus:
            raise InputError(f"--target {target} is about the CPU, and the device is {device}; "
                             f"leave one of them away")
        if target not in HELD_BY:
            raise InputError(f"--target is {target!r}; engines can be held to {', '.join(HELD_BY)}")
        checked_level(target, "--target")
    if chart_path is not None and chart_path.suffix not in (".svg", ".png"):
        raise InputError(f"--chart is {chart_path}; give a name that ends in .svg or .png")
    check_writable([path for path in (json_path, chart_path) if path])
    if models is not None and not names(models):
        raise InputError(f"--models is {models!r}; expected some of {', '.join(suite.CASES)}, with "
                         f"commas")
    cases = suite.chosen(names(models) or tuple(suite.CASES))
    if threads is None:
        threads = 1 if checked(objective) == "throughput" else settings.threads()
    count = settings.checked_threads(threads)
    asked = comparison.PEERS if peers == ALL else names(peers)
    with folder_of(exports) as folder:
        plan = comparison.Plan(comparison.installed(asked, say, device, target), count, rounds,
                               folder, say, objective=checked(objective), device=device,
                               target=target)
        results = [comparison.measure(case, precision, plan)
                   for case in cases for precision in precisions]
    rows = [result.row() for result in results]
    click.echo(f"{comparison.details(results)}\n\n{table.show(rows)}")
    if json_path is not None:
        replace_file(json_path, json.dumps(report.document(results, count, rounds, device),
                                           indent=1, ensure_ascii=False).encode() + b"\n")
    if chart_path is not None:
        drawing = report.drawing(results, count, device)
        replace_file(chart_path, chart.png(drawing) if chart_path.suffix == ".png"
                     else chart.svg(drawing).encode())
    if any(row.ok is False for row in rows):
        click.get_current_context().exit(1)


def say(text: str) -> None:
    """Print a line of progress on standard error."""
    click.echo(text, err=True)


@contextmanager
def folder_of(exports: Path | None) -> Iterator[Path]:
    """The folder of `--exports`, made if need be; a temporary one where none was given."""
    if exports is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    try:
        exports.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--exports is {exports}: {error.strerror}; give a folder that can be "
                         f"written") from None
    yield exports
