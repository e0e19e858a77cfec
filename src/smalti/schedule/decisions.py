"""The decisions of a schedule as separate numbers, by which a search compares candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass

from smalti.schedule.text import AnySchedule


def decisions(schedule: AnySchedule) -> dict[str, int | bool | str]:
    """The fields of a schedule by name.

    If a field is a record itself, as the algorithm of a contraction is, it gives the record's name
    and, as further entries, the record's fields.

    >>> from smalti.schedule import ContractionSchedule, Winograd
    >>> found = decisions(ContractionSchedule(1, 8, 16, 2, 64, 14, 2, algorithm=Winograd(4)))
    >>> found["tile_y"], found["algorithm"], found["size"], found["transformed"]
    (8, 'Winograd', 4, 'binding')
    """
    found: dict[str, int | bool | str] = {}
    for field in fields(schedule):
        value = getattr(schedule, field.name)
        if is_dataclass(value):
            found[field.name] = type(value).__name__
            found |= {inner.name: getattr(value, inner.name) for inner in fields(value)}
        else:
            found[field.name] = value
    return found


def numbered(schedules: Sequence[AnySchedule]) -> list[dict[str, int]]:
    """The decisions of schedules of one kind as whole numbers, all dicts with the same names.

    A word becomes its index among the words that occur, sorted; a decision that a schedule does not
    have becomes 0.

    >>> from smalti.schedule import ContractionSchedule, InPlace, Winograd
    >>> one = ContractionSchedule(1, 8, 16, 2, 64, 14, 2, algorithm=InPlace())
    >>> other = ContractionSchedule(1, 8, 16, 2, 64, 14, 2, algorithm=Winograd(4))
    >>> [(found["algorithm"], found["size"]) for found in numbered([one, other])]
    [(0, 0), (1, 4)]
    """
    rows = [decisions(schedule) for schedule in schedules]
    names = list(dict.fromkeys(name for row in rows for name in row))
    words = {name: sorted({row[name] for row in rows if isinstance(row.get(name), str)})
             for name in names}
    return [{name: words[name].index(row[name]) if isinstance(row.get(name), str)
             else int(row.get(name, 0)) for name in names} for row in rows]
