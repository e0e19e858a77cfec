"""Short names of models: a table of where each is, and of what else it takes to make a picture.

The table is `catalogue.json` beside this module; `bench/catalogue.py` compares it with what the
sources say, and fills in sizes and hashes, where there is a network.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import field, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from smalti.dataclass import dataclass
from smalti.errors import FetchError
from smalti.fetch.address import is_address, parsed

TABLE = Path(__file__).with_name("catalogue.json")
NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
"""What short names look like: no path, no address, no file."""
KINDS = ("model", "vae", "text-encoder", "adapter", "upscaler", "preview")
WITH = ("vae", "text_encoders", "loras", "prediction", "defaults")
"""What a model is loaded with besides, by the names of `Pipeline.load`."""
NAMING = WITH[:3]
"""Of these, what has short names."""
SHORT = re.compile("(?:[0-9a-f]{64})?")
SIMILAR = 0.75
"""Of difflib's measure from 0 to 1, above which a text is taken for a slip of a short name."""


@dataclass(frozen=True)
class CatalogueEntry:
    """A model by its short name.

    `source` is its address, `family` that of `smalti.families`, "" for what several share.
    `licence` is what its source calls that of all its files, which may forbid more than who made
    one of them does; `accept` is whether it has to be accepted there. `bytes` and `sha256` are
    those of the file, where they were looked up. `needs` says what a model is loaded with besides,
    by the names of `Pipeline.load`, and with short names for files.
    """

    name: str
    title: str
    kind: str
    source: str
    family: str = ""
    licence: str = ""
    accept: bool = False
    bytes: int | None = None
    sha256: str = ""
    needs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """What a search looks at."""
        return " ".join((self.name, self.title, self.kind, self.family, self.source)).lower()


@cache
def entries() -> Mapping[str, CatalogueEntry]:
    """All entries by name."""
    return read(TABLE.read_text(encoding="utf-8"))


def read(text: str) -> Mapping[str, CatalogueEntry]:
    """A table of entries. Raises FetchError that says what is wrong with it."""
    known = {each.name for each in fields(CatalogueEntry)}
    found: dict[str, CatalogueEntry] = {}
    for told in json.loads(text):
        unknown = set(told) - known
        if unknown:
            raise FetchError(f"the catalogue says {sorted(unknown)} of {told.get('name')!r}; known:"
                             f" {sorted(known)}")
        entry = CatalogueEntry(**told)
        if entry.name in found:
            raise FetchError(f"the catalogue has {entry.name!r} twice")
        found[entry.name] = entry
    for entry in found.values():
        _check(entry, found)
    return MappingProxyType(found)


def _check(entry: CatalogueEntry, all_: Mapping[str, CatalogueEntry]) -> None:
    """Raise FetchError for an entry that cannot be used."""
    def wrong(what: str) -> FetchError:
        return FetchError(f"the catalogue's {entry.name!r} has {what}")

    if not NAME.fullmatch(entry.name):
        raise wrong("a name that is none")
    if entry.kind not in KINDS:
        raise wrong(f"the kind {entry.kind!r}; known: {', '.join(KINDS)}")
    parsed(entry.source)
    if not SHORT.fullmatch(entry.sha256) or entry.bytes is not None and entry.bytes <= 0:
        raise wrong("a hash or a size that is none")
    if set(entry.needs) - set(WITH):
        raise wrong(f"needs {sorted(set(entry.needs) - set(WITH))}; known: {', '.join(WITH)}")
    if not isinstance(entry.needs.get("defaults", {}), dict):
        raise wrong(f"defaults {entry.needs['defaults']!r}; expected an object of settings")
    for name in _named(entry):
        if name not in all_:
            raise wrong(f"needs {name!r}, which the catalogue has not")


def _named(entry: CatalogueEntry) -> list[Any]:
    """The short names that an entry needs."""
    return [each for what in NAMING for each in _several(entry.needs.get(what))]


def needed(entry: CatalogueEntry) -> list[CatalogueEntry]:
    """What a model is loaded with besides."""
    return [entries()[name] for name in _named(entry)]


def _several(value: object) -> list[Any]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list) else [""]


def entry(text: object) -> CatalogueEntry | None:
    """The entry that a text names; None where it names none."""
    return entries().get(text) if isinstance(text, str) else None


def address(text: str) -> str | None:
    """The address that a text is, or that a short name stands for; None for a path.

    >>> address("hf:org/name"), address("models/a.safetensors")
    ('hf:org/name', None)
    """
    if is_address(text):
        return text
    found = entry(text)
    return None if found is None else found.source


def short(address: str) -> str:
    """What the catalogue calls an address; itself where it has none."""
    return next((each.name for each in entries().values() if each.source == address), address)


def near(text: str) -> list[str]:
    """Short names that a text may be a slip of.

    >>> near("sdxl-trubo"), near("models/sdxl-trubo")
    (['sdxl-turbo'], [])
    """
    return difflib.get_close_matches(text, entries(), 3, SIMILAR) if NAME.fullmatch(text) else []


def search(words: str) -> list[CatalogueEntry]:
    """Entries with all of some words."""
    return [each for each in entries().values()
            if all(word in each.words for word in words.lower().split())]
