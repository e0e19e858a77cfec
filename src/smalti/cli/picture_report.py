"""What `smalti inspect` says of a picture: the settings that it carries."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
"""Endings of pictures that may carry settings."""


def picture_report(file: Path) -> str:
    """The settings of a picture, an option a line, by the names of `smalti generate`.

    Raises InputError for one that carries none.
    """
    from PIL import Image

    from smalti.diffusion.metadata import parse, text_in
    from smalti.diffusion.option_text import read
    from smalti.diffusion.options import by_group

    text = text_in(file)
    with Image.open(file) as picture:
        width, height = picture.size
    found = read(parse(text))
    lines = [f"{file}: a picture of {width} x {height}"
             + (f", made by {found.version}" if found.version else "")]
    rows = [("model", found.model or ""), ("precision", found.precision)]
    rows += [(option.name.replace("_", " "), _shown(found.options[option.name]))
             for option in by_group() if option.name in found.options]
    rows += [("adapter", f"{use.name}:{use.weight:g}") for use in found.adapters]
    rows += [("made with", text) for text in found.advice()]
    rows += [(f"{key} (not understood)", value) for key, value in found.unknown.items()]
    rows = [row for row in rows if row[1]]
    width = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        first, *more = value.split("\n")
        lines += [f"  {name.ljust(width)}{first}", *(f"  {' ' * width}{line}" for line in more)]
    return "\n".join([*lines, f"Another one like it: smalti generate --from {file} --seed -1"])


def _shown(value: object) -> str:
    """A value as people read it."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
