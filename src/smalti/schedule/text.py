"""Schedules as text that parses back: what `str` of one gives."""

from __future__ import annotations

import ast
from dataclasses import fields

from smalti.errors import InputError
from smalti.schedule.schedule import (
    AttentionSchedule,
    ContractionSchedule,
    DepthwiseSchedule,
    MapSchedule,
    MomentsSchedule,
    ReductionSchedule,
    Schedule,
)

KINDS = {kind.__name__: kind for kind in (
    AttentionSchedule, ContractionSchedule, DepthwiseSchedule, MapSchedule, MomentsSchedule,
    ReductionSchedule)}
TYPES = {"int": int, "bool": bool, "str": str}
NUMBER_MAX = 1 << 31


def parse(text: str) -> Schedule:
    """The schedule whose text is `text`. Raises InputError for anything else.

    >>> from smalti.schedule import MapSchedule
    >>> parse("MapSchedule(grain=4, inner=2)") == MapSchedule(4, inner=2)
    True
    """
    expected = f"{', '.join(KINDS)} with fields as name=value"
    try:
        call = ast.parse(text, mode="eval").body
        name = call.func.id
        given = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
        other = len(call.args) + len(call.keywords) - len(given)
    except (AttributeError, SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{text[:200]!r} is no schedule; expected one of {expected}") from None
    if name not in KINDS or other:
        raise InputError(f"{text[:200]!r} is no schedule; expected one of {expected}")
    kinds = {field.name: TYPES[field.type] for field in fields(KINDS[name])}
    for field, value in given.items():
        if type(value) is not kinds.get(field):
            raise InputError(f"{name} has no {field}={value!r}; its fields are "
                             + ", ".join(f"{n}: {kind.__name__}" for n, kind in kinds.items()))
        if kinds[field] is int and not (field != "winograd") <= value <= NUMBER_MAX:
            raise InputError(f"{name} has {field}={value}, which is no size")
    try:
        return KINDS[name](**given)
    except TypeError as error:
        raise InputError(f"{text[:200]!r} is no schedule: {error}") from None
