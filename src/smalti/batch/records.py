"""Records: what one picture each is made of, checked before any work, and known by a hash.

A row may ask for several pictures: `batch_size`, and sweeps. A column `seed*` has several values
(a list, in a text `1 | 2 | 3` or `1..3`); of several such columns every combination is made.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from smalti.batch.table import BatchRow
from smalti.dataclass import dataclass
from smalti.diffusion.images import given as pictures
from smalti.diffusion.keywords import check_known
from smalti.diffusion.kinds import FlagKind, ProjectionKind, WholeKind
from smalti.diffusion.options import (
    ALIASES,
    KIN,
    OPTIONS,
    PICTURE_NAMES,
    SEVERAL_PICTURES,
    PictureOptions,
)
from smalti.diffusion.random import SEED_END
from smalti.errors import InputError, first_of
from smalti.fetch import is_name

RECORDS_MAX = 1_000_000
"""A sweep that makes more is a slip: at a second a picture it takes eleven days."""
SWEPT = "*"
"""What the name of a column ends in that has several values."""
FILES = (*PICTURE_NAMES, "hires_upscaler")
"""Options that are files; a record is known by the content of those that are pictures."""
CONTROL = {"model", "image", "strength", "start", "end", "edges"}
"""What is said of a ControlNet."""
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")
DIGITS = 16
"""Of the hash, in the name of a picture: a million of them have the same with a chance of 1 in 37
million."""
_RANGE = re.compile(r"\s*(\d+)\.\.(\d+)\s*")


@dataclass(frozen=True)
class BatchRecord:
    """One picture: its `number` among all, from 1, the `place` of its row, the options as
    `PictureOptions` takes them, and their texts by name. `digest` is the hash of everything that
    decides it."""

    number: int
    place: str
    options: Mapping[str, Any]
    texts: Mapping[str, str]
    digest: str

    @property
    def file(self) -> str:
        """What its picture is called."""
        return f"{self.digest[:DIGITS]}.png"


def records(rows: Sequence[BatchRow], folder: Path, loading: str, usual: Mapping[str, Any],
            sweeps: Mapping[str, str]) -> list[BatchRecord]:
    """The records of all rows; files in them are looked for in `folder`, `loading` is text that
    tells models and adapters apart.

    `usual` are options of rows that say nothing else, `sweeps` columns of all rows besides. Raises
    InputError that names the first ten rows that cannot be made, and why.
    """
    found: list[BatchRecord] = []
    wrong: list[str] = []
    drawn: Counter[str] = Counter()
    contents: dict[Path, str] = {}
    for row in rows:
        try:
            for values in _combinations(row, usual, sweeps):
                for options in _singles(_checked(values, folder)):
                    found.append(_record(len(found) + 1, row.place, options, loading, drawn,
                                         contents))
                    if len(found) > RECORDS_MAX:
                        raise InputError(f"it asks for more than {RECORDS_MAX} pictures")
        except InputError as error:
            wrong.append(f"{row.place}: {error}")
            if len(found) > RECORDS_MAX:
                break
    if wrong:
        raise InputError(f"{len(wrong)} of {len(rows)} rows cannot be made:\n  "
                         + first_of(wrong, separator="\n  "))
    return found


def _combinations(row: BatchRow, usual: Mapping[str, Any], sweeps: Mapping[str, str]
                  ) -> Iterator[dict[str, Any]]:
    """The values of each picture of a row: every combination of those that are swept."""
    plain: dict[str, Any] = {}
    swept: dict[str, list[Any]] = {}
    for name, value in row.values.items():
        if name.endswith(SWEPT):
            swept[_option(name[:-1])] = _several(name[:-1], value)
        else:
            plain[_option(name)] = _read(name, value) if row.texts else value
    swept |= {_option(name): _several(name, text) for name, text in sweeps.items()}
    both = set(plain) & set(swept)
    if both:
        raise InputError(f"{', '.join(sorted(both))} is given, and swept over; give one of them")
    for values in itertools.product(*swept.values()):
        yield {**usual, **plain, **dict(zip(swept, values))}


def _option(name: str) -> str:
    """The option that a column is of. Raises InputError for none."""
    own = ALIASES.get(name, name)
    check_known([own], OPTIONS, KIN)
    return own


def _several(name: str, value: Any) -> list[Any]:
    """The values of a sweep."""
    if isinstance(value, list):
        found = value
    elif isinstance(value, str):
        steps = _RANGE.fullmatch(value)
        if steps and isinstance(OPTIONS[_option(name)].kind, WholeKind):
            first, last = int(steps[1]), int(steps[2])
            if not first <= last < first + RECORDS_MAX:
                raise InputError(f"{name}{SWEPT} is {value!r}; expected first..last")
            return [*range(first, last + 1)]
        found = [_read(name, each.strip()) for each in value.split("|")]
    else:
        found = []
    if not found:
        raise InputError(f"{name}{SWEPT} is {value!r:.80}; expected several values: a list, or "
                         f"text such as 1 | 2 | 3 or 1..3")
    return found


def _read(name: str, text: str) -> Any:
    """What a text of a table says of an option. Raises InputError."""
    own = _option(name)
    kind = OPTIONS[own].kind
    try:
        if isinstance(kind, FlagKind | ProjectionKind) and text.casefold() in (*TRUE, *FALSE):
            return text.casefold() in TRUE
        if isinstance(kind, FlagKind):
            raise ValueError(text)
        return json.loads(text) if own == "controls" else kind.read(text)
    except ValueError:
        example = kind.written(OPTIONS[own].default) if OPTIONS[own].default else ""
        raise InputError(f"{name} is {text!r:.80}; expected " + (
            "true or false" if isinstance(kind, FlagKind) else
            "a number" if not example else f"such as {example}")) from None


def _checked(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The options in the form that `PictureOptions` brings them into, with whole paths."""
    given = {name: value for name, value in values.items() if name != "controls"}
    for name in FILES:
        if name in SEVERAL_PICTURES and isinstance(given.get(name), list | tuple):
            given[name] = [_file(name, folder, each) for each in given[name]]
        elif given.get(name) is not None:
            given[name] = _file(name, folder, given[name])
    asked = PictureOptions.of(**given)
    found = {name: OPTIONS[name].checked(getattr(asked, name)) for name in OPTIONS
             if OPTIONS[name].given(getattr(asked, name)) or name == "prompt"}
    if "controls" in values:
        found["controls"] = _controls(values["controls"], folder)
    return found


def _file(name: str, folder: Path, given: object) -> str:
    """The whole path of a file; the name of a model that is fetched by it stays."""
    if not isinstance(given, str) or "\0" in given:
        raise InputError(f"{name} is {given!r:.80}; expected the path of a file")
    path = folder / given
    if path.is_file():
        return str(path.absolute())
    if name in PICTURE_NAMES or not is_name(given):
        raise InputError(f"{name} is {path}, which is no file")
    return given


def _controls(told: Any, folder: Path) -> list[dict[str, Any]]:
    """ControlNets as objects with the paths of a model and a picture."""
    if not isinstance(told, list) or not all(isinstance(each, dict) for each in told):
        raise InputError(f'controls is {told!r:.80}; expected a list such as [{{"model": '
                         f'"canny.safetensors", "image": "edges.png", "strength": 0.8}}]')
    found = []
    for each in told:
        if set(each) - CONTROL or not {"model", "image"} <= set(each):
            raise InputError(f"a control has {sorted(each)}; expected model, image, and any of "
                             f"{sorted(CONTROL - {'model', 'image'})}")
        found.append({**each, **{name: _file(name, folder, each[name])
                                 for name in ("model", "image")}})
    return found


def _singles(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pictures of a batch one by one, with seeds that follow one another."""
    count = options.pop("batch_size", 1)
    name = "variation_seed" if options.get("variation_strength") else "seed"
    first = options.get(name, OPTIONS[name].default)
    for number in range(count):
        if count == 1 or first in (None, -1):
            yield options
        else:
            yield {**options, name: (first + number) % SEED_END}


def _record(number: int, place: str, options: dict[str, Any], loading: str, drawn: Counter[str],
            contents: dict[Path, str]) -> BatchRecord:
    """A record with its hash. A seed that is to be drawn is drawn from the hash of the rest, so
    that it is the same when the table is read again; of equal rows each has another one."""
    texts = {name: json.dumps(value, sort_keys=True) if name == "controls"
             else OPTIONS[name].kind.written(value) for name, value in options.items()}
    known = {name: " ".join(_content(Path(each), contents) for each in pictures(options[name]))
             if name in PICTURE_NAMES else text for name, text in texts.items()}
    for at, control in enumerate(options.get("controls", ())):
        known[f"control {at}"] = _content(Path(control["image"]), contents)
    for name in ("seed", "variation_seed"):
        absent = name == "variation_seed" and options.get("variation_strength") \
            and name not in options
        if options.get(name) == -1 or absent:
            rest = _hash({**known, name: "", "loading": loading})
            drawn[rest] += 1
            value = int(_hash({"rest": rest, "at": str(drawn[rest])})[:8], 16)
            options = {**options, name: value}
            texts[name] = known[name] = str(value)
    return BatchRecord(number, place, options, texts, _hash({**known, "loading": loading}))


def _hash(known: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _content(path: Path, contents: dict[Path, str]) -> str:
    """The hash of a file, read once."""
    if path not in contents:
        try:
            contents[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    return contents[path]


def distinct(found: Sequence[BatchRecord]) -> list[BatchRecord]:
    """The records without those that ask for a picture which one before asks for."""
    first: dict[str, BatchRecord] = {}
    for record in found:
        first.setdefault(record.digest, record)
    return [*first.values()]

