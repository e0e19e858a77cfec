"""A length of time as an option."""

from __future__ import annotations

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """Seconds within bounds. NaN, which compares with none of them, is refused, too.

    >>> Seconds(1).convert("2.5", None, None)
    2.5
    >>> Seconds(1).convert("nan", None, None)
    Traceback (most recent call last):
        ...
    click.exceptions.BadParameter: nan is not in the range x>=1.
    """

    def convert(self, value: Any, param: click.Parameter | None,
                ctx: click.Context | None) -> float:
        """The number that a text says. Raises click's error for one that is outside."""
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{found} is not in the range {self._describe_range()}.", param, ctx)
        return found
