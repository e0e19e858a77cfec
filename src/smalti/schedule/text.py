"""Parses schedules from the text that `str` of a schedule gives."""

from __future__ import annotations

import ast
from dataclasses import fields
from typing import get_args

from smalti.errors import InputError
from smalti.schedule.group import GroupSchedule
from smalti.schedule.schedule import TRANSFORMED, Algorithm, Schedule

AnySchedule = Schedule | GroupSchedule
"""The decisions for a kernel, on a CPU or on a GPU."""
KINDS = {kind.__name__: kind for kind in (*get_args(Schedule), *get_args(GroupSchedule))}
ALGORITHMS = {kind.__name__: kind for kind in get_args(Algorithm)}
TYPES = {"int": int, "bool": bool, "str": str}
WORDS = {"transformed": TRANSFORMED}
"""The words that are allowed, for fields that hold one of a few words."""
ZEROS = {"subgroup", "pad", "channels"}
"""Fields that may be 0, which means none; all other numbers are at least 1."""
NUMBER_MAX = 1 << 31
"""The largest number of a field: those of instructions have 32 bits."""


def parse(text: str) -> AnySchedule:
    """The schedule, of a CPU or a GPU, whose text is `text`. Raises InputError for anything else.

    >>> from smalti.schedule import MapSchedule
    >>> parse("MapSchedule(grain=4, inner=2)") == MapSchedule(4, inner=2)
    True
    """
    try:
        return _record(ast.parse(text, mode="eval").body, KINDS)
    except (_NoRecord, SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{text[:200]!r} is no schedule; expected one of {', '.join(KINDS)} with "
                         f"fields as name=value") from None
    except TypeError as error:
        raise InputError(f"{text[:200]!r} is no schedule: {error}") from None


class _NoRecord(Exception):
    """An expression is not the name of a record with fields in brackets."""


def _record(call: ast.expr, kinds: dict[str, type]):
    """The record that an expression such as `MapSchedule(grain=4)` spells, of one of `kinds`."""
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            and call.func.id in kinds):
        raise _NoRecord
    name = call.func.id
    given = {each.arg: _value(each.value) for each in call.keywords}
    if call.args or len(given) < len(call.keywords):
        raise _NoRecord
    known = {field.name: str(field.type) for field in fields(kinds[name])}
    for field, value in given.items():
        if not _fits(value, known.get(field)):
            raise InputError(f"{name} has no {field}={value!r}; its fields are "
                             + ", ".join(f"{n}: {kind}" for n, kind in known.items()))
        if known[field] == "int" and not (field not in ZEROS) <= value <= NUMBER_MAX:
            raise InputError(f"{name} has {field}={value}, which is no size")
        if value not in WORDS.get(field, (value,)):
            raise InputError(f"{name} has no {field}={value!r}, only "
                             f"{', '.join(map(repr, WORDS[field]))}")
    return kinds[name](**given)


def _value(expr: ast.expr):
    return _record(expr, ALGORITHMS) if isinstance(expr, ast.Call) else ast.literal_eval(expr)


def _fits(value: object, kind: str | None) -> bool:
    """True if `value` is of the type whose name is `kind`."""
    return isinstance(value, Algorithm) if kind == "Algorithm" else type(value) is TYPES.get(kind)
