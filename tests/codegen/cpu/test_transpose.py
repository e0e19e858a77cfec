"""Squares of f32 turned in registers."""

from __future__ import annotations

import numpy as np
import pytest
from native_regions import LEVELS, run_steps

from smalti.codegen.cpu.lowered import KernelStep
from smalti.codegen.cpu.operands import Address
from smalti.codegen.cpu.transpose import transpose
from smalti.codegen.levels import level


@pytest.mark.parametrize("name", LEVELS)
def test_rows_become_columns(name: str) -> None:
    lanes, asm = level(name).lanes, level(name).assembler("turn")
    table = asm.argument()
    source, target = asm.general(), asm.general()
    asm.op("mov", source, Address(table))
    asm.op("mov", target, Address(table, 8))
    rows = [asm.load(Address(source, 4 * lanes * i)) for i in range(lanes)]
    for i, column in enumerate(transpose(asm, rows)):
        asm.store(Address(target, 4 * lanes * i), column)
    x = np.arange(lanes * lanes, dtype=np.float32).reshape(lanes, lanes)
    y = np.zeros_like(x)
    run_steps(name, (KernelStep(asm.finish(), 1),), [x, y])
    np.testing.assert_array_equal(y, x.T)
