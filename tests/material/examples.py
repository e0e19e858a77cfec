"""How many examples generated tests draw: all of them in the sweep, a part in other runs."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

ALL = 100
"""Examples of a test that says no number, as Hypothesis draws them."""
PART = 35
"""Of a hundred, those that runs other than the sweep draw."""


def examples(most: int, **more: Any) -> settings:
    """Settings of a test of which the sweep draws `most` examples, and other runs their part."""
    return settings(max_examples=-(-most * settings.default.max_examples // ALL), **more)
