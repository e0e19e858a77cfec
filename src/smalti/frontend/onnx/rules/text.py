"""Operators on strings, which are arrays of objects in the middle of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import HostCall, host


@host("StringConcat")
def concat(call: HostCall) -> list[Any]:
    return [np.asarray(np.asarray(call[0], object) + np.asarray(call[1], object), object)]


@host("StringSplit")
def split(call: HostCall) -> list[Any]:
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
def normalize(call: HostCall) -> list[Any]:
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
def equal(call: HostCall) -> list[Any]:
    return [np.equal(np.asarray(call[0], object), np.asarray(call[1], object)).astype(bool)]
