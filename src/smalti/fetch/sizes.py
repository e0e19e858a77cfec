"""Sizes of files, in words for people."""

from __future__ import annotations


def shown_bytes(size: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> shown_bytes(6_938_040_682), shown_bytes(2_500_000), shown_bytes(812)
    ('6.94 GB', '2.5 MB', '1 kB')
    """
    if size >= 1e9:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(1, round(size / 1e3))} kB"
