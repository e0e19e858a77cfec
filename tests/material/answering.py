"""A module for `runtime/gpu/child.py` that answers as a test asks it to."""

from __future__ import annotations

import os
import signal
import sys
import time


def answered(question: str) -> str:
    """Crash, hang, fail, talk, or answer."""
    if question == "crash":
        os.kill(os.getpid(), signal.SIGSEGV if hasattr(signal, "SIGSEGV") else signal.SIGTERM)
    if question == "hang":
        time.sleep(60)
    if question == "fail":
        sys.exit("the driver is broken")
    print("a driver says something")
    return f"[[16, 16, 16, {question}]]"
