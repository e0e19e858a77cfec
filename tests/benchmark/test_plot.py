"""Plots: where points lie, and that both file formats hold every shape."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from smalti.benchmark.chart import Dot, Line, png, svg
from smalti.benchmark.plot import DOTTED_MAX, SIDE, TOP, Axis, Series, plot


def test_places_are_even_by_logarithm() -> None:
    axis = Axis(1, 100, 10, 200)
    assert [axis.place(value) for value in (1, 10, 100)] == pytest.approx([10, 110, 210])
    assert Axis(1, 1000, 0, 1).ticks()[:4] == [1, 2, 5, 10]
    assert Axis(1, 1e5, 0, 1).ticks() == [1, 10, 100, 1000, 10000, 100000]
    assert 1.2 in Axis(1, 3, 0, 1).ticks()


def test_larger_is_further_right_and_higher() -> None:
    drawing = plot([Series("a", ((1, 1), (10, 5)), joined=False)], "title", "x", "y")
    first, second = [shape for shape in drawing.shapes if isinstance(shape, Dot)][:2]
    assert first.x < second.x and first.y > second.y
    assert TOP < second.y < first.y < TOP + SIDE


def test_the_diagonal_is_where_x_is_y() -> None:
    drawing = plot([Series("a", ((1, 3), (10, 10)), joined=False)], "t", "x", "y", diagonal=True)
    dots = [shape for shape in drawing.shapes if isinstance(shape, Dot)]
    line = [shape for shape in drawing.shapes if isinstance(shape, Line)][-1]
    (x0, y0), (x1, y1) = line.points
    on = [y0 + (dot.x - x0) * (y1 - y0) / (x1 - x0) for dot in dots]
    assert dots[1].y == pytest.approx(on[1]) and dots[0].y < on[0]


def test_long_curves_are_lines_without_dots() -> None:
    points = tuple((x, 1 + x) for x in range(1, DOTTED_MAX + 5))
    drawing = plot([Series("a", points)], "t", "x", "y")
    assert sum(isinstance(shape, Dot) for shape in drawing.shapes) == 1  # of the legend


def test_both_formats_hold_it() -> None:
    drawing = plot([Series("<a>", ((1, 2), (3, 4)))], "t", "x", "y")
    text = svg(drawing)
    assert text.count("<circle") == 3 and "<polyline" in text and "&lt;a&gt;" in text
    image = Image.open(io.BytesIO(png(drawing, 1)))
    assert image.size == (drawing.width, drawing.height)
