"""All targets, by name. A new one is the folder of its code generator, the folder of its driver in
`runtime/`, and a line here."""

from __future__ import annotations

from smalti.codegen.spirv.target import TARGETS as SPIRV
from smalti.codegen.target import Target
from smalti.codegen.wgsl.target import TARGETS as WGSL
from smalti.codegen.x86.target import TARGETS as X86
from smalti.errors import InputError

TARGETS = {each.name: each for each in (*X86, *SPIRV, *WGSL)}


def target(name: str) -> Target:
    """The target called `name`. Raises InputError listing the known ones."""
    if name not in TARGETS:
        raise InputError(f"no target is named {name!r}; known: {', '.join(TARGETS)}")
    return TARGETS[name]
