"""What was fetched: a record of each model, where its files are, and whether they are still right.

The hub's files are in the hub's own cache, where every other program finds them; others in the
folder of models (`SMALTI_MODELS`). A record names files by their paths, sizes and hashes, so that a
model is found again without a network, and a file that was changed is noticed before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from smalti import settings
from smalti.dataclass import dataclass
from smalti.errors import FetchError
from smalti.fetch.digest import Digest
from smalti.replacement import replacing

RECORDS, FILES, CLAIMS = "fetched", "files", "claims"
"""Folders in that of models: records, files that are in no cache of the hub, claims."""
RECORD_BYTES_MAX = 10_000_000
"""Of a record: some hundred bytes a file."""
_UNSAFE = re.compile(r"[^\w.@-]+", re.ASCII)


@dataclass(frozen=True)
class KeptFile:
    """A file that was fetched, the hash that it had, and when it was changed last then."""

    path: str
    bytes: int
    digest: str
    changed: int

    @classmethod
    def of(cls, path: Path, digest: Digest) -> KeptFile:
        """The file at a path, which was found to be right."""
        state = path.stat()
        return cls(str(path), state.st_size, str(digest), state.st_mtime_ns)

    def problem(self, thorough: bool = False) -> str:
        """What is wrong with the file, "" for nothing; it is read where it seems to have changed,
        or where that is asked for."""
        path, (kind, _, digits) = Path(self.path), self.digest.partition(":")
        try:
            state = path.stat()
            if state.st_size != self.bytes:
                return f"{path} has {state.st_size} bytes, expected {self.bytes}"
            if not thorough and state.st_mtime_ns == self.changed:
                return ""
            right = Digest(kind, digits).fits(path)
        except OSError as error:
            return f"{path} cannot be read: {error.strerror or error}"
        return "" if right else f"{path} has another {kind} than {digits}"


@dataclass(frozen=True)
class Kept:
    """A model that was fetched: its name as it was asked for, and what is opened to load it.

    `address` is where exactly it is from, `page` where it is described, `kind` what it is in words.
    """

    name: str
    path: str
    address: str
    page: str = ""
    kind: str = ""
    licence: str = ""
    files: tuple[KeptFile, ...] = field(default=())

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(each.bytes for each in self.files)

    def problems(self, thorough: bool = False) -> list[str]:
        """What is wrong with its files."""
        return [said for each in self.files if (said := each.problem(thorough))]


class ModelStore:
    """The records of what was fetched, and the files that are in no other cache."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = settings.models_folder() if folder is None else folder

    @property
    def claims(self) -> Path:
        """Where processes claim what they fetch."""
        return self.folder / CLAIMS

    def place(self, *parts: str) -> Path:
        """A folder for the files of a source."""
        return self.folder.joinpath(FILES, *(_UNSAFE.sub("_", part) for part in parts))

    def _record(self, name: str) -> Path:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return self.folder / RECORDS / f"{_UNSAFE.sub('_', name)[:80]}-{digest}.json"

    def keep(self, kept: Kept) -> None:
        """Note what was fetched. Raises FetchError where that cannot be written."""
        path = self._record(kept.name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as stream:
                stream.write(json.dumps(asdict(kept), indent=1).encode())
        except OSError as error:
            raise FetchError(f"{path} cannot be written: {error.strerror or error}; give another "
                             f"folder with SMALTI_MODELS") from None

    def found(self, name: str) -> Kept | None:
        """What was fetched by a name; None where nothing was."""
        return _read(self._record(name))

    def all(self) -> Iterator[Kept]:
        """All that was fetched, by name."""
        try:
            paths = [*(self.folder / RECORDS).glob("*.json")]
        except OSError:
            return
        found = [kept for path in paths if (kept := _read(path))]
        yield from sorted(found, key=lambda kept: kept.name)

    def checked(self, kept: Kept) -> Kept:
        """What was fetched, if all files are as they were. Raises FetchError."""
        problems = kept.problems()
        if problems:
            raise FetchError(f"{kept.name} is not what was fetched: {'; '.join(problems)}; have it "
                             f"again with: smalti models get {kept.name}")
        files = tuple(replace(each, changed=Path(each.path).stat().st_mtime_ns)
                      for each in kept.files)
        if files != kept.files:
            self.keep(replace(kept, files=files))
        return kept

    def remove(self, kept: Kept) -> int:
        """Delete a model, but for files that others have too; how many bytes that frees."""
        shared = {each.path for other in self.all() if other.name != kept.name
                  for each in other.files}
        freed = 0
        for each in kept.files:
            if each.path not in shared:
                freed += self._delete(Path(each.path))
        self._record(kept.name).unlink(missing_ok=True)
        return freed

    def _delete(self, path: Path) -> int:
        """Delete a file, what it is a link to within the cache of the hub, and empty folders."""
        try:
            size = path.stat().st_size
            real = Path(os.path.realpath(path))
            path.unlink()
            if real != path and real.parent.name == "blobs":
                if _linked(real):
                    return 0
                real.unlink()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise FetchError(f"{path} cannot be deleted: {error.strerror or error}") from None
        for folder in path.parents:
            if folder.name in ("snapshots", FILES) or any(folder.iterdir()):
                break
            folder.rmdir()
        return size


def _linked(blob: Path) -> bool:
    """Whether a file of a snapshot still leads to a content of the hub's cache."""
    snapshots = blob.parents[1] / "snapshots"
    return any(Path(os.path.realpath(each)) == blob for each in snapshots.rglob("*")
               if each.is_symlink())


def _read(path: Path) -> Kept | None:
    """A record; None for what is none."""
    try:
        if path.stat().st_size > RECORD_BYTES_MAX:
            return None
        told: Any = json.loads(path.read_text(encoding="utf-8"))
        return _kept(told)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _kept(told: Mapping[str, Any]) -> Kept:
    files = tuple(KeptFile(**each) for each in told["files"])
    kept = Kept(**{**told, "files": files})
    texts = [getattr(kept, name) for name in ("name", "path", "address", "page", "kind", "licence")]
    if not all(isinstance(text, str) for text in (*texts, *(each.path for each in files))):
        raise ValueError("a record of another form")
    return kept

