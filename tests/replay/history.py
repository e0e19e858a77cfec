"""Commits that say they change nothing, and what has to be compared to see that they do not."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "[same]"
"""How the subject of a commit ends that changes nothing of what is compiled."""
COMMITS_MAX, COMPARISONS_MAX = 100, 4
"""How far back history is looked through, and how many comparisons are made, newest first. Both are
bounds on time: older commits were compared when they were new."""


class GitError(Exception):
    """Git has no such commit, or there is no repository."""


@dataclass(frozen=True)
class Commit:
    """A commit by its hash; `parent` is that of its first parent, empty of the first commit."""

    id: str
    parent: str
    subject: str

    @property
    def same(self) -> bool:
        """True if it says that it changes nothing."""
        return self.subject.rstrip().endswith(MARK)


@dataclass(frozen=True)
class Comparison:
    """Two commits that must compile everything alike; `commits` lie behind `base`, oldest first."""

    base: str
    commits: tuple[Commit, ...]

    @property
    def head(self) -> str:
        """The last of the commits."""
        return self.commits[-1].id


def comparisons(history: Sequence[Commit], most: int = COMPARISONS_MAX) -> list[Comparison]:
    """What shows that the commits of a history that say so changed nothing, newest first.

    `history` are commits, newest first, each the parent of the one before it. Those of a row that
    say so are one comparison, of the last of them with the parent of the first.

    >>> made = [Commit("d", "c", "docs"), Commit("c", "b", "a: moved [same]"),
    ...         Commit("b", "a", "a: renamed [same]"), Commit("a", "", "first")]
    >>> [(found.base, found.head) for found in comparisons(made)]
    [('a', 'c')]
    """
    rows: list[list[Commit]] = []
    before: Commit | None = None
    for commit in history:
        if commit.same and before is not None and before.same:
            rows[-1].insert(0, commit)
        elif commit.same:
            rows.append([commit])
        before = commit
    return [Comparison(row[0].parent, tuple(row)) for row in rows[:most]]


def git(root: Path, *arguments: str) -> str:
    """What git prints. Raises GitError with what it says is wrong."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise GitError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def commit_id(root: Path, name: str) -> str:
    """The hash of the commit that a name means. Raises GitError."""
    return git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()


def is_shallow(root: Path) -> bool:
    """True if the repository is a shallow clone, whose history ends early."""
    return git(root, "rev-parse", "--is-shallow-repository").strip() == "true"


def history_of(root: Path, head: str, most: int = COMMITS_MAX) -> list[Commit]:
    """The newest commits that `head` was made of, along first parents, newest first. The oldest of
    a shallow clone has no parent here."""
    lines = git(root, "log", "--first-parent", f"--max-count={most}", "--format=%H %P%x00%s",
                head).splitlines()
    found = []
    for line in lines:
        hashes, _, subject = line.partition("\0")
        id, *parents = hashes.split()
        found.append(Commit(id, parents[0] if parents else "", subject))
    return found


def first_with(root: Path, base: str, head: str, path: str) -> str | None:
    """The oldest commit behind `base`, on the way to `head`, that holds a file; None if none."""
    lines = git(root, "log", "--reverse", "--ancestry-path", "--diff-filter=A", "--format=%H",
                f"{base}..{head}", "--", path).split()
    return lines[0] if lines else None
