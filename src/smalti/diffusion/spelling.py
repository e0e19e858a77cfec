"""Names as users write them: one thing, several spellings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from smalti.errors import InputError


class HasSpellings(Protocol):
    """Something with a name of its own and other spellings of it."""

    @property
    def name(self) -> str:
        """The name that Smalti uses."""
        ...

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other spellings, in lower case, with underscores for blanks."""
        ...


Item = TypeVar("Item", bound=HasSpellings)


class Spelled(Mapping[str, Item], Generic[Item]):
    """Name -> item. Iteration gives each item's own name; look-up takes every spelling.

    Upper case, blanks and hyphens do not matter.

    >>> from smalti.diffusion.samplers import SAMPLERS
    >>> list(SAMPLERS)[0], "Euler a" in SAMPLERS, SAMPLERS["DPM++ 2M"].name
    ('euler', True, 'dpm++_2m')
    """

    def __init__(self, kind: str, items: Iterable[Item]) -> None:
        self.kind = kind
        self._items = {item.name: item for item in items}
        self._names = {
            spelling: name
            for name, item in self._items.items()
            for spelling in (name, *item.aliases)
        }

    def __getitem__(self, name: str) -> Item:
        return self._items[self._names[_plain(name)]]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _plain(name) in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def find(self, name: str) -> Item:
        """The item of a name. Raises `InputError` that lists the known names."""
        if name not in self:
            raise InputError(f"unknown {self.kind} {name!r}; known: {', '.join(self)}")
        return self[name]


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_").removeprefix("sample_")
