"""The layers of a part of a model, and the rows of them that a spelling of a layer stands for.

Trainers of adapters spell one layer that is fused here as several, or several that are apart here
as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from smalti.dataclass import dataclass
from smalti.families.keys import Table

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `start + count` of a layer: of its weight along the first axis, its bias."""

    layer: str
    start: int
    count: int


Target = tuple[Rows, ...]
"""The rows that a spelling stands for, in the order in which an adapter has them."""

SpelledLayers = Iterator[tuple[str, Target]]
"""Paths of layers as others spell them, with the rows that they stand for."""


@dataclass(frozen=True)
class Layers:
    """The layers of one part of a model by their paths in it, and what stands before these."""

    prefix: str
    rows: Mapping[str, int]

    def whole(self, path: str) -> Target:
        """All rows of one layer."""
        return (Rows(self.prefix + path, 0, self.rows[path]),)

    def split(self, path: str, *counts: int) -> list[Target]:
        """Ranges of rows of one layer, one behind the other."""
        starts = [sum(counts[:i]) for i in range(len(counts))]
        return [(Rows(self.prefix + path, start, count),)
                for start, count in zip(starts, counts, strict=True)]

    def swapped(self, path: str) -> Target:
        """The two halves of a layer, the second first."""
        half = self.rows[path] // 2
        return (Rows(self.prefix + path, half, half), Rows(self.prefix + path, 0, half))


def own_spelling(layers: Layers) -> SpelledLayers:
    """The paths that the layers have here."""
    for path in layers.rows:
        yield path, layers.whole(path)


def spelled_by(layers: Layers, table: Table) -> SpelledLayers:
    """Names of the tensors that a table of keys makes the layers of."""
    for path in layers.rows:
        starred = _NUMBER.sub("*", path, count=1)
        number = match[0] if (match := _NUMBER.search(path)) else ""
        rule = next((table[name] for name in (f"{path}.weight", f"{starred}.weight",
                                              f"{starred}.scale") if name in table), ())
        names = [part.name.replace("*", number).rpartition(".")[0] for part in rule]
        if len(rule) == 1:
            yield names[0], layers.whole(path)
        elif len(set(names)) == 1:
            yield names[0], layers.swapped(path)
        elif rule:
            yield from zip(names, layers.split(path, *_heights(layers, path, len(rule))),
                           strict=True)


def _heights(layers: Layers, path: str, count: int) -> list[int]:
    """Rows of each of the layers that are fused here: queries, keys, values, and what is left."""
    if path.endswith(".qkv") and (width := layers.rows.get(path.replace(".qkv", ".out"))):
        shared = (layers.rows[path] - width) // 2  # fewer keys than queries, perhaps
        return [width, shared, shared]
    if path.endswith(".linear1"):
        width = layers.rows[path.replace(".linear1", ".linear2")]
        return [width, width, width, layers.rows[path] - 3 * width]
    return [layers.rows[path] // count] * count
