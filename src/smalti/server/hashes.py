"""The SHA-256 of model files, by which others know them: computed while nothing else runs."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from smalti.server.archive import Archive

SHOWN_DIGITS = 10
"""Of the hash, as A1111 shows it."""
CHUNK_BYTES = 8 << 20
"""Read at a time: some milliseconds, after which a job that came goes first."""
WAIT_SECONDS = 0.5
"""Between looks whether jobs still run."""
TOLD_SECONDS = 5.0
"""Between two tellings that hashes are known, so that pages do not list models for each."""


class Hashes:
    """Hashes that the archive keeps, by path, time of change and size.

    `idle` tells whether no job runs, `known` is called when there are new ones. A thread computes
    them, one file after the other, from the first that is asked for on.
    """

    def __init__(self, archive: Archive, idle: Callable[[], bool], known: Callable[[], None]
                 ) -> None:
        self._archive, self._idle, self._known = archive, idle, known
        self._turn = threading.Lock()
        self._waiting: dict[Path, None] = {}
        self._failed: set[tuple[str, int, int]] = set()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def of(self, path: Path) -> str | None:
        """The hash of a file, 64 digits; None for a folder, or while it is not known yet."""
        key = _key(path)
        if key is None or (found := self._archive.hash(*key)) is not None:
            return None if key is None else found
        with self._turn:
            if key not in self._failed and not self._stopping.is_set():
                self._waiting[path] = None
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="hashes", daemon=True)
                    self._thread.start()
        return None

    def stop(self) -> None:
        """Compute no more; what was begun is begun anew after the next start."""
        with self._turn:
            self._stopping.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        told = time.monotonic()
        while True:
            with self._turn:
                path = next(iter(self._waiting), None)
                if path is None or self._stopping.is_set():
                    self._thread = None
                    break
            key = _key(path)
            found = None if key is None else self._computed(path)
            if self._stopping.is_set():
                continue
            with self._turn:
                self._waiting.pop(path, None)
                if key is not None and (found is None or _key(path) != key):
                    self._failed.add(key)  # it cannot be read, or changed meanwhile
                    found = None
            if key is not None and found is not None:
                try:
                    self._archive.keep_hash(*key, found)
                except sqlite3.OperationalError:  # a full disk; after the next start it may fit
                    with self._turn:
                        self._failed.add(key)
                if time.monotonic() - told > TOLD_SECONDS:
                    told = time.monotonic()
                    self._known()
        self._known()

    def _computed(self, path: Path) -> str | None:
        """The hash of a file, read while no job runs; None where that fails."""
        digest = hashlib.sha256()
        try:
            with open(path, "rb") as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    digest.update(chunk)
                    while not self._idle():
                        if self._stopping.wait(WAIT_SECONDS):
                            return None
                    if self._stopping.is_set():
                        return None
        except OSError:
            return None
        return digest.hexdigest()


def _key(path: Path) -> tuple[str, int, int] | None:
    """What a hash is kept by; None for what is no file."""
    try:
        state = path.stat()
    except OSError:
        return None
    if not path.is_file():
        return None
    name = os.fsencode(path).decode("utf-8", "backslashreplace")  # a file name need not be text
    return name, state.st_mtime_ns, state.st_size
