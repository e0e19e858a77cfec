"""What the shader compilers of AMD, Intel and NVIDIA make of Smalti's programs, without a GPU.

    python bench/gpu_compilers.py setup FOLDER         three minutes, once; needs root and apt-get
    python bench/gpu_compilers.py run --chip navi31 --graph unet [--rows 12] [--texts DIR]
    python bench/gpu_compilers.py run --chip navi31 --graph mm:4096 --schedule block_n=32,buffers=1
    python bench/gpu_compilers.py run --chip navi31 --graph FILE.spv --bindings 3 --subgroup 64
    python bench/gpu_compilers.py table [--chips navi31,dg2] [--graphs unet,decoder] [--json DIR]
    python bench/gpu_compilers.py ggml DIR             the product 4096^3 of those beside ggml's
    python bench/gpu_compilers.py check DIR            are those within bench/gpu_lab/budget.toml?
    python bench/gpu_compilers.py budget DIR           make them the budget
    python bench/gpu_compilers.py model DIR [--fit]    how well registers of those are predicted

FOLDER is named by --folder or by the variable GPU_LAB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OWN = Path(__file__).resolve().parent
sys.path[:0] = [str(OWN), str(OWN.parent / "src")]

from gpu_lab import budget, chips, graphs, model, programs, report  # noqa: E402

from smalti.errors import InputError  # noqa: E402

Options = Sequence[str]


def reports(folder: Path, chip: str, graph: str, options: Options = ()) -> list[dict[str, Any]]:
    """The reports of the programs of a graph on a chip, behind one of the device.

    Raises SystemExit with what the compiler's process said where it ends without having finished.
    """
    if chip not in chips.CHIPS:
        raise SystemExit(f"no chip is called {chip!r}; known: {', '.join(chips.CHIPS)}")
    with tempfile.TemporaryDirectory() as work:
        out = Path(work, "reports")
        done = chips.python(folder, chips.CHIPS[chip],
                            ["-m", "gpu_lab.compile", chip, graph, str(out), *options],
                            {"SMALTI_CACHE": work})
        lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
        if done.returncode:
            last = "\n".join(done.stderr.splitlines()[-12:])
            raise SystemExit(f"{chip}, {graph}: the compiler ended with {done.returncode} after "
                             f"{max(len(lines) - 1, 0)} programs:\n{last}")
        return [json.loads(each) for each in lines]


def run(given: argparse.Namespace) -> None:
    """The programs of graphs on a chip, worst first."""
    options = ["--precision", given.precision, "--schedule", given.schedule,
               "--weights", given.weights, "--form", given.form,
               *(["--no-matrices"] if given.no_matrices else []),
               "--bindings", str(given.bindings), "--subgroup", str(given.subgroup),
               "--shared", str(given.shared),
               "--push", str(given.push), "--constants", given.constants]
    programs.changed(given.schedule)  # so that a wrong field is told before anything starts
    every = []
    for graph in given.graph.split(","):
        more = ["--texts", str(given.texts.resolve() / graph.replace(":", "-"))] \
            if given.texts and not graph.endswith(".spv") else []
        device, *found = reports(given.folder, given.chip, graph, [*options, *more])
        every.append({"graph": graph, "chip": given.chip, **device, "reports": found})
        print(f"{device['device']}, {device['driver']}")
        print(report.table([report.summary(graph, given.chip, found)]))
        for each in sorted(found, key=report.order)[:given.rows]:
            print(report.line(each))
    if given.json:
        given.json.write_text(json.dumps(every, indent=0), encoding="utf-8")


def table(given: argparse.Namespace) -> None:
    """A row for each graph on each chip; its reports are kept in a folder."""
    rows = []
    for graph in given.graphs.split(","):
        for chip in given.chips.split(","):
            device, *found = reports(given.folder, chip, graph, ["--precision", given.precision])
            rows.append(report.summary(graph, chip, found))
            print(report.table(rows).splitlines()[-1] if len(rows) > 1 else report.table(rows),
                  flush=True)
            if given.json:
                given.json.mkdir(parents=True, exist_ok=True)
                path = given.json / f"{graph.replace(':', '-')}-{chip}.json"
                path.write_text(json.dumps({"graph": graph, "chip": chip, **device,
                                            "reports": found}, indent=0), encoding="utf-8")


def kept(folder: Path) -> list[dict[str, Any]]:
    """What `table --json` has kept in a folder, in the order of the table."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    places = {name: place for place, name in enumerate((*graphs.TABLE, *chips.TABLE))}
    return sorted(found, key=lambda told: [places.get(told[name], len(places))
                                           for name in ("graph", "chip")])


def beside(given: argparse.Namespace) -> None:
    """The product 4096x4096x4096 of a folder's reports beside ggml's shader."""
    print(report.beside_ggml({told["chip"]: told["reports"][0] for told in kept(given.reports)
                              if told["graph"] == "mm:4096"}))


def check(given: argparse.Namespace) -> None:
    """Whether the reports of a folder are within the budget; the exit code is 1 if not."""
    allowed, failures, within = budget.read(), [], 0
    for told in kept(given.reports):
        row = allowed.get(told["graph"], {}).get(told["chip"])
        if row is None:
            failures.append(f"{told['graph']} on {told['chip']}: no budget; make one by `budget`")
            continue
        found = report.summary(told["graph"], told["chip"], told["reports"])
        worse = list(budget.regress(found, row))
        failures += worse
        within += not worse
    print("\n".join([*failures, f"{within} graphs on chips are within their budget"]))
    sys.exit(bool(failures))


def spend(given: argparse.Namespace) -> None:
    """Make what the reports of a folder come to the budget of their graphs and chips."""
    every = kept(given.reports)
    found = [report.summary(told["graph"], told["chip"], told["reports"]) for told in every]
    drivers = ", ".join(sorted({told["driver"] for told in every}))
    made = budget.amended(budget.read(), found)
    budget.PATH.write_text(budget.text(made, drivers), encoding="utf-8")
    print(report.table(found))


def predicted(given: argparse.Namespace) -> None:
    """How well the reports of a folder are predicted; with --fit constants that fit them better,
    and how well such constants predict graphs that they were not fitted to."""
    by_chip: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for told in kept(given.reports):
        by_chip.setdefault(told["chip"], {})[told["graph"]] = model.usable(told["reports"])
    rows = []
    for chip, found in sorted(by_chip.items()):
        unit, reports = model.unit_of(chip), [each for some in found.values() for each in some]
        rows.append(model.row(chip, [model.compared(each, unit, unit.needs) for each in reports]))
        if given.fit:
            print(f"{chip}: {model.fitted(reports, unit)}", flush=True)
            rows.append(model.row(f"{chip}, other graphs' fit", model.across(found, unit)))
    print(report.markdown(model.COLUMNS, rows))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = made.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="fetch the compilers, once")
    setup.add_argument("folder", type=Path)
    for name, function in (
            ("ggml", beside), ("check", check), ("budget", spend), ("model", predicted)):
        each = commands.add_parser(name, help=str(function.__doc__))
        each.set_defaults(function=function)
        each.add_argument("reports", type=Path, help="the folder that table --json has filled")
    each.add_argument("--fit", action="store_true")
    for name, function in (("run", run), ("table", table)):
        each = commands.add_parser(name, help=str(function.__doc__))
        each.set_defaults(function=function)
        each.add_argument("--folder", type=Path, default=os.environ.get(chips.FOLDER))
        each.add_argument("--precision", default="f16")
        each.add_argument("--json", type=Path)
        if name == "run":
            each.add_argument("--chip", required=True)
            each.add_argument("--graph", required=True, help="; ".join(graphs.KINDS))
            each.add_argument("--schedule", default="", help="fields of schedules to change")
            each.add_argument("--weights", default="", help="what weights are held as, as q8")
            each.add_argument("--form", default="", help="of kernels, as attention; all if empty")
            each.add_argument("--no-matrices", action="store_true",
                              help="as where the matrix unit is not trusted")
            each.add_argument("--texts", type=Path, help="a folder for texts of every program")
            each.add_argument("--rows", type=int, default=12)
            each.add_argument("--bindings", type=int, default=3)
            each.add_argument("--subgroup", type=int, default=0)
            each.add_argument("--shared", type=int, default=0, help="bytes, of a FILE.spv")
            each.add_argument("--push", type=int, default=128)
            each.add_argument("--constants", default="")
        else:
            each.add_argument("--chips", default=",".join(chips.TABLE))
            each.add_argument("--graphs", default=",".join(graphs.TABLE))
    return made


def main() -> None:
    """Do what the command line asks for."""
    given = parser().parse_args()
    if given.command == "setup":
        sys.exit(subprocess.run([str(OWN / "gpu_lab" / "setup"), str(given.folder)],
                                check=False).returncode)
    if given.command in ("run", "table"):
        if given.folder is None:
            sys.exit(f"name the folder that setup has filled: --folder, or {chips.FOLDER}")
        if lacking := chips.ready(Path(given.folder)):
            sys.exit(lacking)
        given.folder = Path(given.folder).resolve()
    try:
        given.function(given)
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
