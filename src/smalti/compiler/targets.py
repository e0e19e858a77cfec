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
NAMES = tuple(dict.fromkeys((*TARGETS, *(each.driver for each in TARGETS.values()
                                         if each.driver != "cpu"))))
"""What targets may be called: their own names, or those of the drivers that take them."""


def target(name: str) -> Target:
    """The target called `name`, or the first one that the driver of this name takes. Raises
    InputError listing the known ones.

    >>> target("avx2").name, target("vulkan").name
    ('avx2', 'spirv')
    """
    found = TARGETS.get(name) if isinstance(name, str) else None
    if found is not None:
        return found
    for each in TARGETS.values():
        if each.driver == name != "cpu":
            return each
    raise InputError(f"no target is named {name!r}; known: {', '.join(NAMES)}")
