"""What the values of an option may be: how one is checked, and how it stands in texts.

A kind says what it takes (`checked`, with a message that says what was given and what was
expected), how a value stands in the text of a picture (`written`, `read`), and what it is as JSON
Schema (`schema`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, Protocol

from smalti.dataclass import dataclass
from smalti.diffusion.guidance import Projected
from smalti.errors import InputError

Schema = dict[str, Any]
POSITIVE = r"\d+\.?\d*(?:e[-+]?\d+)?"
"""A number from 0 on, as `plain` writes it."""
NEAR_MIN = 0.75
"""Of difflib's measure from 0 to 1, from which on a name is taken for a slip of another one: of
euler with a letter less it is 0.89, of gpu for cpu 0.67."""
NAME_CHARACTERS_MAX = 100
"""Of a name that near ones are looked for of, in time that grows with it."""


class ValueKind(Protocol):
    """What the values of an option may be."""

    def checked(self, what: str, value: Any) -> Any:
        """The value of the option `what`, in one form. Raises InputError."""

    def written(self, value: Any) -> str:
        """A value as it stands in the text of a picture."""

    def read(self, text: str) -> Any:
        """What stands in a text, or on the command line. Raises ValueError for what is none."""

    def schema(self) -> Schema:
        """What is to be known of a value in JSON."""


def plain(number: float) -> str:
    """A number as short as it can be without loss.

    >>> plain(7.0), plain(0.1), plain(1 / 3)
    ('7', '0.1', '0.3333333333333333')
    """
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))


def check_name(what: str, name: object, known: Collection[str]) -> None:
    """Raise InputError listing the known names, and one that is near, when `name` is none of them.

    >>> check_name("rng", "gpu", ("cpu", "cuda"))
    Traceback (most recent call last):
        ...
    smalti.errors.InputError: rng is 'gpu'; known: cpu, cuda
    >>> check_name("sampler", "eulr", ("euler", "ddim"))
    Traceback (most recent call last):
        ...
    smalti.errors.InputError: sampler is 'eulr'; known: euler, ddim; did you mean euler?
    """
    if not isinstance(name, str) or name not in known:
        near = get_close_matches(name[:NAME_CHARACTERS_MAX], known, 1, NEAR_MIN) if isinstance(
            name, str) else []
        raise InputError(f"{what} is {name!r:.200}; known: {', '.join(known)}"
                         + "".join(f"; did you mean {each}?" for each in near))


@dataclass(frozen=True)
class TextKind:
    """Text; messages call it `title`."""

    title: str

    def checked(self, what: str, value: Any) -> str:
        if not isinstance(value, str):
            raise InputError(f"{self.title} is {value!r}; expected text")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise InputError(f"{self.title} holds bytes that are no UTF-8 text ({value!a:.80}); "
                             f"expected text, so check the encoding of what it was made from")
        return value

    def written(self, value: str) -> str:
        return value

    def read(self, text: str) -> str:
        return text

    def schema(self) -> Schema:
        return {"type": "string"}


@dataclass(frozen=True)
class WholeKind:
    """A whole number from `low` to `high`, numpy's too; `more` ends the message."""

    low: int
    high: int
    more: str = ""

    def checked(self, what: str, value: Any) -> int:
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not whole or not self.low <= value <= self.high:
            raise InputError(f"{what} is {value!r}; expected a whole number from {self.low} to "
                             f"{self.high}{self.more}")
        return int(value)

    def written(self, value: int) -> str:
        return str(value)

    def read(self, text: str) -> int:
        return int(text)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class SeedKind(WholeKind):
    """A whole number, or -1, which draws one; also anything that tells its first seed, such as a
    generator of torch."""

    def checked(self, what: str, value: Any) -> int:
        first = getattr(value, "initial_seed", None)
        value = first() if callable(first) else value
        return -1 if value == -1 and not isinstance(value, bool) else super().checked(what, value)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": -1, "maximum": self.high}


@dataclass(frozen=True)
class NumberKind:
    """A number from `low`, or `above` it, to `high`, numpy's too; `expected` is what a message says
    of it, `more` what ends one."""

    low: float
    high: float
    more: str = ""
    above: bool = False
    expected: str = ""

    def checked(self, what: str, value: Any) -> float:
        real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not real or not self.low <= value <= self.high or (self.above and value == self.low):
            raise InputError(f"{what} is {value!r}; expected {self._expected}{self.more}")
        return float(value)

    @property
    def _expected(self) -> str:
        return self.expected or (
            f"a number above {self.low:g}, up to {self.high:g}" if self.above else
            f"a number from {self.low:g} to {self.high:g}")

    def written(self, value: float) -> str:
        return plain(value)

    def read(self, text: str) -> float:
        return float(text)

    def schema(self) -> Schema:
        least = "exclusiveMinimum" if self.above else "minimum"
        return {"type": "number", least: self.low, "maximum": self.high}


@dataclass(frozen=True)
class NameKind:
    """One of the `known` names; `labels` are those that texts have instead, where they are others.

    `spelled` finds the name of a spelling, so that more of them are taken than the known names.
    """

    known: Collection[str]
    labels: Mapping[str, str] = field(default_factory=dict)
    spelled: Callable[[str], object] | None = None

    def checked(self, what: str, value: Any) -> str:
        if self.spelled is not None and isinstance(value, str):
            return value  # which of them is checked where it is used
        check_name(what, value, self.known)
        return value

    def written(self, value: str) -> str:
        return self.labels.get(value, value)

    def read(self, text: str) -> str:
        names = {label.casefold(): name for name, label in self.labels.items()}
        return names.get(text.casefold(), text)

    def schema(self) -> Schema:
        if self.spelled is not None:
            return {"type": "string", "examples": list(self.known)}
        return {"type": "string", "enum": list(self.known)}


@dataclass(frozen=True)
class FlagKind:
    """Yes or no; `label` is what stands in a text for yes."""

    label: str = "True"

    def checked(self, what: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InputError(f"{what} is {value!r}; expected True or False")
        return value

    def written(self, value: bool) -> str:
        return self.label

    def read(self, text: str) -> bool:
        return text.casefold() == self.label.casefold()

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class RowKind:
    """So many numbers from 0 in a row, one for each of `names`, each of one kind; a text has what
    is `between` them."""

    names: tuple[str, ...]
    each: WholeKind | NumberKind
    example: str
    between: str = ""

    def checked(self, what: str, value: Any) -> tuple[Any, ...]:
        row = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
        try:
            if len(row) == len(self.names):
                return tuple(self.each.checked(what, number) for number in row)
        except InputError:
            pass  # the message below says it of all
        limits = f"from {self.each.low:g} to {self.each.high:g}"
        raise InputError(f"{what} is {value!r}; expected {', '.join(self.names)}, each a number "
                         f"{limits}, such as {self.example}")

    def written(self, value: Sequence[Any]) -> str:
        texts = [self.each.written(number) for number in value]
        return "".join(map(str.__add__, texts, self.between.ljust(len(texts))))[:-1]

    def read(self, text: str) -> tuple[Any, ...]:
        if not re.fullmatch(f"{POSITIVE}(?:[ -]{POSITIVE}){{{len(self.names) - 1}}}", text):
            raise ValueError(f"numbers such as {self.example}")
        return tuple(map(self.each.read, re.findall(POSITIVE, text)))

    def schema(self) -> Schema:
        return {"type": "array", "items": self.each.schema(), "minItems": len(self.names),
                "maxItems": len(self.names)}


@dataclass(frozen=True)
class NumbersKind:
    """Any number of numbers, which messages call `words`, and one of them `one`; on the command
    line they have commas between them, as in the `example`."""

    each: WholeKind | NumberKind
    words: str
    one: str
    example: str

    def checked(self, what: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise InputError(f"{what} is {value!r}; expected {self.words}, such as "
                             f"({self.example.replace(',', ', ')})")
        return tuple(self.each.checked(self.one, number) for number in value)

    def written(self, value: Sequence[Any]) -> str:
        return " ".join(map(self.each.written, value))

    def read(self, text: str) -> tuple[Any, ...]:
        number = r"\d{1,4}" if isinstance(self.each, WholeKind) else POSITIVE
        if not re.fullmatch(f"{number}([ ,]{number})*", text):
            raise ValueError(f"{self.words}, such as {self.example}")
        return tuple(map(self.each.read, re.split("[ ,]", text)))

    def schema(self) -> Schema:
        return {"type": "array", "items": self.each.schema()}


@dataclass(frozen=True)
class ProjectionKind:
    """Adaptive projected guidance: its numbers, True for the usual ones, None for none."""

    def checked(self, what: str, value: Any) -> Projected | None:
        if value is True:
            return Projected()
        if value is False or value is None:
            return None
        if isinstance(value, Sequence) and len(value) == 3 and not isinstance(value, str):
            value = Projected(*value)
        numbers = (value.along, value.norm_max, value.momentum) if isinstance(
            value, Projected) else (math.nan,)
        if not all(isinstance(number, Real) and math.isfinite(number) for number in numbers):
            raise InputError(f"{what} is {value!r}; expected True, or smalti.Projected of three "
                             f"numbers")
        return value

    def written(self, value: Projected) -> str:
        return " ".join(map(plain, (value.along, value.norm_max, value.momentum)))

    def read(self, text: str) -> Projected:
        along, norm_max, momentum = map(float, text.split())
        return Projected(along, norm_max, momentum)

    def schema(self) -> Schema:
        numbers = {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}
        return {"anyOf": [{"type": "boolean"}, numbers]}


@dataclass(frozen=True)
class OpenedKind:
    """What is open already, or the path of a file: it is checked where it is opened. There may be
    `several` as a list."""

    json: Schema
    several: bool = False

    def checked(self, what: str, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    def written(self, value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def read(self, text: str) -> str:
        return text

    def schema(self) -> Schema:
        return self.json
