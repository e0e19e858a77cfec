"""x86-64 as the compiler sees it: a target for each feature level."""

from __future__ import annotations

from smalti.codegen.cpu.target import target_of
from smalti.codegen.x86.encoding import disassembly
from smalti.codegen.x86.levels import LEVELS

TARGETS = tuple(target_of(level, disassembly) for level in LEVELS.values())
