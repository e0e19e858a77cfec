"""Conversion between halves and f32 gives the bits that numpy gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from smalti.codegen.cpu.conversion import BLOCK
from smalti.graph.operation import DTYPES
from smalti.graph.quantised import quantised
from smalti.runtime.cpu import conversion
from smalti.runtime.cpu.conversion import coded, converted

ALL = np.arange(1 << 16, dtype=np.uint16)
COUNT = 10 * BLOCK + 77


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def same(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits; of NaN only that it is one."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.flags.c_contiguous and found.flags.writeable
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(bits(found)[~nan], bits(expected)[~nan])


def interesting(dtype: str) -> np.ndarray:
    """Numbers of every size, those that are halfway between two halves, NaN and infinities."""
    rng = np.random.default_rng(0)
    some = rng.integers(0, 1 << 32, COUNT, np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        halves = ALL.view(DTYPES[dtype]).astype(np.float32)
    exact = halves[np.isfinite(halves)]
    between = exact[:-1] / 2 + exact[1:] / 2
    return np.concatenate([some, exact, between, np.nextafter(between, np.float32(np.inf)),
                           np.float32([65519.996, 65520, np.inf, -np.inf, np.nan])])


def test_every_f16_is_widened() -> None:
    with np.errstate(invalid="ignore"):
        same(converted(ALL.view(np.float16), "f32"), ALL.view(np.float16).astype(np.float32))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rounding_is_to_the_nearest_and_even(dtype: str) -> None:
    numbers = interesting(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = numbers.astype(DTYPES[dtype])
    same(converted(numbers, dtype), expected)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 3])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_any_number_of_elements(size: int, dtype: str) -> None:
    numbers = np.random.default_rng(size).standard_normal(size, np.float32)
    halves = converted(numbers, dtype)
    same(halves, numbers.astype(DTYPES[dtype]))
    same(converted(halves, "f32"), halves.astype(np.float32))


def test_any_order_in_memory_and_any_other_dtype() -> None:
    numbers = np.random.default_rng(0).standard_normal((130, 3, 70)).astype(np.float16)
    same(converted(numbers.transpose(2, 0, 1), "f32"),
         np.ascontiguousarray(numbers.transpose(2, 0, 1).astype(np.float32)))
    same(converted(numbers[:, :, ::2], "f32"), numbers[:, :, ::2].astype(np.float32))
    for other in (np.float64, np.int8, ml_dtypes.bfloat16, np.float32):
        same(converted(numbers.astype(other), "f32"), numbers.astype(other).astype(np.float32))


def test_a_cpu_without_the_instructions_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = interesting("f16")
    fast = converted(numbers, "f16")
    monkeypatch.setattr(conversion, "_code", lambda: (None, {}))
    same(converted(numbers, "f16"), fast)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("groups", [1, BLOCK // 32 - 1, BLOCK // 32, 3 * BLOCK // 32 + 5])
def test_codes_are_those_of_the_definition(groups: int, dtype: str) -> None:
    """Also of groups that are all 0, ties, and numbers of all sizes."""
    rng = np.random.default_rng(groups)
    numbers = rng.standard_normal((groups, 32)) * 2.0 ** rng.integers(-9, 9, (groups, 1))
    numbers[groups // 2] = 0
    numbers[groups // 3] = np.arange(-32, 32, 2) * 127 / 64 / 2
    numbers = numbers.astype(DTYPES[dtype])
    found, expected = coded(numbers, "q8"), quantised(numbers, "q8")
    np.testing.assert_array_equal(found.words, expected.words)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    turned = coded(np.asfortranarray(numbers), "q8")
    np.testing.assert_array_equal(turned.words, expected.words)


def test_codes_lie_where_they_are_to() -> None:
    numbers = np.random.default_rng(4).standard_normal((2, BLOCK), np.float32)
    memory = np.full(4 * BLOCK, 255, np.uint8)
    found = coded(numbers, "q8", lambda size: memory[:size])
    assert np.shares_memory(found.words, memory)
    np.testing.assert_array_equal(found.words, quantised(numbers, "q8").words)


def test_codes_without_machine_code_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(4).standard_normal((3, BLOCK), np.float32)
    fast = coded(numbers, "q8")
    assert np.array_equal(coded(numbers, "q4_min").words, quantised(numbers, "q4_min").words)
    monkeypatch.setattr(conversion, "_code", lambda: (None, {}))
    assert np.array_equal(fast.words, coded(numbers, "q8").words)
