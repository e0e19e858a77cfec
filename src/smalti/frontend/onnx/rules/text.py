"""Operators on strings. The host computes them, on numpy arrays of objects."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import HostNodeCall, host

WIDTH_MAX = 1 << 24
"""The most columns of a TfIdfVectorizer's result; vocabularies have up to about 10^6 entries."""


@host("StringConcat")
def concat(call: HostNodeCall) -> list[Any]:
    return [np.asarray(np.asarray(call[0], object) + np.asarray(call[1], object), object)]


@host("StringSplit")
def split(call: HostNodeCall) -> list[Any]:
    x, delimiter = np.asarray(call[0], object), call.text("delimiter", None) or None
    most = call.integer("maxsplit", -1)
    parts = [text.split(delimiter, most) for text in x.reshape(-1)]
    width = max(map(len, parts), default=0)
    table = np.full((len(parts), width), "", object)
    for row, words in zip(table, parts, strict=True):
        row[:len(words)] = words
    counts = np.array([len(words) for words in parts], np.int64)
    return [table.reshape(*x.shape, width), counts.reshape(x.shape)]


@host("StringNormalizer")
def normalize(call: HostNodeCall) -> list[Any]:
    x = np.asarray(call[0], object)
    if x.ndim not in (1, 2) or x.ndim == 2 and x.shape[0] != 1:
        raise InputError(f"strings [c] or [1, c] are expected, got {list(x.shape)}")
    exact = bool(call.integer("is_case_sensitive"))
    stops = {word if exact else word.lower() for word in call.texts("stopwords", ())}
    kept = [word for word in x.reshape(-1) if (word if exact else word.lower()) not in stops]
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(call.text("case_change_action"), str)
    kept = [change(word) for word in kept] or [""]
    return [np.array(kept, object).reshape((-1,) if x.ndim == 1 else (1, -1))]


@host("Equal")
def equal(call: HostNodeCall) -> list[Any]:
    return [np.equal(np.asarray(call[0], object), np.asarray(call[1], object)).astype(bool)]


@host("TfIdfVectorizer")
def counted(call: HostNodeCall) -> list[Any]:
    """Counts of n-grams: how often each row [n, c] contains the words or numbers of each entry of
    the pool: adjacent, or with equally many others, up to `max_skip_count`, between each two."""
    x = np.asarray(call[0])
    pool = call.texts("pool_strings", ()) or call.integers("pool_int64s", ())
    places, mode = call.integers("ngram_indexes"), call.text("mode")
    entries: list[tuple[Any, ...]] = []
    starts = (*call.integers("ngram_counts"), len(pool))
    for n, (start, end) in enumerate(itertools.pairwise(starts), 1):
        entries += [tuple(pool[at:at + n]) for at in range(start, end, n)]
    weights = call.numbers("weights", (1.0,) * len(entries))
    if x.ndim not in (1, 2) or mode not in ("TF", "IDF", "TFIDF") \
            or not len(places) == len(entries) == len(weights) \
            or not 0 <= min(places, default=-1) <= max(places) <= WIDTH_MAX:
        raise InputError(f"{len(entries)} entries with {len(places)} places and {len(weights)} "
                         f"weights, counted as {mode!r} in {list(x.shape)}")
    numbers = {entry: i for i, entry in enumerate(entries)}
    rows = x.reshape(-1, x.shape[-1])
    counts = np.zeros((len(rows), len(entries)), np.float32)
    shortest, longest = call.integer("min_gram_length"), call.integer("max_gram_length")
    steps = min(call.integer("max_skip_count") + 1, x.shape[-1])
    for row, count in zip(rows.tolist(), counts, strict=True):
        for n in range(max(shortest, 1), min(longest, len(starts) - 1) + 1):
            for step in range(1, 1 + (steps if n > 1 else 1)):
                for at in range(len(row) - (n - 1) * step):
                    number = numbers.get(tuple(row[at:at + (n - 1) * step + 1:step]))
                    if number is not None:
                        count[number] += 1
    factors = np.float32(1) if mode == "TF" else np.array(weights, np.float32)
    y = np.zeros((len(rows), max(places) + 1), np.float32)
    y[:, list(places)] = (np.minimum(counts, 1) if mode == "IDF" else counts) * factors
    return [y.reshape(*x.shape[:-1], -1)]
