"""Words that stand for vectors in prompts: the textual inversions that a pipeline knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smalti.checkpoint.embeddings import Embedding, Floats
from smalti.errors import CheckpointError, InputError
from smalti.families import family_of
from smalti.models.config import ModelConfig

SUFFIXES = (".safetensors", ".pt", ".bin", ".pth", ".ckpt")
"""Endings of the files of a folder that may be embeddings or adapters."""

class Vocabulary:
    """The embeddings that prompts may name, for the text encoders of one model.

    Files that are given are read at once, and have to fit; those of a folder, which may be of any
    family, when a prompt has their name.
    """

    def __init__(self, config: ModelConfig, paths: Iterable[str | Path] = ()) -> None:
        self._config = config
        self._files: dict[str, Path] = {}
        self._known: dict[str, Embedding] = {}
        given = [Path(path) for path in paths]
        if not widths(config) and not all(path.is_dir() for path in given):
            raise InputError("embeddings are for models with a CLIP text encoder; this model reads "
                             "prompts with T5 only")
        for path in given:
            if path.is_dir():
                self._files |= {file.stem: file for file in files_in(path)}
            else:
                self.add(Embedding.open(path))

    def add(self, word: Embedding) -> None:
        """Know one more. Raises CheckpointError where it does not fit the text encoders."""
        word.fit(widths(self._config))
        self._known[word.name] = word

    def named(self, texts: Sequence[str],
              bundled: Iterable[Embedding] = ()) -> tuple[list[Embedding], list[str]]:
        """Those whose names occur in the texts, in any capitals, and warnings.

        `bundled` are those that come with adapters. The warnings are about those of them, and of
        those in folders, that are damaged or of another family: their names may just be words.
        """
        heard, warnings, found = "\n".join(texts), [], {}
        for word in filter(lambda word: _occurs(word.name, heard), bundled):
            try:
                word.fit(widths(self._config))
                found[word.name] = word
            except CheckpointError as error:
                warnings.append(f"{error}; it is left out")
        for name in [name for name in self._files if _occurs(name, heard)]:
            try:
                self.add(Embedding.open(self._files[name]))
                del self._files[name]
            except CheckpointError as error:
                warnings.append(f"{error}; {name!r} is read as it is written")
        found |= {word.name: word for word in self._known.values() if _occurs(word.name, heard)}
        return list(found.values()), warnings


def _occurs(name: str, text: str) -> bool:
    """Whether a name stands in a text, not as a part of a longer word."""
    letter = r"[^\W\d_]"
    pattern = rf"(?<!{letter}){re.escape(name)}(?!{letter})"
    return re.search(pattern, text, re.IGNORECASE) is not None


def widths(config: ModelConfig) -> dict[str, int]:
    """The text encoders that take vectors for words, and the width of those."""
    return {name: text.hidden_size for name, text in config.texts.items()
            if family_of(config).text(name).encoder.chunked}


def fitting(words: Iterable[Embedding], config: ModelConfig) -> list[Embedding]:
    """Those that fit the text encoders of another model, such as a refiner."""
    found = []
    for word in words:
        try:
            word.fit(widths(config))
            found.append(word)
        except CheckpointError:  # there it is read as it is written
            continue
    return found


def rows_of(tokens: npt.ArrayLike, table: np.ndarray,
            vectors: Sequence[Mapping[int, np.ndarray]]) -> Floats:
    """The rows [texts, positions, width] of a table of tokens, with vectors at some positions.

    >>> table = np.arange(6, dtype=np.float32).reshape(3, 2)
    >>> rows_of([[2, 0]], table, [{1: np.float32([8, 9])}]).tolist()
    [[[4.0, 5.0], [8.0, 9.0]]]
    """
    rows = table[np.asarray(tokens)].astype(np.float32)
    for text, places in zip(rows, vectors, strict=True):
        for place, vector in places.items():
            text[place] = vector
    return rows


def files_in(folder: Path) -> list[Path]:
    """The files in a folder and its folders that may hold tensors, in order."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
