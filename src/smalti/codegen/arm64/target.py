"""AArch64 as the compiler sees it: a target for each feature level."""

from __future__ import annotations

from smalti.codegen.arm64.encoder import disassembly
from smalti.codegen.arm64.levels import LEVELS
from smalti.codegen.cpu.target import target_of

TARGETS = tuple(target_of(level, disassembly) for level in LEVELS.values())
