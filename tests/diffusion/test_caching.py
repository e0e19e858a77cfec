"""Evaluations that are left out: none where the picture changes, all where it does not."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smalti import Guide, Pipeline, Projected
from smalti.diffusion.caching import Cached
from smalti.errors import InputError

SIGMAS = [8.0, 4.0, 2.0, 1.0, 0.5, 0.25]
OPTIONS = {"steps": 12, "sampler": "euler"}


@pytest.fixture(scope="module")
def pipe(model_path: Path) -> Pipeline:
    return Pipeline.load(model_path, threads=1)


class Model:
    """An estimate that moves by `pace` of its size each time sigma halves, for each picture."""

    def __init__(self, *paces: float) -> None:
        self.paces, self.asked = np.array(paces), []
        self.needed = [True] * len(paces)

    @contextmanager
    def only(self, needed: list[bool]) -> Any:
        self.needed = needed
        yield

    def both(self, x: np.ndarray, sigma: float) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append((sigma, list(self.needed)))
        values = np.where(self.needed, 1 + self.paces * np.log2(8 / sigma), np.nan)
        clean = np.broadcast_to(values.astype(np.float32)[:, None, None, None], x.shape)
        return clean, -clean


def walked(model: Model, threshold: float) -> tuple[list[np.ndarray], Cached]:
    cached = Cached(model, model, threshold)
    x, found = np.zeros((len(model.paces), 1, 2, 2), np.float32), []
    for index, sigma in enumerate(SIGMAS):
        cached.share = index / len(SIGMAS)
        found.append(cached.both(x, sigma))
    return found, cached


def test_what_does_not_change_is_evaluated_twice() -> None:
    found, cached = walked(still := Model(0.0), 0.01)
    assert [sigma for sigma, _ in still.asked] == [8.0, 4.0]
    assert (cached.saved.evaluations, cached.saved.skipped, cached.saved.error) == (6, 4, 0.0)
    assert all((guided == 1).all() and (negative == -1).all() for guided, negative in found)


def test_what_changes_is_evaluated_as_often_as_the_threshold_says() -> None:
    _, cached = walked(moving := Model(0.1), 0.05)
    assert len(moving.asked) == 6 and cached.saved.skipped == 0
    found, cached = walked(moving := Model(0.1), 0.1)
    assert [sigma for sigma, _ in moving.asked] == [8.0, 4.0, 1.0, 0.25]  # 0.1 / 1.1 is foretold
    np.testing.assert_allclose([guided[0, 0, 0, 0] for guided, _ in found],
                               [1, 1.1, 1.1, 1.3, 1.3, 1.5], rtol=1e-6)
    assert cached.saved.error == pytest.approx(0.1 / 1.1, rel=1e-3)


def test_pictures_of_a_batch_are_on_their_own() -> None:
    found, _ = walked(pair := Model(0.0, 0.5), 0.1)
    alone, _ = walked(Model(0.5), 0.1)
    assert pair.asked[-1][1] == [False, True]
    for (both, _), (one, _) in zip(found, alone, strict=True):
        np.testing.assert_array_equal(both[1], one[0])
        assert (both[0] == 1).all()


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpm++_2m_sde", "euler_cfg++"])
def test_a_picture_with_evaluations_left_out_is_near(pipe: Pipeline, sampler: str) -> None:
    options = {"steps": 12, "sampler": sampler, "guidance_scale": 1.5, "batch_size": 2}
    plain = pipe("a red apple", **options)
    result = pipe("a red apple", cache=0.2, **options)
    assert 0 < result.saved.skipped < 0.75 * result.saved.evaluations
    assert 0 < result.saved.error < 0.2 and plain.saved.evaluations == 0
    assert "Step cache: 0.2" in result.texts[0] and "Step cache" not in plain.texts[0]
    alone = pipe("a red apple", cache=0.2, **{**options, "batch_size": 1, "seed": 8})
    assert alone.images[0].tobytes() == result.images[1].tobytes()
    for found, expected in zip(result.images, plain.images, strict=True):
        assert 0 < np.abs(np.asarray(found, float) - np.asarray(expected)).mean() < 12


def test_what_cannot_be_is_said(pipe: Pipeline) -> None:
    with pytest.raises(InputError, match="cache is 2; expected a number from 0"):
        pipe.steps("a red apple", cache=2)
    with pytest.raises(InputError, match="projected guidance needs for its momentum"):
        pipe.steps("a red apple", cache=0.1, guide=Guide(projected=Projected()))
