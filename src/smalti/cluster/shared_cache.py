"""One compile cache for all workers: what one of them compiled, no other compiles again.

A keeper is a worker beside the process that began the work, and has its cache. Workers ask it for
what they lack, and give it what they made. Entries are named by the hash of what they are made of,
which holds the code of Smalti and what their device can do; each side checks what it is given.
Workers that have the same folder (`place`) need no keeper.
"""

from __future__ import annotations

import logging
import socket
import uuid
from pathlib import Path

from smalti.cluster.interface import ClusterWorker, Told
from smalti.runtime import cache

SECONDS = 60.0
"""Waited for the keeper, then it counts as gone: it is slower than that only where the way to it
is lost, and a UNet is compiled in less."""

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Of Linux: no two computers have the same, nor one computer twice."""

_log = logging.getLogger(__name__)


def place() -> str:
    """What tells the folder of this process's cache from all others, also of other computers; ""
    where there is none."""
    folder = cache.own().folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        state = folder.stat()
    except OSError:
        return ""
    try:
        computer = BOOT.read_text(encoding="ascii").strip()
    except OSError:
        computer = f"{socket.gethostname()} {uuid.getnode():x}"
    return f"{computer} {state.st_dev}:{state.st_ino}"


class Keeper:
    """The cache in a folder, for workers that ask."""

    def __init__(self, folder: Path) -> None:
        self._cache = cache.of_folder(folder)

    def entry(self, name: str) -> bytes | None:
        """An entry as a whole, or None."""
        return self._cache.entry(name)

    def merge(self, name: str, entry: bytes) -> bool:
        """Keep an entry; whether it is whole."""
        return self._cache.merge(name, entry)


class KeptElsewhere:
    """What a worker's cache knows of the keeper (`smalti.runtime.cache.Others`)."""

    def __init__(self, keeper: ClusterWorker) -> None:
        self._keeper: ClusterWorker | None = keeper

    def entry(self, name: str) -> bytes | None:
        """An entry of the keeper as a whole, or None."""
        found = self._asked("entry", name)
        return found if isinstance(found, bytes) else None

    def made(self, name: str, entry: bytes) -> None:
        """Give the keeper an entry."""
        self._asked("merge", name, entry)

    def _asked(self, method: str, *arguments: object) -> object:
        if self._keeper is None:
            return None
        answer = self._keeper.asked(method, *arguments, seconds=SECONDS)
        if isinstance(answer, Told):
            return answer.value
        _log.warning("the compile cache that all share does not answer (%s): this worker goes on "
                     "with its own", answer)
        self._keeper = None
        return None


def share(keeper: ClusterWorker) -> None:
    """From now on the cache of this process asks the keeper for what it lacks."""
    cache.own().others = KeptElsewhere(keeper)
