"""The worked example of docs/compiler.md: a pointwise operation takes three files."""

from __future__ import annotations

from worked_example import printed


def test_a_pointwise_operation_takes_three_files() -> None:
    assert printed("added_operation.py") == "3 files\n"
