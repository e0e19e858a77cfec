"""The feature levels of all CPUs that code is made for, by name."""

from __future__ import annotations

from smalti.codegen.arm64.levels import LEVELS as ARM64_LEVELS
from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.x86.levels import LEVELS as X86_LEVELS
from smalti.errors import InputError

LEVELS: dict[str, FeatureLevel] = {**X86_LEVELS, **ARM64_LEVELS}


def level(name: str) -> FeatureLevel:
    """The level called `name`. Raises InputError listing the known ones."""
    if name not in LEVELS:
        raise InputError(f"no feature level is named {name!r}; known: {', '.join(LEVELS)}")
    return LEVELS[name]
