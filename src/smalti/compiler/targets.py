"""All targets, by name. A new one is the folder of its code generator, the folder of its driver in
`runtime/`, and a line here."""

from __future__ import annotations

from smalti.codegen.spirv.target import TARGETS as SPIRV
from smalti.codegen.target import Target
from smalti.codegen.wgsl.target import TARGETS as WGSL
from smalti.codegen.x86.target import TARGETS as X86
from smalti.errors import InputError

TARGETS = {each.name: each for each in (*X86, *SPIRV, *WGSL)}
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
