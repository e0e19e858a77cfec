"""A commit becomes a folder of what its tree makes of the corpus.

Trees are unpacked into a temporary folder: the repository and its checkout are only read. Each is
written by its own writer in a process of its own, for which nothing counts but the tree: no cache,
no measured schedules, no environment, a seed for hashes that is always the same.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from replay.history import GitError, first_with

FOLDER = Path("tests/replay")
WRITER, INTERNALS = "write.py", "internals.py"
NEEDED = ("src", "tests")
"""What of a tree is unpacked."""
PATHS = (*NEEDED, "tests/material")
"""Where a tree's writer looks for modules."""
UNTRACKED = shutil.ignore_patterns("__pycache__")
LAST_LINES = 12
"""Of what a writer that failed has said."""

MOVED = {"codegen": "target", "families.parts": "models.parts"}
"""Modules of `smalti` that moved before there was a writer: the name that the first one knows, and
the one that older trees have. What moves later needs no line: trees have writers of their own."""


class WriterError(Exception):
    """A tree could not be written: its writer failed, or there is none that fits."""


@dataclass(frozen=True)
class Tree:
    """A tree with a writer: `root` has `src` and `tests`, `name` is what people call it."""

    root: Path
    name: str

    def start(self, folder: Path, size: str, only: Sequence[str] = (),
              detail: bool = False) -> subprocess.Popen[str]:
        """A process that writes to `folder`, where nothing is left of before; it is to be waited
        for by `finished`."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(self.root / FOLDER / WRITER), str(folder), "--size", size]
        command += [word for name in only for word in ("--only", name)]
        command += ["--detail"] * detail
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("SMALTI_", "PYTHON"))}
        paths = os.pathsep.join(str(self.root / name) for name in PATHS)
        environment = kept | {"PYTHONPATH": paths, "PYTHONHASHSEED": "0",
                              "PYTHONDONTWRITEBYTECODE": "1",
                              "SMALTI_CACHE": str(folder.parent / "no cache")}
        return subprocess.Popen(command, cwd=folder.parent, env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def finished(self, process: subprocess.Popen[str]) -> None:
        """Wait for a process of `start`. Raises WriterError where it failed."""
        said, _ = process.communicate()
        if process.returncode:
            last = "\n".join(said.strip().splitlines()[-LAST_LINES:])
            raise WriterError(f"the writer of {self.name} failed:\n{last}")


def unpacked(root: Path, commit: str, place: Path, paths: Sequence[str] = NEEDED) -> Path:
    """The files of a commit below `paths`, in a new folder. Raises GitError."""
    done = subprocess.run(["git", "archive", "--format=tar", commit, *paths], cwd=root,
                          capture_output=True)
    if done.returncode:
        raise GitError(f"git archive {commit}: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 on
        archive.extractall(place)
    return place


def tree_of(root: Path, commit: str | None, way: str, place: Path, writer: str | None = None
            ) -> Tree:
    """The tree of a commit, with a writer; of None it is the working tree.

    The writer is the tree's own; where it has none, that of the next commit on the way to `way`
    that has one; else the one that runs. With `writer`, a commit, the corpus is that commit's
    instead, and only what knows the compiler's insides stays. Raises GitError.
    """
    name = commit[:10] if commit else "the working tree"
    if commit is None and writer is None:
        return Tree(root, name)
    if commit is None:
        for folder in NEEDED:
            shutil.copytree(root / folder, place / folder, ignore=UNTRACKED)
    else:
        unpacked(root, commit, place)
    own, found = place / FOLDER, place.with_name(f"{place.name} writer")
    if own.joinpath(WRITER).exists():
        if writer is None:
            return Tree(place, name)
        insides, source = own.joinpath(INTERNALS).read_bytes(), f"the corpus of {writer[:10]}"
    else:
        following = first_with(root, commit or way, way, str(FOLDER / WRITER))
        given = (_folder_of(root, following, found / "following") if following
                 else Path(__file__).parent)
        insides = given.joinpath(INTERNALS).read_bytes()
        source = f"the writer of {following[:10] if following else 'this tree'}"
    if writer is not None:
        given = _folder_of(root, writer, found / "given")
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(given, own, ignore=UNTRACKED)
    own.joinpath(INTERNALS).write_bytes(insides)
    _rename_back(own, place)
    return Tree(place, f"{name}, with {source}")


def _folder_of(root: Path, commit: str, place: Path) -> Path:
    return unpacked(root, commit, place, [str(FOLDER)]) / FOLDER


def _rename_back(writer: Path, tree: Path) -> None:
    """Let a writer import modules by the names that they have in an older tree."""
    for now, before in MOVED.items():
        if _has(tree, now) or not _has(tree, before):
            continue
        parent, _, name = now.rpartition(".")
        parent_before, _, name_before = before.rpartition(".")
        for path in writer.glob("*.py"):
            text = path.read_text(encoding="utf-8")
            text = re.sub(rf"\bsmalti\.{re.escape(now)}\b", f"smalti.{before}", text)
            text = re.sub(rf"\bfrom {'.'.join(filter(None, ('smalti', parent)))} import {name}\b",
                          f"from {'.'.join(filter(None, ('smalti', parent_before)))} "
                          f"import {name_before} as {name}", text)
            path.write_text(text, encoding="utf-8")


def _has(tree: Path, module: str) -> bool:
    path = tree.joinpath("src", "smalti", *module.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()
