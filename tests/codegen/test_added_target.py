"""The worked example of docs/compiler.md: a target takes two folders and a line."""

from __future__ import annotations

from worked_example import printed


def test_a_target_takes_two_folders_and_a_line() -> None:
    assert printed("added_target.py") == "4 files, 9 forms\n"
