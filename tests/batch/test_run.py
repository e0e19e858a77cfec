"""Workers of a batch on this computer: how many there are where nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smalti.batch import run
from smalti.batch.run import SMALL_BYTES, WORKERS_MAX, usual_workers
from smalti.runtime.holes import lengthen

PLAIN: dict[str, Any] = {"path": None, "vae": None, "text_encoders": (), "refiner": None,
                         "device": "cpu"}


@pytest.mark.parametrize(("more", "threads", "count", "workers"), [
    ({}, 4, 500, 4), ({}, 4, 25, 2), ({}, 4, 19, 1), ({}, 1, 500, 1), ({}, 200, 5000, WORKERS_MAX),
    ({"vae": "a.safetensors"}, 4, 500, 1), ({"text_encoders": ["a"]}, 4, 500, 1),
    ({"path": "large"}, 4, 500, 1), ({"path": "small"}, 4, 500, 4), ({"path": "."}, 4, 500, 1),
    ({"device": "auto"}, 4, 500, 1)])
def test_a_small_model_on_the_cpu_has_a_worker_for_each_thread(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], threads: int,
        count: int, workers: int) -> None:
    monkeypatch.chdir(tmp_path)
    for name, size in (("small", SMALL_BYTES), ("large", SMALL_BYTES + 1)):
        with open(name, "wb") as stream:
            lengthen(stream, size)
    monkeypatch.setattr(run, "every", lambda device: (device.replace("auto", "vulkan:0"),))
    assert usual_workers({**PLAIN, **more}, threads, count) == workers
