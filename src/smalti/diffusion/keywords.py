"""Methods that take a record of options as keywords: each option is named once, in the record.

    @taking(PictureOptions)
    def steps(self, asked: PictureOptions) -> Iterator[Step]: ...

    pipe.steps("a red apple", steps=20)    # names, types and defaults are those of the record
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from smalti.errors import UnknownOptionError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")
NAME_CHARACTERS_MAX = 200
"""Of a name that is looked at and told: programs are sent names of any length."""
SIMILAR = 0.6
"""Of difflib's measure from 0 to 1, above which a name is taken for a slip; its own usual one."""


class OptionRecord(Protocol[P, R_co]):
    """The class of a record of options: its fields are the arguments, `of` makes and checks one."""

    def __call__(self, *args: P.args, **given: P.kwargs) -> R_co:
        """A record of these fields."""

    def of(self, *args: Any, **given: Any) -> R_co:
        """A record of these fields, by whatever names they are known."""


def taking(record: OptionRecord[P, R]) -> Callable[[Callable[[S, R], T]],
                                                   Callable[Concatenate[S, P], T]]:
    """A method of a record becomes one of its fields as arguments; `record.of` makes it of them."""

    def keywords(method: Callable[[S, R], T]) -> Callable[Concatenate[S, P], T]:
        @functools.wraps(method)
        def call(self: S, *args: P.args, **given: P.kwargs) -> T:
            return method(self, record.of(*args, **given))

        own, *_ = inspect.signature(method).parameters.values()
        fields = inspect.signature(record).parameters.values()
        vars(call)["__signature__"] = inspect.Signature([own, *fields])
        return call

    return keywords


def check_known(names: Collection[str], known: Collection[str],
                kin: Mapping[str, str] = MappingProxyType({})) -> None:
    """Raise UnknownOptionError for a name that is none of the `known`, with the one that is near;
    `kin` are names of other programs, with those that are meant.

    >>> check_known(["stepz"], ["steps", "seed"])
    Traceback (most recent call last):
        ...
    smalti.errors.UnknownOptionError: there is no option stepz; did you mean steps?
    """
    for name in names:
        if name in known:
            continue
        lower = name[:NAME_CHARACTERS_MAX].lower()
        near = [kin[lower]] if lower in kin else difflib.get_close_matches(
            lower, list(known), n=1, cutoff=SIMILAR)
        raise UnknownOptionError(f"there is no option {name[:NAME_CHARACTERS_MAX]}" + (
            f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known) or 'none'}"))
