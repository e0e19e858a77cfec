"""Landscapes and patterns that a program draws."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.peers


def test_every_view_is_a_picture_that_its_seed_decides() -> None:
    import torch
    from landscape import VIEWS, drawn_view

    means = []
    for name in VIEWS:
        first, again, other = (drawn_view(name, seed, 32) for seed in (1, 1, 2))
        assert first.shape == (3, 32, 32) and 0 <= first.min() and first.max() <= 1
        assert torch.equal(first, again) and not torch.equal(first, other)
        assert first.std() > 0.02
        means.append(first.mean((1, 2)))
    assert torch.stack(means).std(0).min() > 0.05
    assert not any(VIEWS[name].there for name in ("stripes", "checks", "dots"))


def test_things_stand_before_a_view() -> None:
    import torch
    from landscape import drawn_view
    from plain_shapes import Shapes
    from scene import Scene, Thing

    drawn = Shapes().drawn(Scene((Thing("square", "blue", 0.5, 0.7, 0.4),), view=("road", 3)))
    assert torch.allclose(drawn[:, 90, 64], torch.tensor((0.1, 0.3, 1.0)), atol=0.01)
    assert torch.equal(drawn[:, 0], drawn_view("road", 3, 128)[:, 0])
