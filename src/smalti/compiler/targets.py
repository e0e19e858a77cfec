"""All targets, by name: every record of `TARGETS` in the `target.py` of a folder of `codegen/`.

They are found, not listed: a new target is the folder of its code generator, that of its driver in
`runtime/`, and a line in `runtime/drivers.py`. See docs/compiler.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from smalti import codegen
from smalti.codegen.target import Target
from smalti.errors import InputError


def _found() -> Iterator[Target]:
    """The records of all folders that have some."""
    for module in iter_modules(codegen.__path__, f"{codegen.__name__}."):
        if module.ispkg:
            yield from getattr(import_module(f"{module.name}.target"), "TARGETS", ())


TARGETS = {each.name: each for each in _found()}
NAMES = tuple(dict.fromkeys((*TARGETS, *(each.alias for each in TARGETS.values() if each.alias))))
"""What targets may be called: their own names, or their aliases."""


def target(name: str) -> Target:
    """The target called `name`, or the first one with this alias. Raises InputError listing the
    known ones.

    >>> target("avx2").name, target("vulkan").name
    ('avx2', 'spirv')
    """
    if isinstance(name, str) and name in NAMES:
        return TARGETS.get(name) or next(each for each in TARGETS.values() if each.alias == name)
    raise InputError(f"no target is named {name!r}; known: {', '.join(NAMES)}")
