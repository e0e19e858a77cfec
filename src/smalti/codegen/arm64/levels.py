"""The feature levels of AArch64; features are called as Linux calls them in /proc/cpuinfo."""

from __future__ import annotations

from smalti.codegen.arm64.assembler import GENERAL_REGISTERS, Arm64Assembler, reload, spill
from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.registers import RegisterFile

_REGISTERS = RegisterFile(GENERAL_REGISTERS, ("x0", "x1", "x2", "x3"), range(32), 16, range(0),
                          reload, spill)
_NEON = frozenset({"asimd"})
_DOT = _NEON | {"asimddp"}
LEVELS = {
    "neon": FeatureLevel("neon", 4, _REGISTERS, _NEON, Arm64Assembler, by_lane=True),
    "neon_dot": FeatureLevel("neon_dot", 4, _REGISTERS, _DOT, Arm64Assembler, by_lane=True,
                             integers="quads", signed=True),
    "neon_bf16": FeatureLevel("neon_bf16", 4, _REGISTERS, _DOT | {"i8mm", "bf16"}, Arm64Assembler,
                              pairs=True, by_lane=True, blocks=True, integers="quads"),
}
"""From the least to the best. Every core of Arm and Apple that has FEAT_BF16 has FEAT_I8MM."""
