"""Questions that a driver may not survive, asked in a process of their own.

    answer = asked("smalti.runtime.vulkan.matrices", "vulkan:0", seconds=20)

runs `answered("vulkan:0")` of that module elsewhere, and gives back the text that it returns.
"""

from __future__ import annotations

import json
import subprocess
import sys

from smalti.errors import DeviceError

PROGRAM = """
import importlib, json, sys
path, module, question = json.loads(sys.argv[1])
sys.path[:] = path
answer = importlib.import_module(module).answered(question)
sys.stdout.flush()
print("\\n" + json.dumps(answer))
"""
TOLD_MAX = 300
"""Characters of what a process has said before it failed."""


def asked(module: str, question: str, seconds: float) -> str:
    """What the function `answered` of a module returns for `question`, in a process of its own.

    Raises DeviceError, which says how, where that process crashes, fails or takes longer than
    `seconds`. Whatever drivers print is ignored.
    """
    arguments = json.dumps([[entry or "." for entry in sys.path], module, question])
    quiet = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # of Windows
    try:
        done = subprocess.run([sys.executable, "-c", PROGRAM, arguments], capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=seconds, creationflags=quiet)
    except subprocess.TimeoutExpired:
        raise DeviceError(f"it gave no answer within {seconds:g} s") from None
    except OSError as error:
        raise DeviceError(f"no process could be started for it ({error})") from error
    if done.returncode:
        told = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
        raise DeviceError(f"its process ended with {how}{': ' if told else ''}"
                          f"{''.join(told)[:TOLD_MAX]}")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        answer = None
    if not isinstance(answer, str):
        raise DeviceError("its process gave no answer")
    return answer
