"""The prompts of the judge: what each picture has to show, and whether one does.

A line of `prompts.txt` is `group | prompt | what is to be seen`, the last in parts with `;`:
`2 x dog face`, `blue: automobile`, `dog face left of cat face`, `ground blue`, `style flat`. Labels
that mean the same here are joined by `/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RELATIONS = {"left of": (1, 0), "right of": (-1, 0), "above": (0, 1), "under": (0, -1)}
"""Which way from the first thing to the second one, right and down."""
GROUPS = ("known object", "colour", "count", "two objects", "relation", "background", "style",
          "nonsense")


@dataclass(frozen=True)
class Part:
    """So many things of one of these labels, in this hue if there is one."""

    labels: tuple[str, ...]
    hue: str | None = None
    count: int = 1


@dataclass(frozen=True)
class Wanted:
    """What a prompt of a group asks for. With a `relation`, one of `RELATIONS`, the first part is
    there as seen from the second one."""

    group: str
    prompt: str
    parts: tuple[Part, ...]
    relation: str | None = None
    ground: str | None = None
    style: str | None = None


@dataclass(frozen=True)
class Seen:
    """A thing that the judge sees: its centre is in shares of the side."""

    label: str
    hue: str
    x: float
    y: float


@dataclass(frozen=True)
class Judgement:
    """What the judge sees in a picture."""

    things: tuple[Seen, ...]
    ground: str
    style: str


def read_prompts(path: Path) -> list[Wanted]:
    """The prompts of a file. Raises SystemExit for a line that is none."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = line.partition("#")[0].strip()
        if line:
            fields = [field.strip() for field in line.split("|")]
            if len(fields) != 3 or fields[0] not in GROUPS:
                raise SystemExit(f"{path.name}, line {number}: expected `group | prompt | what is "
                                 f"to be seen`, the group one of {', '.join(GROUPS)}")
            found.append(_wanted(*fields))
    return found


def _wanted(group: str, prompt: str, text: str) -> Wanted:
    parts: list[Part] = []
    more: dict[str, object] = {}
    for each in filter(None, map(str.strip, text.split(";"))):
        kind, _, value = each.partition(" ")
        where = next((name for name in RELATIONS if f" {name} " in each), None)
        if kind in ("ground", "style"):
            more[kind] = value
        elif where is not None:
            parts += map(_part, each.split(f" {where} "))
            more["relation"] = where
        else:
            parts.append(_part(each))
    return Wanted(group, prompt, tuple(parts), **more)


def _part(text: str) -> Part:
    count, times, rest = text.partition(" x ")
    count, rest = (int(count), rest) if times else (1, text)
    hue, colon, labels = rest.partition(": ")
    return Part(tuple((labels if colon else rest).split("/")), hue if colon else None, count)


def met(wanted: Wanted, seen: Judgement) -> bool:
    """Whether a picture shows what a prompt asks for. Of a count nothing else may be seen; else
    what lies beside is not asked about. With nonsense nothing that is known may be seen."""
    if wanted.group == "nonsense":
        return not seen.things
    if wanted.ground is not None and seen.ground != wanted.ground:
        return False
    if wanted.style is not None and seen.style != wanted.style:
        return False
    matching = [[thing for thing in seen.things if thing.label in part.labels
                 and part.hue in (None, thing.hue)] for part in wanted.parts]
    if wanted.group == "count":
        return len(seen.things) == len(matching[0]) == wanted.parts[0].count
    if not all(matching):
        return False
    if wanted.relation is None:
        return True
    return any(_stand(a, b, wanted.relation) for a in matching[0] for b in matching[1])


def _stand(a: Seen, b: Seen, where: str) -> bool:
    right, down = RELATIONS[where]
    along = right * (b.x - a.x) + down * (b.y - a.y)
    aside = abs(down * (b.x - a.x)) + abs(right * (b.y - a.y))
    return along > aside


def shares(wanted: Sequence[Wanted], results: Sequence[bool]) -> dict[str, float]:
    """The share of prompts that were met, by group."""
    found = {}
    for group in GROUPS:
        of_group = [met for each, met in zip(wanted, results, strict=True) if each.group == group]
        if of_group:
            found[group] = sum(of_group) / len(of_group)
    return found


def short_names(models: Sequence[Path]) -> list[str]:
    """A name for each of several files: its own, after its folder's where two have the same."""
    stems = [model.stem for model in models]
    names = [stem if stems.count(stem) == 1 else f"{model.resolve().parent.name}/{stem}"
             for model, stem in zip(models, stems, strict=True)]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SystemExit(f"two models are called {', '.join(sorted(twice))}: rename one")
    return names
