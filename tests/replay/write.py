"""Write what each graph of the corpus becomes in this tree: a folder a graph, a file a stage.

    python tests/replay/write.py FOLDER [--size full] [--only NAME] [--detail]

It is started by `compare.py`, once for each of two trees, with the tree's own `src` and `tests` in
front of all other packages. Equal trees write equal bytes, on every computer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "material"))

from replay.corpus import STEADY, Entry, entries
from replay.internals import FORMAT, STAGES, Lines, built, compiled, emitted, explored

SIZES = ("quick", "full")
INDEX = "index.txt"


class UnknownGraphError(Exception):
    """A graph was asked for that the corpus does not have."""


def write(folder: Path, size: str, only: Sequence[str] = (), detail: bool = False) -> None:
    """Write the corpus of a size, or those of its graphs that are named, to a new folder.

    Raises UnknownGraphError for a name that none has.
    """
    wanted = {file_name(name): name for name in only}
    chosen = [entry for entry in entries(size) if not only or file_name(entry.name) in wanted]
    if unknown := [name for key, name in wanted.items()
                   if key not in {file_name(entry.name) for entry in chosen}]:
        raise UnknownGraphError(f"the {size} corpus has no graph {', '.join(unknown)}")
    folder.mkdir(parents=True)
    for entry in chosen:
        place = folder / file_name(entry.name)
        place.mkdir()
        for stage, lines in stages_of(entry, detail).items():
            (place / f"{stage}.txt").write_text("".join(line + "\n" for line in lines),
                                                encoding="utf-8")
    text = [f"format {FORMAT}", " ".join(STAGES), *(file_name(entry.name) for entry in chosen)]
    (folder / INDEX).write_text("\n".join(text) + "\n", encoding="utf-8")


def stages_of(entry: Entry, detail: bool) -> Lines:
    """The lines of each stage, in sections by setting."""
    graph = entry.graph() if entry.graph is not None else None
    found = {} if entry.explored or graph is None else built(graph)
    for setting in entry.settings:
        if graph is None:
            lines = emitted(entry.programs(), setting, detail)
        elif entry.explored:
            lines = explored(graph, setting, entry.explored, detail)
        else:
            lines = compiled(graph, setting, STEADY, detail)
        for stage, text in lines.items():
            found.setdefault(stage, []).extend((f"[{setting}]", *text))
    return {stage: found[stage] for stage in STAGES if stage in found}


def file_name(name: str) -> str:
    """A graph's name as that of a folder.

    >>> file_name("product (5, 7) (7, 9)")
    'product-5-7-7-9'
    """
    kept = "".join(c if c.isalnum() or c in "._" else " " for c in name)
    return "-".join(kept.split())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default=SIZES[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--detail", action="store_true", help="code as text, not as digests")
    given = parser.parse_args()
    try:
        write(given.folder, given.size, given.only, given.detail)
    except UnknownGraphError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
