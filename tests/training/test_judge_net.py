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


def test_a_thing_that_nearly_fills_the_picture_is_whole_and_on_the_grid_of_latents() -> None:
    from scene import PLACES, filling
    from shortlist import Entry

    rng, found = random.Random(0), set()
    for _ in range(2000):
        x, y, size = filling(rng)
        assert 0.9 < size < 1 and all(abs(at - 0.5) * PLACES == 1 for at in (x, y))
        found.add((x, y, size))
    assert len(found) == 4
    assert {filling(rng, 0.0) for _ in range(50)} == {(0.5, 0.5, 1.0)}
    assert 30 < sum(filling(rng, 0.5)[2] < 1 for _ in range(100)) < 70
    pictures = list(shapes().placed([Entry("disc", 1.0, ("disc",)),
                                     Entry("square", 1.0, ("square",), "blue")], 20, rng))
    assert len(pictures) == 40
    for number, picture in enumerate(pictures):
        shown = picture.min(0).values < 0.5
        assert not shown[[0, -1]].any() and not shown[:, [0, -1]].any()  # nothing is cut off
        assert (picture[2] > picture[0])[shown].all() == (number >= 20)  # and all in its colour
    assert len({picture.numpy().tobytes() for picture in pictures}) == 2 * 4


def test_a_judge_learns_shapes_and_is_the_same_from_its_file(tmp_path: Path) -> None:
    import torch
    from judge_net import Judge, Training
    from scene import Scene, Thing

    torch.set_num_threads(1)
    art = shapes()
    training = Training(art, 60, 8, 0)
    losses = [training.learn() for _ in range(training.steps)]
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
    judge = training.judge()
    images = torch.stack([art.drawn(Scene((Thing(label, None, 0.3, 0.6, 0.4),)))
                          for label in art.labels])
    before = judge.judgements(images)
    judge.save(tmp_path / "judge.pt")
    again = Judge.load(tmp_path / "judge.pt").judgements(images)
    assert [[thing.label for thing in each.things] for each in again] == (
        [[thing.label for thing in each.things] for each in before])
    assert "scene" in sys.modules


def test_a_judge_that_stopped_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    import torch
    from judge_net import Training

    torch.set_num_threads(1)
    whole = Training(shapes(), 6, 4, 0)
    expected = [whole.learn() for _ in range(6)]
    first = Training(shapes(), 6, 4, 0)
    found = [first.learn() for _ in range(3)]
    torch.save(first.state(), tmp_path / "judge.state")
    state = torch.load(tmp_path / "judge.state", weights_only=False)
    second = Training(shapes(), 6, 4, 0)
    second.resume(state)
    found += [second.learn() for _ in range(3)]
    assert found == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="others than those of the state"):
        Training(shapes(), 7, 4, 0).resume(state)
