"""The files of `training` import each other by their names alone."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `training` a place that modules are found in."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "training")
