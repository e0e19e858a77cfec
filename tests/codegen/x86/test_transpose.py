"""Squares of f32 turned in registers."""

from __future__ import annotations

import numpy as np
import pytest
from native_regions import LEVELS, run_steps

from smalti.codegen.x86.assembler import Assembler, Memory
from smalti.codegen.x86.instructions import level
from smalti.codegen.x86.lowered import Step
from smalti.codegen.x86.transpose import transpose


@pytest.mark.parametrize("name", LEVELS)
def test_rows_become_columns(name: str) -> None:
    lanes, asm = level(name).lanes, Assembler(level(name), "turn")
    table = asm.argument()
    source, target = asm.general(), asm.general()
    asm.op("mov", source, Memory(table))
    asm.op("mov", target, Memory(table, 8))
    rows = [asm.load(Memory(source, 4 * lanes * i)) for i in range(lanes)]
    for i, column in enumerate(transpose(asm, rows)):
        asm.store(Memory(target, 4 * lanes * i), column)
    x = np.arange(lanes * lanes, dtype=np.float32).reshape(lanes, lanes)
    y = np.zeros_like(x)
    run_steps((Step(asm.finish(), 1),), [x.ctypes.data, y.ctypes.data])
    np.testing.assert_array_equal(y, x.T)
