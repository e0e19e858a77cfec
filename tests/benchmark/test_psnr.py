"""bench/psnr.py: what a way means, and the decibels between pictures."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from smalti.errors import InputError

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def psnr() -> ModuleType:
    sys.path.insert(0, str(BENCH))  # for report.py
    try:
        spec = importlib.util.spec_from_file_location("psnr", BENCH / "psnr.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCH))
    return module


@pytest.mark.parametrize(("way", "message"), [
    ("cache=little", "no option with a number"), ("steps=4", "steps is the same for all"),
    ("cahce=0.1", "cache")])
def test_a_way_that_means_nothing_is_refused_before_pictures_are_made(
        psnr: ModuleType, monkeypatch: pytest.MonkeyPatch, way: str, message: str) -> None:
    made = []
    monkeypatch.setattr(psnr, "pictures", lambda *given: made.append(given))
    with pytest.raises(InputError, match=message):
        psnr.rows(argparse.Namespace(ways=["int8", way]))
    assert not made


def test_decibels(psnr: ModuleType) -> None:
    black = np.zeros((4, 4, 3), np.uint8)
    assert psnr.psnr(black, black) == math.inf
    assert psnr.psnr(black + np.uint8(255), black) == pytest.approx(0.0)
    assert psnr.psnr(black, black + np.uint8(1)) == pytest.approx(48.13, abs=0.01)
