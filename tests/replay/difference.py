"""What two folders that `write.py` has made differ in, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import islice
from pathlib import Path

INDEX, WORDS = "index.txt", "words"
CONTEXT_LINES, DIFF_LINES_MAX = 3, 40


class IncomparableError(Exception):
    """Two folders were written in different formats."""


@dataclass(frozen=True)
class Difference:
    """A graph, and the first of its stages that differs; `section` says for which machine."""

    graph: str
    stage: str
    section: str = ""


@dataclass(frozen=True)
class Report:
    """What two trees differ in.

    `found` has the first difference of each graph that both trees have, and that differs in more
    than words; `words` are graphs that differ in words alone.
    """

    graphs: int
    found: tuple[Difference, ...] = ()
    words: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """True if nothing differs but words, and no graph is gone."""
        return not self.found and not self.gone


def compared(base: Path, head: Path) -> Report:
    """The report on two folders. Raises IncomparableError where their formats are not the same."""
    stages, before = _index(base)
    others, after = _index(head)
    if stages != others:
        raise IncomparableError(
            f"the writers of the two trees write other lines for equal programs ({stages}; "
            f"{others}); compare each with the commit that changed its writer's FORMAT")
    found, words = [], []
    both = [name for name in before if name in set(after)]
    for name in both:
        differing = [stage for stage in stages.split()[2:]
                     if _lines(base / name, stage) != _lines(head / name, stage)]
        if differing == [WORDS]:
            words.append(name)
        elif differing:
            stage = differing[0]
            found.append(Difference(name, stage, _section(base / name, head / name, stage)))
    return Report(len(both), tuple(found), tuple(words),
                  tuple(name for name in before if name not in set(after)),
                  tuple(name for name in after if name not in set(before)))


def is_whole(folder: Path) -> bool:
    """True if a writer has written all that it was asked for: it writes the index last."""
    return (folder / INDEX).exists()


def diff(base: Path, head: Path, difference: Difference, names: Sequence[str] = ("base", "head"),
         lines_max: int = DIFF_LINES_MAX) -> str:
    """The first lines of the unified diff of a stage of a graph."""
    before, after = (_lines(folder / difference.graph, difference.stage) for folder in (base, head))
    label = f"{difference.graph}, {difference.stage}"
    lines = list(islice(unified_diff(before, after, f"{names[0]}: {label}", f"{names[1]}: {label}",
                                     lineterm="", n=CONTEXT_LINES), lines_max + 1))
    more = ["..."] if len(lines) > lines_max else []
    return "\n".join([*lines[:lines_max], *more])


def summary(report: Report) -> str:
    """How many graphs differ, and where first; what is compared with nothing."""
    counts = Counter(each.stage for each in report.found)
    stages = ", ".join(f"{count} first in {stage}" for stage, count in counts.items())
    lines = [f"{len(report.found)} of {report.graphs} graphs differ" + f": {stages}" * bool(stages)]
    lines += [f"{len(report.words)} graphs differ in explanations alone, which decide nothing: "
              + _few(report.words)] * bool(report.words)
    lines += [f"graphs that are gone: {_few(report.gone)}"] * bool(report.gone)
    lines += [f"graphs that are new: {_few(report.added)}"] * bool(report.added)
    return "\n".join(lines)


def _few(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)


def _index(folder: Path) -> tuple[str, list[str]]:
    """The format and the stages, as text, and the graphs."""
    written, stages, *names = (folder / INDEX).read_text(encoding="utf-8").splitlines()
    return f"{written} {stages}", names


def _lines(folder: Path, stage: str) -> list[str]:
    path = folder / f"{stage}.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _section(base: Path, head: Path, stage: str) -> str:
    """The heading that the first line which differs stands below."""
    heading = ""
    for line, other in _pairs(_lines(base, stage), _lines(head, stage)):
        if line != other:
            break
        if line.startswith("["):
            heading = line.strip("[]")
    return heading


def _pairs(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number in range(max(len(before), len(after))):
        yield (before[number] if number < len(before) else "",
               after[number] if number < len(after) else "")
