"""The first cases of the fuzzer of engine files; `engine_files.py` runs them for minutes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fuzz.engine_files import REFUSED, case


def test_damaged_files_are_refused_and_nothing_else(tmp_path: Path) -> None:
    found = Counter(case(seed, tmp_path) for seed in range(120))
    for kind in REFUSED:
        assert found[kind, "EngineError"] == sum(n for (k, _), n in found.items() if k == kind) > 5
    assert found["graph", "ran"] and found["graph", "EngineError"] and found["about", "EngineError"]
