"""A file of a server, whole and with the right hash, or not at all; what was begun is gone on with.

It grows beside its place, as `NAME.incomplete`, so that whatever stops it (Ctrl-C, `kill -9`, a
broken network, a full disk) costs nothing that was fetched. Only what has its hash takes the place
of `NAME`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from smalti.claim import claimed
from smalti.dataclass import dataclass
from smalti.errors import FetchError
from smalti.fetch.digest import CHUNK_BYTES, Digest
from smalti.fetch.remote import Answer, BrokenError, Patience, Remote, answer, content
from smalti.fetch.sizes import shown_bytes
from smalti.replacement import take_place

UNFINISHED = ".incomplete"
"""What the hub's own client adds to the name of a file until it is whole."""
TELL_SECONDS = 0.5
SPARE_BYTES = 64 << 20
"""That stay free on a disk: a system without any cannot write a log."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Tell = Callable[[str], None]


@dataclass(frozen=True)
class WantedFile:
    """A file that is to be at `target`: where it is from, its hash, and its size where known."""

    remote: Remote
    target: Path
    digest: Digest
    bytes: int | None = None


def unfinished(target: Path) -> Path:
    """Where a file grows."""
    return target.with_name(target.name + UNFINISHED)


def there(folder: Path) -> Path:
    """A folder, or what there is of those that it is in."""
    return next(each for each in (folder, *folder.absolute().parents) if each.exists())


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise FetchError where a disk has no room for what is to be fetched."""
    place = there(folder)
    free = shutil.disk_usage(place).free
    if needed and free < needed + SPARE_BYTES:
        raise FetchError(f"{what} needs {shown_bytes(needed)}, and {place} has {shown_bytes(free)} "
                         f"free; make room (smalti models list, smalti models remove), or have "
                         f"models elsewhere: HF_HOME is where the hub's are, SMALTI_MODELS others")


def download(wanted: WantedFile, claims: Path, tell: Tell) -> None:
    """Have a file at its place; `claims` is a folder for claims on files that are fetched.

    Raises FetchError, after which nothing wrong is at the place.
    """
    name = hashlib.sha256(os.fsencode(wanted.target.absolute())).hexdigest()[:32]
    title = wanted.remote.title
    try:
        with claimed(claims / f"{name}.lock",
                     lambda: tell(f"{title} is being fetched by another process; waiting")):
            if not right(wanted.target, wanted.digest, tell):
                wanted.target.parent.mkdir(parents=True, exist_ok=True)
                _Download(wanted, tell).run()
    except OSError as error:
        if error.errno in FULL:
            raise FetchError(f"{title} is not whole: the disk of {wanted.target.parent} is full; "
                             f"make room and try again, what is here is kept") from None
        raise FetchError(f"{title} cannot be kept at {error.filename or wanted.target}: "
                         f"{error.strerror or error}; give another folder") from None


def right(path: Path, digest: Digest, tell: Tell) -> bool:
    """Whether a file is here and has its hash; one that has another is deleted. Raises OSError."""
    if not path.is_file():
        return False
    tell(f"checking {path.name}")
    if digest.fits(path):
        return True
    tell(f"{path} has another {digest.kind} than {digest.digits}; it is fetched anew")
    Path(os.path.realpath(path)).unlink()
    path.unlink(missing_ok=True)
    return False


class _Download:
    """One file that grows."""

    def __init__(self, wanted: WantedFile, tell: Tell) -> None:
        self.wanted, self.tell, self.title = wanted, tell, wanted.remote.title
        self.part = unfinished(wanted.target)
        self.total = wanted.bytes
        self.etag: str | None = None
        self.hash: Any = None
        self.done = self.told = 0.0
        self.have = 0

    def run(self) -> None:
        """Fetch, check, and take the place."""
        old = self.part.stat().st_size if self.part.exists() else 0
        with open(self.part, "ab") as stream:
            self._fill(stream)
            right = self._right()
            if not right and old:  # what was here may have been of another content
                self._restart(stream)
                self._fill(stream)
                right = self._right()
            stream.flush()
            os.fsync(stream.fileno())
        if not right:
            self.part.unlink()
            raise FetchError(f"{self.title} is not what it should be: its {self.wanted.digest.kind}"
                             f" is not {self.wanted.digest.digits}; nothing of it is kept; the file"
                             f" may have been replaced, or somebody changes it on the way")
        take_place(self.part, self.wanted.target)

    def _right(self) -> bool:
        return bool(self.hash is not None and self.hash.hexdigest() == self.wanted.digest.digits)

    def _restart(self, stream: IO[bytes]) -> None:
        stream.truncate(0)
        stream.seek(0)
        self.hash = None

    def _fill(self, stream: IO[bytes]) -> None:
        """Until all bytes are there. Raises FetchError."""
        patience = Patience(self.title)
        while True:
            self.have = stream.tell()
            if self.total is None and self.have:
                self.total = content(self.wanted.remote, 1, 0, 1)[1]
            if self.have > (self.total or 0):
                self._restart(stream)
                self.have = 0
            if self.total is not None and self.have == self.total:
                self._begin_hash()
                return
            try:
                if self._more(stream, patience):
                    return
            except BrokenError as error:
                stream.flush()
                patience.wait(error)

    def _more(self, stream: IO[bytes], patience: Patience) -> bool:
        """Take what one answer gives; whether the end is reached."""
        with answer(self.wanted.remote, self.have, None, self.etag) as found:
            self._check_size(found)
            if found.start < self.have:  # the server sends all of it, or it is another file now
                self._restart(stream)
                self.have = 0
            self.etag = _strong(found)
            check_room(self.part.parent, (self.total or 0) - self.have, self.title)
            self._begin_hash()
            while chunk := found.stream.read1(CHUNK_BYTES):  # what has come is kept
                self._take(stream, chunk)
                patience.renew()
        if self.total is not None and self.have < self.total:
            raise BrokenError(f"the connection ended after {self.have} of {self.total} bytes")
        return True

    def _take(self, stream: IO[bytes], chunk: bytes) -> None:
        stream.write(chunk)
        self.hash.update(chunk)
        self.have += len(chunk)
        if self.total is not None and self.have > self.total:
            self.part.unlink(missing_ok=True)
            raise FetchError(f"{self.title}: the server sends more than the {self.total} bytes that"
                             f" it has; nothing of it is kept")
        if time.monotonic() - self.told > TELL_SECONDS:
            self.told = time.monotonic()
            self.tell(f"fetching {self.title}: {shown_bytes(self.have)}" + (
                f" of {shown_bytes(self.total)} ({self.have / self.total:.0%})" if self.total
                else ""))

    def _check_size(self, found: Answer) -> None:
        """Raise FetchError where a server has a file of another size than it is to have."""
        if found.total is None:
            return
        if self.total is None:
            self.total = found.total
        if found.total != self.total:
            raise FetchError(f"{self.title}: the server has {found.total} bytes, expected "
                             f"{self.total}; it may be another file now, or a page that asks for a "
                             f"login: {self.wanted.remote.advice}")

    def _begin_hash(self) -> None:
        """Have the hash of what is here already."""
        if self.hash is not None and self.have:
            return
        self.hash = self.wanted.digest.begun(self.total or 0)
        if self.have:
            self.tell(f"reading what is here of {self.title}")
            with open(self.part, "rb") as stream:
                left = self.have
                while left and (chunk := stream.read(min(CHUNK_BYTES, left))):
                    self.hash.update(chunk)
                    left -= len(chunk)


def _strong(found: Answer) -> str | None:
    """The tag of a content that is the same byte for byte."""
    tag = found.headers.get("ETag")
    return tag if tag and tag.startswith('"') else None
