"""Styles of prompts, as A1111 keeps them: `styles.csv` in a folder of models or above them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from smalti.dataclass import dataclass
from smalti.errors import InputError

FILE = "styles.csv"
BYTES_MAX = 4 << 20
"""Of a file of styles; large collections of them have a hundredth of it."""
PLACE = "{prompt}"
"""Where in a style the prompt goes; else the style is put behind it."""


@dataclass(frozen=True)
class Style:
    """Words that are added to a prompt, and to the negative prompt."""

    name: str
    prompt: str
    negative_prompt: str


def styles(folders: Sequence[Path]) -> dict[str, Style]:
    """All styles of some folders by name; of a name that is there twice, the first."""
    found: dict[str, Style] = {}
    for folder in folders:
        path = folder / FILE
        try:
            if path.stat().st_size > BYTES_MAX:
                continue
            text = path.read_text(encoding="utf-8-sig", errors="replace")
        except OSError:
            continue  # most folders have none
        for row in csv.DictReader(text.splitlines()):
            # older files call the prompt "text"
            prompt, name = row.get("prompt") or row.get("text") or "", row.get("name")
            if name:
                found.setdefault(name, Style(name, prompt, row.get("negative_prompt") or ""))
    return found


def styled(prompt: str, added: Sequence[str]) -> str:
    """A prompt with what styles add to it.

    >>> styled("a cat", ["oil on canvas", "", "a photo of {prompt}"])
    'a photo of a cat, oil on canvas'
    """
    for each in added:
        if PLACE in each:
            prompt = each.replace(PLACE, prompt)
        elif each:
            prompt = f"{prompt}, {each}" if prompt else each
    return prompt


def chosen_styles(names: object, known: dict[str, Style]) -> list[Style]:
    """The styles of these names. Raises InputError for one that is not there."""
    if not isinstance(names, list):
        raise InputError(f"styles is {names!r:.80}; expected a list of names")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise InputError(f"styles holds {name!r:.80}; known: {', '.join(known) or 'none'}")
    return [known[name] for name in names]
