"""What lies beside a model file, or stands in it, for people: its picture, the words of an adapter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from smalti.checkpoint.container import open_tensors
from smalti.errors import CheckpointError

PICTURES = (".preview.png", ".png", ".preview.jpg", ".jpg", ".preview.jpeg", ".jpeg",
            ".preview.webp", ".webp")
"""Endings of the picture of a model, in place of its own, in the order in which they are taken: as
A1111, Forge and managers of downloads write them."""
SIDE_BYTES_MAX = 1 << 20
"""Of a file about a model; what civitai tells of one takes up to 100 kB."""
WORDS_MAX, WORD_CHARACTERS_MAX = 20, 200
"""Words of an adapter, and characters of one, that are told."""
COMMON_SHARE = 0.5
"""Of the pictures that the most frequent tag stands at: tags at fewer are details of some."""


class Listings:
    """The names in folders, each read once."""

    def __init__(self) -> None:
        self._names: dict[Path, frozenset[str]] = {}

    def picture_of(self, path: Path) -> Path | None:
        """The picture of a model file; None without one."""
        names, stem = self._in(path.parent), os.path.splitext(path.name)[0]
        return next((path.parent / (stem + ending) for ending in PICTURES
                     if stem + ending in names), None)

    def _in(self, folder: Path) -> frozenset[str]:
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._names[folder] = frozenset()
        return self._names[folder]


def words_of(path: Path) -> tuple[str, ...]:
    """The words that an adapter was trained with: what its file or one beside it says of that, else
    the tags that most pictures of its training had."""
    try:
        metadata: Mapping[str, str] = open_tensors(path).metadata
    except CheckpointError:
        metadata = {}
    stem = os.path.splitext(path)[0]
    said = [*_texts(metadata.get("modelspec.trigger_phrase")),
            *_texts(_side(f"{stem}.json").get("activation text")),
            *_texts(_side(f"{stem}.civitai.info").get("trainedWords"))]
    found = said or _common_tags(metadata.get("ss_tag_frequency", ""))
    return tuple(dict.fromkeys(found))[:WORDS_MAX]


def _texts(said: object) -> Iterator[str]:
    """Words of a text with commas, or of a list of such texts."""
    for text in said if isinstance(said, list) else [said]:
        if isinstance(text, str):
            for word in text.split(","):
                if word.strip() and len(word) <= WORD_CHARACTERS_MAX:
                    yield word.strip()


def _side(path: str) -> dict[str, Any]:
    """What a file of JSON says; nothing where there is none."""
    try:
        with open(path, "rb") as stream:
            found = json.loads(stream.read(SIDE_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _common_tags(text: str) -> Iterable[str]:
    """Tags by how often they stand at pictures of the training, as kohya's trainers note it:
    `{folder: {tag: count}}`."""
    try:
        folders = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return []
    counts: dict[str, int] = {}
    for tags in folders.values() if isinstance(folders, dict) else ():
        for tag, count in tags.items() if isinstance(tags, dict) else ():
            if isinstance(count, int):
                counts[tag] = counts.get(tag, 0) + count
    least = COMMON_SHARE * max(counts.values(), default=0)
    return _texts([tag for tag, count in sorted(counts.items(), key=lambda each: -each[1])
                   if count >= least])
