"""AArch64 as the compiler sees it: its encoder is here, no kernel is lowered to it."""

from __future__ import annotations

from smalti.codegen.arm64.encoder import disassembly
from smalti.codegen.target import Target

__all__ = ["TARGETS", "disassembly"]
TARGETS: tuple[Target, ...] = ()
