"""Register allocation: random programs on more registers than there are compute the same."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from native_regions import LEVELS, run_steps

from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.lowered import KernelStep
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.cpu.registers import allocate, scan
from smalti.codegen.levels import level
from smalti.errors import VerificationError

EXAMPLES = 60
MASK = (1 << 64) - 1
REGISTERS_MAX = 45


@dataclass
class Loop:
    """`count` rounds of `body`."""

    count: int
    body: list = field(default_factory=list)


# An instruction is (name, target, operand), all numbers of registers; the operand of "set" and
# "advance" is a number.
GENERAL_NAMES = ("mov", "iadd", "isub", "imul", "set", "advance")
VECTOR_NAMES = ("copy", "add", "sub", "max", "fma")


def programs(names: tuple[str, ...], count: int) -> st.SearchStrategy:
    """Lists of instructions on `count` registers, and loops of them, up to two deep."""
    number = st.integers(0, count - 1)
    line = st.tuples(st.sampled_from(names), number, number)
    block = st.lists(line, min_size=1, max_size=25)
    inner = st.builds(Loop, st.integers(1, 3), block)
    middle = st.lists(st.one_of(line, inner), min_size=1, max_size=12)
    outer = st.builds(Loop, st.integers(1, 3), middle)
    return st.lists(st.one_of(line, inner, outer), min_size=1, max_size=20)


def simulate(program: list, step, state: list) -> None:
    for item in program:
        if isinstance(item, Loop):
            for _ in range(item.count):
                simulate(item.body, step, state)
        else:
            step(state, *item)


def emit(asm: Assembler, program: list, one, registers: list[Register]) -> None:
    for item in program:
        if isinstance(item, Loop):
            with asm.loop(item.count):
                emit(asm, item.body, one, registers)
        else:
            one(asm, registers, *item)


def general_step(state: list[int], name: str, target: int, operand: int) -> None:
    a, b = state[target], state[operand]
    state[target] = {"mov": b, "iadd": a + b, "isub": a - b, "imul": a * b, "set": operand * 977,
                     "advance": a + operand}[name] & MASK


def general_line(asm: Assembler, registers: list[Register], name: str, target: int,
                 operand: int) -> None:
    if name == "set":
        asm.set(registers[target], operand * 977)
    elif name == "advance":
        asm.advance(registers[target], operand)
    else:
        asm.op(name, registers[target], registers[operand])


@examples(EXAMPLES)
@given(st.data(), st.integers(2, REGISTERS_MAX), st.sampled_from(LEVELS))
def test_integers(data: st.DataObject, count: int, name: str) -> None:
    program = data.draw(programs(GENERAL_NAMES, count))
    asm = level(name).assembler("integers")
    table = asm.argument()
    memory = asm.general()
    asm.op("mov", memory, Address(table))
    registers = [asm.general() for _ in range(count)]
    for number, register in enumerate(registers):
        asm.op("mov", register, Address(memory, 8 * number))
    emit(asm, program, general_line, registers)
    for number, register in enumerate(registers):
        asm.op("mov_store", Address(memory, 8 * number), register)
    values = np.arange(count, dtype=np.uint64) * 123_456_789 + 5
    state = [int(v) for v in values]
    simulate(program, general_step, state)
    note(str(program))
    run_steps(name, (KernelStep(asm.finish(), 1),), [values])
    assert values.tolist() == state


def vector_step(state: list[np.ndarray], name: str, target: int, operand: int) -> None:
    a, b = state[target], state[operand]
    half = np.float32(0.5)
    state[target] = {"copy": lambda: b, "add": lambda: (a + b) * half,
                     "sub": lambda: (a - b) * half, "max": lambda: np.maximum(a, b),
                     "fma": lambda: a + b * half}[name]()


def vector_line(asm: Assembler, registers: list[Register], name: str, target: int,
                operand: int) -> None:
    a, b = registers[target], registers[operand]
    if name == "copy":
        asm.op("copy", a, b)
    elif name == "fma":
        asm.op("add", a, a, asm.result("mul", b, asm.constant(0.5)))
    else:
        asm.op(name, a, a, b)
        if name != "max":
            asm.op("mul", a, a, asm.constant(0.5))


@examples(EXAMPLES)
@given(st.data(), st.integers(2, REGISTERS_MAX), st.sampled_from(LEVELS))
def test_vectors(data: st.DataObject, count: int, name: str) -> None:
    program = data.draw(programs(VECTOR_NAMES, count))
    lanes = level(name).lanes
    asm = level(name).assembler("vectors")
    table = asm.argument()
    memory = asm.general()
    asm.op("mov", memory, Address(table))
    registers = [asm.load(Address(memory, 4 * lanes * number)) for number in range(count)]
    emit(asm, program, vector_line, registers)
    for number, register in enumerate(registers):
        asm.store(Address(memory, 4 * lanes * number), register)
    values = np.random.default_rng(count).standard_normal((count, lanes)).astype(np.float32)
    state = list(values.copy())
    simulate(program, vector_step, state)
    note(str(program))
    run_steps(name, (KernelStep(asm.finish(), 1),), [values])
    np.testing.assert_array_equal(values, np.array(state))


@pytest.mark.parametrize("name", LEVELS)
def test_a_fused_multiply_add_on_three_spilled_registers(name: str) -> None:
    """Also masked loads and gathers whose registers lie in the frame."""
    lanes = level(name).lanes
    few, asm = min(5, lanes), level(name).assembler("spilled")
    table = asm.argument()
    memory = asm.general()
    asm.op("mov", memory, Address(table))
    count = 3 * level(name).vectors
    registers = [asm.load(Address(memory, 4 * lanes * i), 1 + i % few) for i in range(count)]
    index = asm.result("load", asm.integers([4 * (lanes - 1 - i) for i in range(lanes)]))
    for i in range(count):
        asm.op("fma", registers[i], registers[(i + 1) % count], registers[(i + 2) % count])
    turned = asm.gather(memory, index, lanes - 1)
    for i, register in enumerate(registers):
        asm.store(Address(memory, 4 * lanes * i), register)
    asm.store(Address(memory, 4 * lanes * count), turned)
    values = np.random.default_rng(0).standard_normal((count + 1, lanes)).astype(np.float32)
    first = values[0].copy()
    state = [np.where(np.arange(lanes) < 1 + i % few, v, 0).astype(np.float64)
             for i, v in enumerate(values[:count])]
    for i in range(count):
        a, b = state[(i + 1) % count], state[(i + 2) % count]
        state[i] = (state[i] + a * b).astype(np.float32).astype(np.float64)
    run_steps(name, (KernelStep(asm.finish(), 1),), [values])
    np.testing.assert_allclose(values[:count], np.array(state), rtol=1e-6)
    assert values[count].tolist() == [*first[:0:-1], 0.0]


def test_arguments_survive_any_pressure() -> None:
    asm = level(LEVELS[0]).assembler("arguments")
    table, tile, scratch = asm.argument(), asm.argument(), asm.argument()
    many = [asm.immediate(i) for i in range(40)]
    total = asm.immediate(0)
    for register in many:
        asm.op("iadd", total, register)
    asm.op("iadd", total, tile)
    asm.op("mov_store", Address(scratch), total)
    memory = asm.general()
    asm.op("mov", memory, Address(table))
    asm.op("mov_store", Address(memory), total)
    values, scratch_memory = np.zeros(1, np.uint64), np.zeros(8, np.uint64)
    run_steps(LEVELS[0], (KernelStep(asm.finish(), 3),), [values], scratch_memory)
    assert values[0] == scratch_memory[0] == sum(range(40)) + 2


def test_registers_that_live_at_once_have_different_places() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        starts = rng.integers(0, 60, 40)
        spans = {Register("g", i): [int(a), int(a + n)] for i, (a, n) in
                 enumerate(zip(starts, rng.integers(1, 30, 40), strict=True))}
        weights = {r: float(rng.integers(1, 9)) for r in spans}
        placed, spilled = scan(spans, weights, range(6), {})
        assert set(placed) | set(spilled) == set(spans) and not set(placed) & set(spilled)
        for a, place in placed.items():
            for b, other in placed.items():
                if a != b and place == other:
                    assert spans[a][1] <= spans[b][0] or spans[b][1] <= spans[a][0]


def test_without_pressure_nothing_is_spilled() -> None:
    asm = level("avx2").assembler("few")
    table = asm.argument()
    kept = [asm.immediate(i) for i in range(len(asm.level.registers.general) - 1)]
    for register in kept:
        asm.op("mov_store", Address(table), register)
    asm.op("return")
    assert allocate(asm.lines, asm.loops, asm.level.registers, asm.fixed)[1] == 0
    one_more = level("avx2").assembler("many")
    table = one_more.argument()
    kept = [one_more.immediate(i) for i in range(len(asm.level.registers.general))]
    for register in kept:
        one_more.op("mov_store", Address(table), register)
    assert allocate(one_more.lines, one_more.loops, one_more.level.registers,
                    one_more.fixed)[1] > 0


def test_too_many_masks_are_an_error() -> None:
    asm = level("avx512").assembler("masks")
    table = asm.argument()
    for lanes in range(1, 10):
        asm.store(Address(table), asm.zero(), lanes)
    with pytest.raises(VerificationError, match="mask registers"):
        asm.finish()
