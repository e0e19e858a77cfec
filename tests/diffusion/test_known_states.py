"""States of prompts are read from disk the second time, and only where they would be the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families as tiny

from smalti.checkpoint import load
from smalti.diffusion import known_states
from smalti.diffusion.conditioning import conditioned
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.request import request
from smalti.diffusion.result import Stopwatch
from smalti.diffusion.submodels import Submodels
from smalti.families import family_of, t5


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "states"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that text encoders have computed, run by run."""
    rows: list[int] = []

    def run(self: Submodels, part: str, shape: tuple, **inputs: np.ndarray) -> dict[str, Any]:
        rows.append(len({row.tobytes() for row in inputs["tokens"]}))
        signs = inputs["tokens"].astype(np.float32)
        return {"context": np.repeat(signs[:, :, None], 128, axis=2)}

    monkeypatch.setattr(Submodels, "run", run)
    monkeypatch.setattr(Submodels, "bound", lambda *given: None)
    return rows


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    config = tiny.FAMILIES["chroma"]
    return tiny.single_file(config, tiny.random_weights(config))


def steering(path: Path, prompt: str, negative: str = "", precision: str = "f32") -> np.ndarray:
    checkpoint = load(path)
    asked = request(checkpoint.config, PictureOptions(prompt, negative_prompt=negative),
                    memory_bytes=2**33)
    found = conditioned(Submodels(checkpoint, precision), asked, 1, Stopwatch())
    return found.at(0)[0][0][0]["context"]


def test_a_prompt_is_read_once(tmp_path: Path, read: list[int],
                               stored: dict[str, np.ndarray]) -> None:
    path = tiny.write(tmp_path / "a.safetensors", stored)
    first = steering(path, "a red apple", "blurry")
    assert read == [2]
    np.testing.assert_array_equal(steering(path, "a red apple", "blurry"), first)
    assert read == [2]
    steering(path, "a blue apple", "blurry")
    assert read == [2, 1]
    moved = path.rename(tmp_path / "b.safetensors")
    np.testing.assert_array_equal(steering(moved, "a red apple", "blurry"), first)
    assert read == [2, 1]


def test_what_may_give_other_states_is_read_again(tmp_path: Path, read: list[int],
                                                  stored: dict[str, np.ndarray]) -> None:
    path = tiny.write(tmp_path / "a.safetensors", stored)
    steering(path, "a red apple", "a red apple")
    steering(path, "a red apple", "a red apple", "bf16")
    assert read == [1, 1]
    os.utime(path, ns=(0, 1))
    steering(path, "a red apple", "a red apple")
    assert read == [1, 1, 1]
    name = f"{t5.XXL.inside}encoder.final_layer_norm.weight"
    other = tiny.write(tmp_path / "c.safetensors", {**stored, name: stored[name] * 2})
    os.utime(other, ns=(0, 1))
    steering(other, "a red apple", "a red apple")
    assert read == [1, 1, 1, 1]


def test_a_damaged_entry_is_read_again(tmp_path: Path, read: list[int], folder: Path,
                                       stored: dict[str, np.ndarray]) -> None:
    path = tiny.write(tmp_path / "a.safetensors", stored)
    steering(path, "a red apple", "a red apple")
    (entry,) = folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:-9])
    steering(path, "a red apple", "a red apple")
    assert read == [1, 1]


def test_chunks_are_not_kept(tmp_path: Path) -> None:
    checkpoint = Submodels(load(tiny.write(
        tmp_path / "sd1.safetensors",
        tiny.single_file(tiny.WORDLESS["sd1"], tiny.random_weights(tiny.WORDLESS["sd1"])))))
    text = family_of(checkpoint.checkpoint.config).text("clip_l")
    assert known_states.basis(checkpoint, "text", text) is None
