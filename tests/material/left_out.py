"""Tests that are left out on Windows, or under Wine, each with the reason: `tests/windows.toml`."""

from __future__ import annotations

import ctypes
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

LIST = Path(__file__).parents[1] / "windows.toml"


def systems() -> tuple[str, ...]:
    """The systems of the list that this one is: none, Windows, or Windows by Wine."""
    if sys.platform != "win32":
        return ()
    return ("windows", "wine") if hasattr(ctypes.WinDLL("ntdll"), "wine_get_version") \
        else ("windows",)


def reasons(of: Sequence[str]) -> dict[str, str]:
    """Why a test is left out on these systems, by what the list names: a folder, a file, a test."""
    with LIST.open("rb") as file:
        groups = tomllib.load(file)["left_out"]
    return {name: group["reason"] for group in groups if group["on"] in of
            for name in group["tests"]}


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take away what the list names."""
    known = reasons(systems())
    left = [item for item in items if known and not known.keys().isdisjoint(names(item))]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def names(item: pytest.Item) -> set[str]:
    """What the list may call a test: itself, its file, the folders that this is in."""
    test = item.nodeid.partition("[")[0]
    file = test.partition("::")[0]
    return {test, file, *(parent.as_posix() for parent in Path(file).parents)}
