"""All targets, by name: every record of `TARGETS` in the `target.py` of a folder of `codegen/`.

They are found, not listed: a new target is the folder of its code generator, which says in `NAMES`
what it is called, that of its driver in `runtime/`, and a line in `runtime/drivers.py`. See
docs/compiler.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules

from smalti import codegen
from smalti.codegen.target import Target
from smalti.errors import InputError


class _Targets(Mapping[str, Target]):
    """The records by their names; a code generator is loaded when one of its own is asked for, so
    that a program for the CPU does not wait for those of GPUs."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}
        self._known: dict[str, Target] = {}
        for module in iter_modules(codegen.__path__, f"{codegen.__name__}."):
            if module.ispkg:
                names = getattr(import_module(module.name), "NAMES", ())
                self._folders |= dict.fromkeys(names, module.name)

    def __getitem__(self, name: str) -> Target:
        if name not in self._known:
            found = import_module(f"{self._folders[name]}.target").TARGETS
            self._known |= {each.name: each for each in found}
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)


TARGETS: Mapping[str, Target] = _Targets()


def names() -> tuple[str, ...]:
    """What targets may be called: their own names, or their aliases."""
    aliases = [each.alias for each in TARGETS.values() if each.alias]
    return tuple(dict.fromkeys((*TARGETS, *aliases)))


def target(name: str) -> Target:
    """The target called `name`, or the first one with this alias. Raises InputError listing the
    known ones.

    >>> target("avx2").name, target("vulkan").name
    ('avx2', 'spirv')
    """
    if isinstance(name, str) and name in TARGETS:
        return TARGETS[name]
    for each in TARGETS.values():
        if each.alias and each.alias == name:
            return each
    raise InputError(f"no target is named {name!r}; known: {', '.join(names())}")
