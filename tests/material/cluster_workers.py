"""Workers of tests over Ray. Nodes import this module, so it needs nothing but Smalti."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from smalti.batch.records import BatchRecord
from smalti.batch.spread import PictureWorker
from smalti.errors import InputError

HELD_SECONDS = 120.0
"""That a worker is held at most: a test whose release never comes ends, and says what it saw."""


class Counts:
    """Answers, refuses and fails."""

    def pid(self) -> int:
        return os.getpid()

    def refuse(self, content: bytes) -> None:
        raise InputError(f"{len(content)} bytes are too many")

    def fail(self) -> None:
        raise ZeroDivisionError


class HeldWorker(PictureWorker):
    """Makes nothing while a file is there."""

    def __init__(self, hold: Path, *rest: Any) -> None:
        super().__init__(*rest)
        self._hold = hold

    def make(self, record: BatchRecord, *rest: Any) -> Any:
        end = time.monotonic() + HELD_SECONDS
        while self._hold.exists() and time.monotonic() < end:
            time.sleep(.01)
        return super().make(record, *rest)
