"""Contact sheets: all pictures of a batch at a glance, with their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from smalti.batch.records import BatchRecord
from smalti.diffusion.images import opaque
from smalti.diffusion.made_picture import save_whole

COLUMNS = 8
SIDE = 160
"""Pixels that a picture has at most on a sheet."""
LABEL = 14
"""Pixels below it, for its number."""
GAP = 6
SHEET_PICTURES = 400
"""On one sheet: 50 rows, 9,000 pixels high."""
BACKGROUND, INK = (24, 24, 24), (200, 200, 200)
"""Dark, so that pictures show; numbers that can be read on it."""


def sheets(folder: Path, records: Sequence[BatchRecord]) -> list[Path]:
    """Write sheets of the pictures that are there; the files that were written."""
    there = [record for record in records if (folder / record.file).is_file()]
    pages = [there[at:at + SHEET_PICTURES] for at in range(0, len(there), SHEET_PICTURES)]
    paths = []
    for number, page in enumerate(pages, 1):
        name = "contact-sheet.png" if number == 1 else f"contact-sheet-{number}.png"
        save_whole(_sheet(folder, page), folder / name)
        paths.append(folder / name)
    return paths


def _sheet(folder: Path, records: Sequence[BatchRecord]) -> Image.Image:
    columns = min(COLUMNS, len(records))
    rows = math.ceil(len(records) / columns)
    across, down = SIDE + GAP, SIDE + LABEL + GAP
    sheet = Image.new("RGB", (GAP + columns * across, GAP + rows * down), BACKGROUND)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for at, record in enumerate(records):
        left, top = GAP + at % columns * across, GAP + at // columns * down
        with Image.open(folder / record.file) as picture:
            small = opaque(picture)
        small.thumbnail((SIDE, SIDE))
        sheet.paste(small, (left + (SIDE - small.width) // 2, top + (SIDE - small.height) // 2))
        draw.text((left, top + SIDE + 1), f"{record.number}  {record.digest[:6]}", INK, font)
    return sheet
