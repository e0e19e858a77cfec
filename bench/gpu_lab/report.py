"""Reports of programs as lines, and of whole graphs as rows of a table."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Report = Mapping[str, Any]

PRODUCTS = ("contraction",)
ATTENTIONS = ("attention",)
GGML = Path(__file__).with_name("ggml.toml")
GGML_COLUMNS = ("chip", "registers, ggml's", "spills", "occupancy", "bound",
                "driver's clocks a matrix", "ratio")
COLUMNS = ("graph", "chip", "programs", "rejected", "spill", "scratch in hot loop", "occupancy",
           "bound of products", "bound of attentions")


def order(report: Report) -> tuple:
    """Worst first: rejected, then by scratch in the hot loop, spills and the bound."""
    return ("error" not in report, -report.get("scratch", 0), -report.get("spills", 0),
            report.get("bound", 2.0))


def line(report: Report) -> str:
    """A program as a line, and its hot loop as another."""
    head = (f"{report['number']:3} {report['name']} x{report['count']} "
            f"{report.get('kernel', '')}")
    if "error" in report:
        return f"{head}: REJECTED: {report['error']}"
    text = (f"{head}: subgroup {report['subgroup']}, registers {report['registers']}, "
            f"spills {report['spills']}, scratch in loop {report['scratch']}, "
            f"occupancy {report['occupancy']}")
    if "bound" in report:
        text += f", at most {report['bound']:.0%} ({report['unit']})"
    if report.get("driver"):
        text += f", driver {report['driver']:.0f}"
    text += f"\n    {report.get('schedule', '')}"
    loop = ", ".join(f"{kind}: {count}" for kind, count in report["loop"].items())
    return f"{text}\n    {loop}" if loop else text


def in_matrix_unit(report: Report) -> bool:
    """Whether a program multiplies in the matrix unit."""
    return report.get("loop", {}).get("matrix", 0) > 0


def summary(graph: str, chip: str, reports: Sequence[Report]) -> dict[str, Any]:
    """What a graph comes to on a chip.

    Bounds are of products in the matrix unit where there are any, else of all products; occupancy
    is that of products and attentions.
    """
    compiled = [each for each in reports if "error" not in each]
    heavy = [each for each in compiled if each["form"] in (*PRODUCTS, *ATTENTIONS)
             and each.get("main", True) and "bound" in each]
    products = [each for each in heavy if each["form"] in PRODUCTS]
    matrix = [each for each in products if in_matrix_unit(each)] or products
    attentions = [each for each in heavy if each["form"] in ATTENTIONS]
    found: dict[str, Any] = {
        "graph": graph, "chip": chip, "programs": len(reports),
        "rejected": len(reports) - len(compiled),
        "spill": sum(each["spills"] > 0 for each in compiled),
        "scratch": sum(each["scratch"] > 0 for each in compiled),
        "spills_most": max((each["spills"] for each in compiled), default=0)}
    for name, values in (("occupancy", [each["occupancy"] for each in heavy]),
                         ("products", [each["bound"] for each in matrix]),
                         ("attentions", [each["bound"] for each in attentions])):
        if values:
            found[name] = (min(values), statistics.median(values))
    return found


def beside_ggml(reports: Mapping[str, Report]) -> str:
    """The product 4096x4096x4096 of each chip beside ggml's shader, as a table."""
    known = tomllib.loads(GGML.read_text(encoding="utf-8"))
    rows = [(chip, f"{told['registers']}, {known[chip]['registers']}",
             f"{told['spills']}, {known[chip]['spills']}",
             f"{told['occupancy']}, {known[chip]['occupancy']}",
             f"{100 * told['bound']:.0f}, {known[chip]['bound']} %",
             f"{told['driver']:.1f}, {known[chip]['driver']:.1f}",
             f"{told['driver'] / known[chip]['driver']:.2f}")
            for chip, told in reports.items() if chip in known]
    return markdown(GGML_COLUMNS, rows)


def row(found: Mapping[str, Any]) -> tuple[str, ...]:
    """A summary as the cells of `COLUMNS`; pairs are the worst and the median."""
    def share(name: str) -> str:
        return " / ".join(f"{100 * value:.0f}" for value in found[name]) + " %" \
            if name in found else "-"

    most = f" (most {found['spills_most']})" if found["spills_most"] else ""
    held = "{:g}, {:g}".format(*found["occupancy"]) if "occupancy" in found else "-"
    return (found["graph"], found["chip"], str(found["programs"]), str(found["rejected"]),
            f"{found['spill']}{most}", str(found["scratch"]), held, share("products"),
            share("attentions"))


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Summaries as a table in Markdown."""
    return markdown(COLUMNS, [row(each) for each in found])


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    every = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in every)
