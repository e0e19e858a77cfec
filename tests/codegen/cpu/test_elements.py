"""Loads and stores of f32 and halves: every number of lanes, every kind of number."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from native_regions import LEVELS, Block, run_steps

from smalti.codegen.cpu import elements
from smalti.codegen.cpu.assembler import Assembler
from smalti.codegen.cpu.lowered import KernelStep
from smalti.codegen.cpu.operands import Address
from smalti.codegen.levels import level
from smalti.graph.operation import DTYPES
from smalti.kernel.interpreter import as_stored

EXAMPLES = 200
COUNTS = {name: range(1, level(name).lanes + 1) for name in LEVELS}
CASES = [(name, lanes) for name in LEVELS for lanes in COUNTS[name]]
BITS = [0, 0x80000000, 0x3F800000, 0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7F7FFF,
        0x7F7F8000, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF,
        0xFFFFFFFF]


def run(name: str, emit, source: np.ndarray, bytes_out: int) -> np.ndarray:
    """Run `emit(asm, source, target)`; what it left in `bytes_out` bytes, checked for strays."""
    asm = level(name).assembler("elements")
    table, _ = asm.argument(), asm.argument()
    pointers = [asm.general(), asm.general()]
    for i, register in enumerate(pointers):
        asm.op("mov", register, Address(table, 8 * i))
    emit(asm, *pointers)
    held, target = Block(source.nbytes), Block(bytes_out)
    held.bytes[:] = source.view(np.uint8)
    run_steps(name, (KernelStep(asm.finish(), 1),), [held.bytes, target.bytes])
    target.check("elements")
    return target.bytes


def rounded_natively(values: np.ndarray, name: str, lanes: int) -> np.ndarray:
    """The first `lanes` of `values`, stored as bf16, as unsigned integers."""
    def emit(asm: Assembler, source, target) -> None:
        elements.store(asm, "bf16", Address(target), asm.load(Address(source), lanes), lanes)

    return run(name, emit, values, 2 * lanes).view(np.uint16)


def upper(values: np.ndarray) -> np.ndarray:
    """The bf16 of rounded f32, as unsigned integers."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("name, lanes", CASES)
def test_stores_round_as_the_reference_does(name: str, lanes: int) -> None:
    values = np.array(BITS, np.uint32).view(np.float32)
    for start in range(0, len(values), level(name).lanes):
        part = values[start:start + level(name).lanes]
        found, expected = rounded_natively(part, name, lanes), as_stored(part, "bf16")[:lanes]
        nan = np.isnan(expected)
        np.testing.assert_array_equal(found[~nan], upper(expected)[~nan])
        assert np.isnan((found[nan].astype(np.uint32) << 16).view(np.float32)).all()


@examples(EXAMPLES)
@given(st.lists(st.floats(width=32, allow_subnormal=False, allow_nan=False), min_size=16,
                max_size=16), st.sampled_from(LEVELS))
def test_any_number_is_rounded_to_the_nearest(numbers: list[float], name: str) -> None:
    values = np.array(numbers, np.float32)[:level(name).lanes]
    np.testing.assert_array_equal(rounded_natively(values, name, len(values)),
                                  upper(as_stored(values, "bf16")))


@pytest.mark.parametrize("name, lanes", CASES)
def test_stores_round_to_f16_as_numpy_does(name: str, lanes: int) -> None:
    values = np.array([0, -0.0, 1, 1 + 2**-11, 1 + 3 * 2**-11, -65504, 65519, 65520, -1e9, 6e-8,
                       2.9e-8, 3e-8, 6.1e-5, np.inf, -np.inf, np.nan], np.float32)

    def emit(asm: Assembler, source, target) -> None:
        elements.store(asm, "f16", Address(target), asm.load(Address(source), lanes), lanes)

    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    for start in range(0, len(values), level(name).lanes):
        part = values[start:start + level(name).lanes]
        found = run(name, emit, part, 2 * lanes).view(np.float16)
        np.testing.assert_array_equal(found, expected[start:start + lanes])


@pytest.mark.sampled
@pytest.mark.parametrize("name, lanes", CASES)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_loads_widen_and_leave_zeros_behind(name: str, lanes: int, dtype: str) -> None:
    width = level(name).lanes
    values = np.arange(1, lanes + 1, dtype=np.float32) * 1.5
    source = values.astype(DTYPES[dtype])
    expected = np.zeros(width, np.float32)
    expected[:lanes] = values
    found = run(name, lambda asm, at, to: asm.store(
        Address(to), elements.load(asm, dtype, Address(at), lanes)), source, 4 * width)
    np.testing.assert_array_equal(found.view(np.float32), expected)


@pytest.mark.sampled
@pytest.mark.parametrize("name, lanes", CASES)
@pytest.mark.parametrize("dtype", ["u8", "i8", "i32"])
def test_integers_come_and_go(name: str, lanes: int, dtype: str) -> None:
    width, size = level(name).lanes, np.dtype(DTYPES[dtype]).itemsize
    limits = np.iinfo(DTYPES[dtype])
    values = np.resize(np.array([limits.min // 256, 5, limits.max // 256, 0]) if dtype == "i32" else
                       np.array([limits.min, 5, limits.max, 0]), 4 * width).astype(DTYPES[dtype])

    def emit(asm: Assembler, at, to) -> None:
        asm.store(Address(to), elements.load(asm, dtype, Address(at), lanes))
        asm.store(Address(to, 4 * width), elements.spread(asm, dtype, Address(at, 2 * size)))
        index = asm.result("load", asm.integers([3 * size * i for i in range(width)]))
        every = elements.gather(asm, dtype, at, index)
        asm.store(Address(to, 8 * width), every)
        elements.store_lowest(asm, dtype, Address(to, 12 * width), every)
        elements.store(asm, dtype, Address(to, 12 * width + 8), every, lanes)

    found = run(name, emit, values, 12 * width + 8 + lanes * size)
    expected = np.zeros((3, width), np.float32)
    expected[0, :lanes], expected[1] = values[:lanes], values[2]
    expected[2] = values[:3 * width:3]
    np.testing.assert_array_equal(found[:12 * width].view(np.float32), expected.reshape(-1))
    assert found[12 * width:][:size].tobytes() == values[:1].tobytes()
    assert found[12 * width + 8:].tobytes() == values[:3 * lanes:3].tobytes()


@pytest.mark.parametrize("name", LEVELS)
def test_every_f16_is_widened_exactly(name: str) -> None:
    width = level(name).lanes
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[~np.isnan(halves)]
    halves = halves[:len(halves) // width * width]

    def emit(asm: Assembler, at, to) -> None:
        with asm.loop(len(halves) // width):
            asm.store(Address(to), elements.load(asm, "f16", Address(at)))
            asm.advance(at, 2 * width)
            asm.advance(to, 4 * width)

    found = run(name, emit, halves, 4 * len(halves)).view(np.float32)
    np.testing.assert_array_equal(found.view(np.uint32), halves.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("dtype, size", [("f32", 4), ("bf16", 2), ("f16", 2)])
def test_single_elements(name: str, dtype: str, size: int) -> None:
    width = level(name).lanes
    values = np.arange(3 * width, dtype=np.float32) - 7
    source = values.astype(DTYPES[dtype])

    def emit(asm: Assembler, at, to) -> None:
        spread = elements.spread(asm, dtype, Address(at, size * 5))
        index = asm.result("load", asm.integers([3 * size * i for i in range(width)]))
        asm.store(Address(to), spread)
        asm.store(Address(to, 4 * width), elements.gather(asm, dtype, at, index))
        elements.store_lowest(asm, dtype, Address(to, 8 * width), spread)

    found = run(name, emit, source, 8 * width + size)
    expected = np.concatenate([np.full(width, values[5]), values[::3]])
    np.testing.assert_array_equal(found[:8 * width].view(np.float32), expected)
    assert found[8 * width:].tobytes() == source[5:6].tobytes()


@pytest.mark.parametrize("name, lanes", CASES)
def test_truth_values_are_bytes(name: str, lanes: int) -> None:
    width = level(name).lanes
    source = np.resize(np.uint8([1, 0, 0, 1, 1]), 4 * width)

    def emit(asm: Assembler, at, to) -> None:
        index = asm.result("load", asm.integers([3 * i for i in range(width)]))
        for k, value in enumerate([elements.load(asm, "bool", Address(at), lanes),
                                   elements.spread(asm, "bool", Address(at, 3)),
                                   elements.gather(asm, "bool", at, index)]):
            asm.store(Address(to, 4 * width * k), value)
            elements.store(asm, "bool", Address(to, 12 * width + width * k), value, width)
        elements.store(asm, "bool", Address(to, 15 * width), value, lanes)
        elements.store_lowest(asm, "bool", Address(to, 15 * width + lanes), value)

    found = run(name, emit, source, 15 * width + lanes + 1)
    loaded = np.where(np.arange(width) < lanes, source[:width], 0)
    expected = np.concatenate([loaded, np.ones(width), source[:3 * width:3]])
    np.testing.assert_array_equal(found[:12 * width].view(np.float32), expected)
    np.testing.assert_array_equal(found[12 * width:15 * width], expected)
    np.testing.assert_array_equal(found[15 * width:-1], source[:3 * width:3][:lanes])
    assert found[-1] == source[0]


@pytest.mark.parametrize("name", LEVELS)
def test_f16_is_spread_and_gathered(name: str) -> None:
    width = level(name).lanes
    values = np.arange(3 * width, dtype=np.float16) - np.float16(7.5)

    def emit(asm: Assembler, at, to) -> None:
        asm.store(Address(to), elements.spread(asm, "f16", Address(at, 2 * 5)))
        for part, lanes in enumerate((width, width - 3), 1):
            index = asm.result("load", asm.integers([6 * i for i in range(width)]))
            gathered = elements.gather(asm, "f16", at, index, lanes)
            asm.store(Address(to, 4 * part * width), gathered)

    found = run(name, emit, values, 12 * width).view(np.float32)
    expected = np.concatenate([np.full(width, values[5]), values[::3], values[::3]])
    expected[-3:] = 0
    np.testing.assert_array_equal(found, expected)
