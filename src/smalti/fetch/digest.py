"""Hashes by which files are known: SHA-256, and that by which git names its contents."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from smalti.dataclass import dataclass

CHUNK_BYTES = 1 << 20
"""Read or received at a time: what stops a download stops it within that."""
SHA256, GIT = "sha256", "git"


@dataclass(frozen=True)
class Digest:
    """What a file's content has to hash to: `kind` is "sha256", or "git", which is SHA-1 over the
    length and the content.

    >>> Digest.of_blob("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391").kind
    'git'
    """

    kind: str
    digits: str

    @classmethod
    def of_blob(cls, name: str) -> Digest | None:
        """The hash that a name of content in the hub's cache says; None where it is none."""
        small = name.lower()
        if set(small) - set("0123456789abcdef") or len(small) not in (40, 64):
            return None
        return cls(SHA256 if len(small) == 64 else GIT, small)

    def begun(self, total: int) -> Any:
        """A hash of a content of `total` bytes, to be told them."""
        if self.kind == SHA256:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % total, usedforsecurity=False)

    def fits(self, path: Path) -> bool:
        """Whether the content of a file has it. Raises OSError where it cannot be read."""
        found = self.begun(path.stat().st_size)
        with open(path, "rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                found.update(chunk)
        return bool(found.hexdigest() == self.digits)

    def __str__(self) -> str:
        return f"{self.kind}:{self.digits}"
