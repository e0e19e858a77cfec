"""Words that stand for vectors in prompts: the textual inversions that a pipeline knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smalti.checkpoint.embeddings import Embedding, Floats
from smalti.errors import CheckpointError, InputError
from smalti.families import family_of
from smalti.models.config import ModelConfig

SUFFIXES = (".safetensors", ".pt", ".bin", ".pth", ".ckpt")
"""Endings of the files of a folder that may be embeddings or adapters."""
Version = tuple[Path, int, int]
"""Of a file: where it lies, when it was changed, and its bytes."""

NAMES_MAX = 10_000
"""Whose patterns are kept compiled: one takes 0.1 ms, and each prompt is searched for all names."""


class Vocabulary:
    """The embeddings that prompts may name, for the text encoders of one model.

    Files that are given are read at once, and have to fit; those of a folder, and those that are
    offered, which may be of any family, when a prompt has their name.
    """

    def __init__(self, config: ModelConfig, paths: Iterable[str | Path] = ()) -> None:
        self._config = config
        self._given: dict[str, Embedding] = {}
        self._offered: dict[str, Path] = {}
        self._read: dict[Path, tuple[Version, Embedding]] = {}
        given = [Path(path) for path in paths]
        if not widths(config) and not all(path.is_dir() for path in given):
            raise InputError("embeddings are for models with a CLIP text encoder; this model reads "
                             "prompts with T5 only")
        for path in given:
            if path.is_dir():
                self._offered |= {file.stem: file for file in files_in(path)}
            else:
                word = self._opened(path)
                self._given[word.name] = word

    def offer(self, files: Iterable[Path]) -> None:
        """Let prompts name these files, and no others of folders; of two of one name the first."""
        self._offered = {}
        for file in files:
            self._offered.setdefault(file.stem, file)
        offered = set(self._offered.values())
        self._read = {path: each for path, each in self._read.items() if path in offered}

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
        for name, path in self._offered.items():
            if _occurs(name, heard):
                try:
                    found[name] = self._opened(path)
                except CheckpointError as error:
                    warnings.append(f"{error}; {name!r} is read as it is written")
        found |= {word.name: word for word in self._given.values() if _occurs(word.name, heard)}
        return list(found.values()), warnings

    def _opened(self, path: Path) -> Embedding:
        """The embedding in a file, which is read again when it has changed. Raises CheckpointError
        where it does not fit the text encoders."""
        version = version_of(path)
        known = self._read.get(path)
        if known is None or known[0] != version:
            word = Embedding.open(path)
            word.fit(widths(self._config))
            known = self._read[path] = version, word
        return known[1]


def _occurs(name: str, text: str) -> bool:
    """Whether a name stands in a text, not as a part of a longer word."""
    return _pattern(name).search(text) is not None


@lru_cache(NAMES_MAX)
def _pattern(name: str) -> re.Pattern[str]:
    letter = r"[^\W\d_]"
    return re.compile(rf"(?<!{letter}){re.escape(name)}(?!{letter})", re.IGNORECASE)


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


def version_of(path: Path) -> Version:
    """What a file is known by until it changes. Raises CheckpointError where it is not there."""
    try:
        state = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    return path.resolve(), state.st_mtime_ns, state.st_size


def files_in(folder: Path) -> list[Path]:
    """The files in a folder and its folders that may hold tensors, in order."""
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
