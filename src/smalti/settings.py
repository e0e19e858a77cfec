"""The only reader of the environment. A variable that is empty counts as one that is not set.

| variable         | meaning                                                                      |
| ---------------- | ---------------------------------------------------------------------------- |
| `SMALTI_THREADS` | worker threads of the CPU target; default: cores that it may keep busy       |
| `SMALTI_HELPERS` | processes that compile beside this one; default: one a core more, 3 at most  |
| `SMALTI_DEVICE`  | device when `device="auto"`; default: the fastest                            |
| `SMALTI_CACHE`   | folder of the compile cache; default: the platform's own cache folder        |
| `SMALTI_SHOW`    | comma-separated stages to print: passes, graph, fused, kernel, schedule, asm |
| `SMALTI_TARGET`  | a feature level (`codegen/levels.py`); default: the best of this CPU          |
| `SMALTI_DOCTOR`  | off: GPUs are not checked when they are first used; default: on              |
| `SMALTI_TOKEN`   | what clients of `smalti serve` have to send; default: nothing                |
| `SMALTI_MODELS`  | folder of models that are fetched by name; default: the platform's data one  |
| `CIVITAI_API_TOKEN` | what civitai knows a user by, as its other clients read it                |
| `HF_HUB_OFFLINE` | 1: nobody is asked for a model, as of the hub's own client; default: off     |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from smalti import cores
from smalti.cores import CORES_MAX
from smalti.errors import InputError

THREADS_MAX = CORES_MAX
"""A greater number is taken for a slip of the keyboard."""
STAGES = ("passes", "graph", "fused", "kernel", "schedule", "asm")


def _variable(name: str) -> str | None:
    """The text of a variable of the environment; None where it is not set, or empty."""
    return os.environ.get(name) or None


def token() -> str | None:
    """What clients of the server have to send: `SMALTI_TOKEN`."""
    return _variable("SMALTI_TOKEN")


def expanded(path: str) -> str:
    """A path with `~` and variables of the environment in it, as shells and ComfyUI read it."""
    return os.path.expandvars(os.path.expanduser(path))


def threads() -> int:
    """Number of worker threads: `SMALTI_THREADS`, else the cores this process may run on."""
    text = _variable("SMALTI_THREADS")
    if text is None:
        return len(cores.usable())
    if not re.fullmatch("[0-9]{1,3}", text):
        raise InputError(f"SMALTI_THREADS is {text!r}; expected a whole number from 1 to "
                         f"{THREADS_MAX}")
    return checked_threads(int(text), "SMALTI_THREADS")


def helpers() -> int | None:
    """How many processes may compile beside this one: `SMALTI_HELPERS`; None where it is not set.
    """
    text = _variable("SMALTI_HELPERS")
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,3}", text) or int(text) > THREADS_MAX:
        raise InputError(f"SMALTI_HELPERS is {text!r}; expected a whole number from 0 to "
                         f"{THREADS_MAX}")
    return int(text)


def checked_threads(count: object, name: str = "threads") -> int:
    """`count` itself. Raises InputError when it is no whole number from 1 to `THREADS_MAX`."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= THREADS_MAX:
        raise InputError(f"{name} is {count!r}; expected a whole number from 1 to {THREADS_MAX}")
    return count


def device() -> str | None:
    """The device that `device="auto"` means, or None for the fastest."""
    return _variable("SMALTI_DEVICE")


def target() -> str | None:
    """The feature level asked for, or None for the best this CPU has."""
    return _variable("SMALTI_TARGET")


def doctor() -> bool:
    """Whether GPUs are checked when they are first used."""
    text = _variable("SMALTI_DOCTOR") or "on"
    if text not in ("on", "off"):
        raise InputError(f"SMALTI_DOCTOR is {text!r}; expected on or off")
    return text == "on"


def cache_folder() -> Path:
    """Folder of the compile cache; it need not exist yet."""
    text = _variable("SMALTI_CACHE")
    return Path(text) if text else Path(platformdirs.user_cache_dir("smalti", appauthor=False))


def models_folder() -> Path:
    """Folder of models that were fetched by name; it need not exist yet."""
    text = _variable("SMALTI_MODELS")
    return Path(text) if text else Path(
        platformdirs.user_data_dir("smalti", appauthor=False)) / "models"


def offline() -> bool:
    """Whether nobody is to be asked for a model: `HF_HUB_OFFLINE`, as the hub's client reads it."""
    return (_variable("HF_HUB_OFFLINE") or "").lower() in ("1", "on", "yes", "true")


def civitai_token() -> str | None:
    """What civitai knows a user by: `CIVITAI_API_TOKEN`."""
    return _variable("CIVITAI_API_TOKEN")


def give(variables: Mapping[str, str]) -> None:
    """Set variables of this process's environment, for libraries that are loaded afterwards."""
    os.environ.update(variables)


def show(stage: str) -> bool:
    """Whether `stage` (one of `STAGES`) is to be printed while compiling."""
    asked = [part.strip() for part in (_variable("SMALTI_SHOW") or "").split(",") if part.strip()]
    for part in asked:
        if part not in STAGES:
            raise InputError(f"SMALTI_SHOW names {part!r}; known stages: {', '.join(STAGES)}")
    return stage in asked
