"""The judge's network, on scenes of plain shapes."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers

def shapes() -> object:
    """Art of three shapes, of a module that needs torch."""
    from plain_shapes import Shapes

    return Shapes()


def test_a_scene_has_its_things_where_it_says() -> None:
    import torch
    from scene import Scene, Thing

    art = shapes()
    drawn = art.drawn(Scene((Thing("square", "blue", 0.25, 0.75, 0.3),), "yellow"))
    yellow = torch.tensor((252, 224, 90)) / 255
    assert torch.allclose(drawn[:, 96, 32], torch.tensor((0.1, 0.3, 1.0)), atol=0.01)
    assert torch.allclose(drawn[:, 32, 96], yellow, atol=0.01)
    lines = art.drawn(Scene((Thing("square", None, 0.5, 0.5, 0.5),), "black", "outline"))
    assert lines.max() > 0.9  # white on black
    assert lines[:, 64, 64].max() < 0.2
    squares = art.drawn(Scene((Thing("disc"),), "white", "pixel"))
    assert torch.equal(squares[:, ::4, ::4], squares[:, 3::4, 3::4])


def test_things_of_a_scene_do_not_cover_each_other() -> None:
    from scene import APART, spread

    rng = random.Random(0)
    for count in range(1, 5):
        for _ in range(50):
            found = spread(rng, count)
            assert all(size / 2 <= min(x, y, 1 - x, 1 - y) + 1e-9 for x, y, size in found)
            assert all(max(abs(a[0] - b[0]), abs(a[1] - b[1])) > APART * (a[2] + b[2]) / 2
                       for number, a in enumerate(found) for b in found[:number])


def test_a_judge_learns_shapes_and_is_the_same_from_its_file(tmp_path: Path) -> None:
    import torch
    from judge_net import Judge, train
    from scene import Scene, Thing

    torch.set_num_threads(1)
    art, losses = shapes(), []
    judge = train(art, 60, 8, 0, lambda step, value: losses.append(value))
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
    images = torch.stack([art.drawn(Scene((Thing(label, None, 0.3, 0.6, 0.4),)))
                          for label in art.labels])
    before = judge.judgements(images)
    judge.save(tmp_path / "judge.pt")
    again = Judge.load(tmp_path / "judge.pt").judgements(images)
    assert [[thing.label for thing in each.things] for each in again] == (
        [[thing.label for thing in each.things] for each in before])
    assert "scene" in sys.modules
