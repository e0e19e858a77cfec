"""Process replay: what two commits make of every graph of a corpus, and where they first differ.

    python tests/replay/compare.py HEAD                 the working tree, with its last commit
    python tests/replay/compare.py main my-branch       two commits
    python tests/replay/compare.py v1.0 --size full     also models as they are published
    python tests/replay/compare.py --marked             all commits that say [same]

Exit status: 0 where nothing differs (but explanations), 1 where something does, 2 where that cannot
be told. See docs/compiler.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from replay.difference import (
    Difference,
    IncomparableError,
    Report,
    compared,
    diff,
    is_whole,
    summary,
)
from replay.history import (
    COMMITS_MAX,
    COMPARISONS_MAX,
    MARK,
    Commit,
    Comparison,
    GitError,
    commit_id,
    comparisons,
    history_of,
    is_shallow,
)
from replay.trees import Tree, WriterError, tree_of

SIZES = ("quick", "full")
CODE = "code"
"""The stage that is written as digests, and again as text where it differs."""
WORKING = "working tree"
SAME, DIFFERENT, UNKNOWN = 0, 1, 2


class Replay:
    """Trees of one repository, unpacked in a folder, and what they write in another (by default the
    same); each is written once, and what commits have written there before is used again.

    `size` is that of the corpus, `only` are names of graphs where not all are wanted, `writer` a
    commit whose corpus is used for all trees.
    """

    def __init__(self, root: Path, folder: Path, size: str, only: Sequence[str] = (),
                 writer: str | None = None, kept: Path | None = None) -> None:
        self.root, self.folder, self.size = root, folder, size
        self.only, self.writer, self.kept = tuple(only), writer, kept or folder
        self.trees: dict[tuple[str | None, str | None], Tree] = {}

    def tree(self, commit: str | None, way: str) -> Tree:
        """The tree of a commit; None is the working tree."""
        key = commit, self.writer
        if key not in self.trees:
            place = self.folder / f"tree {len(self.trees)}"
            self.trees[key] = tree_of(self.root, commit, way, place, self.writer)
        return self.trees[key]

    def written(self, commits: Sequence[str | None], way: str, only: Sequence[str] = (),
                detail: bool = False) -> list[Path]:
        """What each of the commits writes, side by side. Raises GitError, WriterError."""
        folders, running, only = [], [], tuple(only) or self.only
        for commit in commits:
            by = f" by {self.writer}" * bool(self.writer)
            kind = " ".join([self.size, *only, *["in detail"] * detail])
            folder = self.kept / f"written of {commit or WORKING}{by}" / kind
            folders.append(folder)
            if not is_whole(folder):
                tree = self.tree(commit, way)
                running.append((tree, tree.start(folder, self.size, only, detail)))
        for tree, process in running:
            tree.finished(process)
        return folders

    def report(self, base: str, head: str | None, names: Sequence[str] = ("base", "head"),
               way: str = "HEAD") -> tuple[Report, str]:
        """What differs, and the same as text: a summary, and the first difference. Trees without a
        writer have that of the next commit on the way to `way`; where a writer fails, all have the
        corpus of `way`. Raises GitError, WriterError, IncomparableError."""
        lines = []
        try:
            folders = self.written((base, head), way)
        except WriterError as error:
            if self.writer is not None:
                raise
            self.writer = commit_id(self.root, way)
            lines.append(f"{error}\nAgain, with the corpus of {self.writer[:10]} for both:")
            folders = self.written((base, head), way)
        report = compared(*folders)
        lines.append(summary(report))
        for first in report.found[:1]:
            lines.append(f"first difference: {_named(first)}\n{diff(*folders, first, names)}")
            if first.stage == CODE:
                detailed = self.written((base, head), way, [first.graph], detail=True)
                lines.append(f"as text:\n{diff(*detailed, first, names)}")
        return report, "\n".join(lines)

    def culprit(self, comparison: Comparison, difference: Difference, way: str) -> Commit:
        """The first of the commits of a comparison after which a graph is another one."""
        low, high = 0, len(comparison.commits) - 1
        while low < high:
            middle = (low + high) // 2
            folders = self.written((comparison.base, comparison.commits[middle].id),
                                   way, [difference.graph])
            if compared(*folders).same:
                low = middle + 1
            else:
                high = middle
        return comparison.commits[low]


def _named(difference: Difference) -> str:
    place = f" ({difference.section})" if difference.section else ""
    return f"{difference.graph}, {difference.stage}{place}"


def check_marked(replay: Replay, head: str, most: int) -> int:
    """Compare what commits that say so must leave alike; 1 if one does not. Raises GitError,
    WriterError, IncomparableError."""
    history = history_of(replay.root, head)
    found = comparisons(history, most)
    marked = sum(commit.same for commit in history)
    looked = sum(len(each.commits) for each in found)
    print(f"{marked} of the last {len(history)} commits say {MARK}; the newest {looked} are "
          f"{len(found)} comparisons")
    status = SAME
    for each in found:
        first, last = each.commits[0], each.commits[-1]
        said = f"{first.id[:10]} to {last.id[:10]}" if first != last else first.id[:10]
        if not each.base:
            print(f"{said}: not compared, what was before is not here" + (
                "; this is a shallow clone, fetch more of it (git fetch --deepen=100)"
                if is_shallow(replay.root) else ""))
            continue
        report, text = replay.report(each.base, last.id, (each.base[:10], last.id[:10]), head)
        print(f"{said} ({last.subject}): {text}", flush=True)
        if not report.same:
            status = DIFFERENT
            guilty = replay.culprit(each, report.found[0], head) if report.found else last
            print(f"{guilty.id[:10]} says {MARK}, but is not: {guilty.subject}\n"
                  f"Take the mark off the subject, or what changed out of the commit.", flush=True)
    return status


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", help="a commit")
    parser.add_argument("head", nargs="?", help="another; default: the working tree")
    parser.add_argument("--size", choices=SIZES, default=SIZES[0], help="of the corpus")
    parser.add_argument("--only", action="append", default=[], metavar="GRAPH",
                        help="a graph by its name in reports; can be repeated")
    parser.add_argument("--writer", metavar="COMMIT", help="use its corpus for both trees")
    parser.add_argument("--keep", type=Path, metavar="FOLDER",
                        help="leave what is written there, and use what commits wrote before")
    parser.add_argument("--marked", action="store_true",
                        help=f"check commits whose subjects end with {MARK}, of the last "
                        f"{COMMITS_MAX} of HEAD, or of `base` where it is given")
    parser.add_argument("--comparisons", type=int, default=COMPARISONS_MAX, metavar="N",
                        help="at most so many with --marked, newest first (default %(default)s)")
    given = parser.parse_args(arguments)
    if not given.marked and given.base is None:
        parser.error("name a commit to compare with, or --marked")
    return given


def run(given: argparse.Namespace, root: Path, folder: Path) -> int:
    """What the command does, with trees in `folder`. Raises GitError, WriterError,
    IncomparableError."""
    writer = commit_id(root, given.writer) if given.writer else None
    if given.keep is not None:
        shutil.rmtree(given.keep / f"written of {WORKING}", ignore_errors=True)
        given.keep.mkdir(parents=True, exist_ok=True)
    replay = Replay(root, folder, given.size, given.only, writer,
                    given.keep and given.keep.resolve())
    if given.marked:
        return check_marked(replay, commit_id(root, given.base or "HEAD"), given.comparisons)
    base = commit_id(root, given.base)
    head = commit_id(root, given.head) if given.head else None
    report, text = replay.report(base, head, (given.base, given.head or "working tree"))
    print(text)
    return SAME if report.same else DIFFERENT


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """The command; its exit status."""
    given = _arguments(arguments)
    root = root or Path(__file__).resolve().parents[2]
    try:
        with tempfile.TemporaryDirectory(prefix="replay-") as folder:
            return run(given, root, Path(folder))
    except (GitError, WriterError, IncomparableError) as error:
        print(error, file=sys.stderr)
        return UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
