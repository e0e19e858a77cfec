"""A bar chart of times as SVG or PNG: one group a model, one bar an engine.

    drawing = chart([Group("UNet step", (("Smalti", 3.1), ("PyTorch", 8.4)))], "title", "subtitle")
    Path("chart.svg").write_text(svg(drawing)); Path("chart.png").write_bytes(png(drawing))
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from xml.sax.saxutils import escape

from smalti.benchmark.table import duration
from smalti.dataclass import dataclass

OURS, INK, FAINT, PAPER = "#d9480f", "#212529", "#868e96", "#ffffff"
"""Colours: our bars, text, lesser text, and what is behind all."""
OTHERS = ("#343a40", "#868e96", "#ced4da", "#a5d8ff")
"""Colours of the bars of other engines, in order; four stay apart in grey print, too."""
WIDTH, MARGIN, NAMES, TIMES = 860, 24, 260, 110
"""Pixels across: the drawing, its margin, the column of names and that of times."""
BAR, GAP, GROUP_GAP, HEAD = 15, 3, 16, 92
"""Pixels down: a bar, the gap to the next one, the gap to the next model, the title."""
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class Group:
    """A model: names of engines with their seconds, ours first."""

    title: str
    bars: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Box:
    """A filled rectangle, in pixels."""

    x: float
    y: float
    width: float
    height: float
    color: str


@dataclass(frozen=True)
class Words:
    """A line of text whose vertical middle is at y; `anchor` is "start", "middle" or "end"."""

    x: float
    y: float
    text: str
    size: int
    color: str = INK
    anchor: str = "start"
    bold: bool = False


@dataclass(frozen=True)
class Line:
    """A line through points, in pixels."""

    points: tuple[tuple[float, float], ...]
    color: str
    width: float = 2.0


@dataclass(frozen=True)
class Dot:
    """A filled circle around (x, y)."""

    x: float
    y: float
    radius: float
    color: str


Shape = Box | Words | Line | Dot


@dataclass(frozen=True)
class Drawing:
    """Shapes on a white page, in the order in which they are drawn."""

    width: int
    height: int
    shapes: tuple[Shape, ...]


def chart(groups: Sequence[Group], title: str, subtitle: str) -> Drawing:
    """Bars of each group on a scale of its own: the slowest engine fills the width."""
    engines = list(dict.fromkeys(name for group in groups for name, _ in group.bars))
    colors = {name: OURS if i == 0 else OTHERS[(i - 1) % len(OTHERS)]
              for i, name in enumerate(engines)}
    shapes: list[Shape] = [
        Words(MARGIN, 26, title, 18, bold=True), Words(MARGIN, 48, subtitle, 12, FAINT)]
    x = MARGIN
    for name, color in colors.items():
        shapes += [Box(x, 64, 12, 12, color), Words(x + 18, 70, name, 12)]
        x += 44 + 7 * len(name)
    y, start = HEAD, MARGIN + NAMES
    room = WIDTH - MARGIN - TIMES - start
    for group in groups:
        tall = len(group.bars) * (BAR + GAP) - GAP
        shapes.append(Words(start - 12, y + tall / 2, group.title, 13, anchor="end"))
        longest = max(seconds for _, seconds in group.bars)
        for name, seconds in group.bars:
            length = max(2.0, room * seconds / longest)
            shapes += [Box(start, y, length, BAR, colors[name]),
                       Words(start + length + 8, y + BAR / 2, duration(seconds), 12,
                             OURS if colors[name] == OURS else INK, bold=colors[name] == OURS)]
            y += BAR + GAP
        y += GROUP_GAP - GAP
    return Drawing(WIDTH, y - GROUP_GAP + MARGIN, tuple(shapes))


def svg(drawing: Drawing) -> str:
    """The drawing as an SVG document."""
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width}" '
             f'height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}" '
             f'font-family="{FONT}">',
             f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>']
    return "\n".join([*lines, *map(_element, drawing.shapes), "</svg>", ""])


def _element(shape: Shape) -> str:
    """A shape as an element of SVG."""
    if isinstance(shape, Box):
        return (f'<rect x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:.1f}" '
                f'height="{shape.height:g}" rx="2" fill="{shape.color}"/>')
    if isinstance(shape, Line):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
        return (f'<polyline points="{points}" fill="none" stroke="{shape.color}" '
                f'stroke-width="{shape.width:g}"/>')
    if isinstance(shape, Dot):
        return (f'<circle cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="{shape.radius:g}" '
                f'fill="{shape.color}" fill-opacity="0.7"/>')
    weight = ' font-weight="600"' if shape.bold else ""
    return (f'<text x="{shape.x:.1f}" y="{shape.y:g}" font-size="{shape.size}" '
            f'fill="{shape.color}" text-anchor="{shape.anchor}"{weight} '
            f'dominant-baseline="central">{escape(shape.text)}</text>')


def png(drawing: Drawing, scale: int = 2) -> bytes:
    """The drawing as a PNG of `scale` times its size, in Pillow's own font."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (drawing.width * scale, drawing.height * scale), PAPER)
    pen = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            left, top = shape.x * scale, shape.y * scale
            pen.rounded_rectangle((left, top, left + shape.width * scale - 1,
                                   top + shape.height * scale - 1), 2 * scale, shape.color)
        elif isinstance(shape, Line):
            pen.line([(x * scale, y * scale) for x, y in shape.points], shape.color,
                     max(1, round(shape.width * scale)))
        elif isinstance(shape, Dot):
            pen.circle((shape.x * scale, shape.y * scale), shape.radius * scale, shape.color)
        else:
            pen.text((shape.x * scale, shape.y * scale), shape.text, shape.color,
                     ImageFont.load_default(shape.size * scale),
                     anchor={"start": "lm", "middle": "mm", "end": "rm"}[shape.anchor],
                     stroke_width=0.4 * scale if shape.bold else 0)
    content = io.BytesIO()
    image.save(content, format="PNG")
    return content.getvalue()
