"""Main hues of pictures, and pictures in others."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.peers


def test_a_picture_of_several_hues_can_be_painted_in_those_that_its_commonest_is_not() -> None:
    import torch
    from colour import commonest_hue, main_hue, paints, repaint

    car = torch.zeros(8, 8, 4)
    car[..., 3] = 1
    car[:5, :, 0] = 0.9  # red
    car[5:7, :, 2] = 0.8  # blue windows
    car[7] = torch.tensor((0.5, 0.5, 0.5, 1.0))
    assert main_hue(car) is None  # no hue rules it
    assert commonest_hue(car) == pytest.approx(0, abs=3)
    assert "orange" in paints(car) and "blue" in paints(car) and "red" not in paints(car)
    green = repaint(car, "green")
    assert green[0, 0].argmax() == 1 and torch.allclose(green[5:], car[5:, :, :3], atol=0.01)


def test_what_has_no_colour_is_not_painted() -> None:
    import torch
    from colour import paints, repaint

    ghost = torch.full((8, 8, 4), 0.9)
    ghost[0] = torch.tensor((1.0, 0.0, 0.0, 1.0))
    assert paints(ghost) == () and torch.equal(repaint(ghost, "blue"), ghost[..., :3])


def test_a_hue_that_would_hardly_be_seen_is_none_to_paint_in() -> None:
    import torch
    from colour import commonest_hue, paints

    def heart(value: float) -> torch.Tensor:
        picture = torch.tensor((value, value, value, 1.0)).repeat(8, 8, 1)
        picture[:4, :, :2] *= 0.6
        return picture

    assert "green" in paints(heart(0.9))
    assert commonest_hue(heart(0.25)) is not None and paints(heart(0.25)) == ()
