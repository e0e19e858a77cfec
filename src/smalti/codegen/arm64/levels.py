"""The feature levels of AArch64."""

from __future__ import annotations

from smalti.codegen.arm64.assembler import GENERAL_REGISTERS, Arm64Assembler, reload, spill
from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.registers import RegisterFile

_REGISTERS = RegisterFile(GENERAL_REGISTERS, ("x0", "x1", "x2", "x3"), range(32), 16, range(0),
                          reload, spill)
LEVELS = {"neon": FeatureLevel("neon", 4, _REGISTERS, frozenset({"asimd"}), Arm64Assembler,
                              by_lane=True)}
