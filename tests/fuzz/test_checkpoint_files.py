"""The hostile files made by hand and the first changed ones; `checkpoint_files.py` runs on."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from fuzz import checkpoint_files as cases


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    cases.attempt_all(folder)
    return folder


KINDS = ("pickle", "folder", "bomb", "headers", "gguf", "tensors", "archives", "indices", "scales")
"""Of hostile files: the first word of their names."""


def judged(kinds: tuple[str, ...], folder: Path) -> Counter[tuple[str, str]]:
    """How often what happened to the hostile files of these kinds."""
    canary, found = folder / "canary", Counter()
    (folder / "files").mkdir()
    for name, files in cases.hostile(str(canary)):
        kind = name.split()[0]
        assert kind in KINDS, name
        if kind in kinds:
            found[kind, cases.judge(files, folder / "files", ())] += 1
            assert not canary.exists(), f"{name} was executed"
    return found


def test_files_made_to_harm_are_refused_or_inert(allowed: Path, tmp_path: Path) -> None:
    found = judged(tuple(set(KINDS) - {"bomb"}), tmp_path)
    assert sum(found.values()) >= 300 and found["pickle", "reads"] > 50
    for kind in ("folder", "tensors", "archives", "headers", "gguf", "indices", "scales"):
        assert found[kind, "refused"] > 0.7 * sum(n for (k, _), n in found.items() if k == kind)


@pytest.mark.sweep
def test_bombs_take_no_more_memory_and_time_than_their_size_allows(allowed: Path, tmp_path: Path
                                                                  ) -> None:
    assert sum(judged(("bomb",), tmp_path).values()) >= 50


def test_changed_files_are_refused_or_read(allowed: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    found = Counter(cases.judge(cases.changed(seed)[1], tmp_path / "files", cases.ACTIONS)
                    for seed in range(150))
    assert found["refused"] > 30 and found["reads"] > 10


def test_what_is_executed_would_be_noticed(tmp_path: Path) -> None:
    import pickle

    canary = tmp_path / "canary"
    code = cases.executing(str(canary))["builtins exec"]
    pickle.loads(b"\x80\x02" + code + b".")
    assert canary.exists()


def test_memory_and_time_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"x.ckpt": cases.samples()[2][1]}
    monkeypatch.setattr(cases, "read", lambda path: bytearray(100 << 20))
    with pytest.raises(AssertionError, match="bytes"):
        cases.judge(files, tmp_path, ())
    assert not tracemalloc.is_tracing()
    monkeypatch.setattr(time, "process_time", iter(range(0, 100, 5)).__next__)
    with pytest.raises(AssertionError, match="5.0 s"):
        cases.judge(files, tmp_path, (str,))
