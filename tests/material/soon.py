"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def soon(holds: Callable[[], bool]) -> bool:
    """Whether something holds within some seconds."""
    for _ in range(500):
        if holds():
            return True
        time.sleep(0.02)
    return False
