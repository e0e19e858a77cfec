"""Assemblers of all architectures: addresses, division, labels, partial vectors."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from native_regions import LEVELS, run_steps

from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.lowered import KernelStep
from smalti.codegen.cpu.operands import Address, Register
from smalti.codegen.levels import LEVELS as KNOWN
from smalti.codegen.levels import level
from smalti.errors import InputError, VerificationError

EXAMPLES = 60
LARGEST = (1 << 31) - 1


def on_memory(values: np.ndarray, name: str, body) -> np.ndarray:
    """`values` after a function that `body(asm, memory)` emits."""
    asm = level(name).assembler("test")
    table, memory = asm.argument(), asm.general()
    asm.op("mov", memory, Address(table))
    body(asm, memory)
    held = np.array(values)
    run_steps(name, (KernelStep(asm.finish(), 1),), [held])
    return held


NUMBERS = st.one_of(st.integers(0, LARGEST), st.integers(0, 2000), st.integers(0, 31).map(
    lambda bit: min(LARGEST, 1 << bit)), st.integers(0, 31).map(lambda bit: (1 << bit) - 1))


@examples(EXAMPLES)
@given(st.lists(NUMBERS, min_size=1, max_size=20), st.one_of(NUMBERS, st.just(LARGEST)))
def test_division_by_a_constant(values: list[int], divisor: int) -> None:
    divisor = max(1, divisor)
    near = [q * divisor + r for q in (1, LARGEST // divisor) for r in (-1, 0, 1)]
    values += [v for v in (*near, LARGEST) if 0 <= v <= LARGEST]

    def body(asm: Assembler, memory: Register) -> None:
        at = asm.copy(memory)
        with asm.loop(len(values)):
            number = asm.general()
            asm.op("mov", number, Address(at))
            quotient, remainder = asm.divide(number, divisor)
            asm.op("mov_store", Address(at), quotient)
            asm.op("mov_store", Address(at, 8), remainder)
            asm.advance(at, 16)

    pairs = np.array([[v, 0] for v in values], np.int64)
    assert on_memory(pairs, LEVELS[0], body).tolist() == [list(divmod(v, divisor)) for v in values]


@pytest.mark.parametrize("divisor", [0, -3, 1 << 31])
def test_division_by_what_cannot_be_divided_by(divisor: int) -> None:
    asm = level(LEVELS[0]).assembler("division")
    with pytest.raises(VerificationError, match="1 to 2"):
        asm.divide(asm.immediate(1), divisor)


@examples(EXAMPLES)
@given(st.integers(-2**62, 2**62), st.integers(-2**40, 2**40), st.integers(-2**20, 2**20))
def test_offsets_of_any_size(start: int, stride: int, index: int) -> None:
    def body(asm: Assembler, memory: Register) -> None:
        register = asm.immediate(start)
        asm.advance(register, stride)
        asm.op("mov_store", Address(memory), register)
        asm.op("mov_store", Address(memory, 8), asm.offset(asm.immediate(start),
                                                           asm.immediate(index), stride))

    found = on_memory(np.zeros(2, np.int64), LEVELS[0], body)
    expected = np.array([start + stride, start + index * stride])
    assert (found == expected.astype(object).astype(np.int64)).all()


@pytest.mark.parametrize("name", LEVELS)
def test_partial_vectors_touch_only_their_lanes(name: str) -> None:
    lanes = level(name).lanes
    for count in range(1, lanes + 1):
        def body(asm: Assembler, memory: Register, count: int = count) -> None:
            value = asm.load(Address(memory), count)
            asm.store(Address(memory, 4 * lanes), value)
            asm.store(Address(memory, 8 * lanes), value, count)

        before = np.arange(1, 3 * lanes + 1, dtype=np.float32)
        found = on_memory(before, name, body).reshape(3, lanes)
        head = before[:count]
        assert found[1].tolist() == [*head, *[0.0] * (lanes - count)]
        assert found[2].tolist() == [*head, *before[2 * lanes + count:]]


@pytest.mark.parametrize("name", LEVELS)
def test_gathers_read_only_their_lanes(name: str) -> None:
    lanes = level(name).lanes
    for count in range(1, lanes + 1):
        def body(asm: Assembler, memory: Register, count: int = count) -> None:
            places = [8 * i if i < count else 1 << 30 for i in range(lanes)]  # far outside
            index = asm.result("load", asm.integers(places))
            asm.store(Address(memory), asm.gather(memory, index, count))

        before = np.arange(2 * lanes, dtype=np.float32)
        found = on_memory(before, name, body)
        assert found[:lanes].tolist() == [*before[:2 * count:2], *[0.0] * (lanes - count)]


@pytest.mark.parametrize("name", LEVELS)
def test_sum_of_lanes_and_choice(name: str) -> None:
    lanes = level(name).lanes

    def body(asm: Assembler, memory: Register) -> None:
        value = asm.load(Address(memory))
        asm.store(Address(memory, 4 * lanes), asm.sum_of_lanes(value))
        numbers = asm.result("load", asm.integers(range(lanes)))
        three = asm.result("load", asm.integers([3] * lanes))
        asm.store(Address(memory, 8 * lanes), asm.where_greater(numbers, three, value, asm.zero()))

    found = on_memory(np.arange(1, 3 * lanes + 1, dtype=np.float32), name, body).reshape(3, lanes)
    assert found[1].tolist() == [lanes * (lanes + 1) / 2] * lanes
    assert found[2].tolist() == [0.0] * 4 + list(range(5, lanes + 1))


def test_a_label_is_never_the_address_of_a_constant() -> None:
    """Labels once were addresses 1, 2, 3 …: number 64 was that of the second constant."""
    lanes = level(LEVELS[0]).lanes

    def body(asm: Assembler, memory: Register) -> None:
        numbers = [asm.load_constant(float(n)) for n in range(8)]
        for n in range(300):
            over = asm.label()
            asm.op("compare_immediate", asm.immediate(n % 2), 0)
            asm.jump("equal", over)
            asm.store(Address(memory, 4 * lanes * (n % 8)), asm.result(
                "add", numbers[n % 8], asm.constant(float(n))))
            asm.place(over)

    expected = np.zeros((8, lanes), np.float32)
    for n in range(1, 300, 2):
        expected[n % 8] = n % 8 + n
    found = on_memory(np.zeros((8, lanes), np.float32), LEVELS[0], body)
    np.testing.assert_array_equal(found, expected)


def test_equal_constants_are_kept_once_and_aligned() -> None:
    asm = level(LEVELS[0]).assembler("constants")
    first, second = asm.constant(1.5), asm.constant(2.5)
    assert asm.constant(1.5) == first != second
    assert first.offset % 64 == second.offset % 64 == 0
    code = asm.finish()
    assert code.entry % 64 == 0 and len(asm.pool) == code.entry
    lanes = asm.level.lanes
    assert np.frombuffer(code.bytes, np.float32, lanes).tolist() == [1.5] * lanes


def test_an_unknown_level_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=", ".join(KNOWN)):
        level("sse2")
