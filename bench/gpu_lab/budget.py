"""What graphs may come to on each chip: worse than that is a regress, and better is for the next
`budget`.

budget.toml has a table for each graph and chip:

    ["mm:4096".navi31]
    rejected = 0             programs that the driver rejects, at most
    scratch = 1              programs with scratch memory in the hottest loop, at most
    occupancy = 2            median of products and attentions, at least
    products = [86, 86]      bounds of products in per cent, the worst and the median, at least
    attentions = [60, 60]    the same of attentions
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Limits = Mapping[str, Any]

PATH = Path(__file__).with_name("budget.toml")
AT_MOST = ("rejected", "scratch")
BOUNDS = ("products", "attentions")


def read(path: Path = PATH) -> dict[str, dict[str, Limits]]:
    """The budget of each chip of each graph."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def limits(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary of `report.summary` comes to, as a budget."""
    made: dict[str, Any] = {name: found[name] for name in AT_MOST}
    if "occupancy" in found:
        made["occupancy"] = found["occupancy"][1]
    for name in BOUNDS:
        if name in found:
            made[name] = [math.floor(100 * value) for value in found[name]]
    return made


def regress(found: Mapping[str, Any], allowed: Limits) -> Iterator[str]:
    """In which respects a summary is worse than its budget, as texts."""
    where, now = f"{found['graph']} on {found['chip']}", limits(found)
    for name in AT_MOST:
        if now[name] > allowed[name]:
            yield f"{where}: {name} {now[name]}, at most {allowed[name]}"
    if now.get("occupancy", 0) < allowed.get("occupancy", 0):
        yield f"{where}: median occupancy {now.get('occupancy', 0):g}, at least " \
              f"{allowed['occupancy']:g}"
    for name in BOUNDS:
        for kind, have, least in zip(("worst", "median"), now.get(name, (0, 0)),
                                     allowed.get(name, (0, 0)), strict=True):
            if have < least:
                yield f"{where}: {kind} bound of {name} {have} %, at least {least} %"


def amended(before: Mapping[str, Mapping[str, Limits]], found: Sequence[Mapping[str, Any]]
            ) -> dict[str, dict[str, Limits]]:
    """A budget of what summaries come to; graphs and chips that they are not of keep theirs.

    >>> old = {"unet": {"bmg": {"scratch": 2}, "dg2": {"scratch": 1}}}
    >>> amended(old, [{"graph": "unet", "chip": "dg2", "rejected": 0, "scratch": 0}])
    {'unet': {'bmg': {'scratch': 2}, 'dg2': {'rejected': 0, 'scratch': 0}}}
    """
    made = {graph: dict(chips) for graph, chips in before.items()}
    for each in found:
        made.setdefault(each["graph"], {})[each["chip"]] = limits(each)
    return made


def text(budget: Mapping[str, Mapping[str, Limits]], driver: str) -> str:
    """A budget as the file has it."""
    lines = [f"# What graphs may come to on each chip (budget.py); made with {driver}."]
    for graph, chips in budget.items():
        for chip, allowed in chips.items():
            lines += ["", f'["{graph}".{chip}]']
            lines += [f"{name} = {value}" for name, value in allowed.items()]
    return "\n".join(lines) + "\n"
