"""Converts arrays from f16 to f32 and from f32 to f16 and bf16, at the speed of memory, and rounds
them to codes of 8 bits with scales.

numpy takes 4 ns to widen a number of f16 and 7 ns to round one to it; a CPU with AVX2 does eight
at a time, 0.2 ns each, with the same bits. One with NEON does four.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from smalti.codegen.cpu.block import joined
from smalti.codegen.cpu.conversion import BLOCK, CODED, lower_coding, lower_conversion
from smalti.codegen.cpu.layout import LAUNCH, aligned
from smalti.codegen.levels import level
from smalti.graph.operation import DTYPES
from smalti.graph.quantised import FORMATS, Quantised, quantised
from smalti.runtime.cpu.adapter import available_levels
from smalti.runtime.cpu.executable import Executable
from smalti.runtime.cpu.threads import call, context, driver_entry

Pair = tuple[str, str]
PAIRS: tuple[Pair, ...] = (("f16", "f32"), ("f32", "f16"), ("f32", "bf16"))
"""The conversions (from, to) that there is machine code for. Widening bf16 is as fast in numpy."""
CODED_PAIRS: tuple[Pair, ...] = tuple((source, CODED) for source in ("f32", "f16", "bf16"))
"""The same to quantised weights, for which numpy takes 15 ns a number."""


def converted(array: np.ndarray, dtype: str) -> np.ndarray:
    """A dense copy of `array` as `dtype`, a dtype of graphs, with the same bits as numpy's
    `astype`.

    The machine code runs without holding the GIL.

    >>> import ml_dtypes
    >>> converted(np.array([1, 65519, 65520], np.float32), "f16").tolist()
    [1.0, 65504.0, inf]
    """
    kind = np.dtype(DTYPES[dtype])
    pair = next((pair for pair in PAIRS if pair[1] == dtype and DTYPES[pair[0]] == array.dtype),
                None)
    blocks = array.size // BLOCK if pair in _code()[1] else 0
    with np.errstate(over="ignore"):
        if pair is None or not blocks:
            return np.array(array, kind, order="C")
        source, target = np.ascontiguousarray(array), np.empty(array.shape, kind)
        _run(pair, source, target, blocks)
        done, flat = blocks * BLOCK, source.reshape(-1)
        target.reshape(-1)[done:] = flat[done:].astype(kind)
    return target


def coded(array: np.ndarray, dtype: str, room: Callable[[int], np.ndarray] | None = None
          ) -> Quantised:
    """`quantised(array, dtype)`, bit for bit where no scale is below the least normal f32; by
    machine code where there is some. Its words may lie in `room(bytes)`.

    >>> coded(np.arange(-15, 17, dtype=np.float32).reshape(1, 32), "q8").floats()[0, -1]
    np.float32(16.0)
    """
    pair = next((pair for pair in CODED_PAIRS if pair[1] == dtype
                 and DTYPES[pair[0]] == array.dtype), None)
    blocks = array.size // BLOCK if pair in _code()[1] else 0
    if pair is None or not blocks:
        return quantised(array, dtype)
    form, done = FORMATS[dtype], blocks * BLOCK
    source = np.ascontiguousarray(array)
    shape = array.size // form.group, form.words
    words = np.empty(shape, np.uint32) if room is None else \
        room(4 * math.prod(shape)).view(np.uint32).reshape(shape)
    _run(pair, source, words, blocks)
    left = quantised(source.reshape(-1)[done:].reshape(-1, form.group), dtype)
    words[done // form.group:] = left.words
    return Quantised(dtype, words, array.shape)


def _run(pair: Pair, source: np.ndarray, target: np.ndarray, blocks: int) -> None:
    """Run the machine code of a pair on so many blocks, without holding the GIL."""
    pointers = np.array([source.ctypes.data, target.ctypes.data], np.uint64)
    counter, table = np.zeros(1, np.uint64), aligned(1, LAUNCH)
    table[0] = (_code()[1][pair], pointers.ctypes.data, blocks, counter.ctypes.data, 0)
    state = context(table, 1)
    call(driver_entry(), state.ctypes.data)


@lru_cache(maxsize=1)
def _code() -> tuple[Executable | None, dict[Pair, int]]:
    """The code, and the address of each of `PAIRS` and `CODED_PAIRS` in it; (None, {}) on a CPU
    without a level."""
    if not available_levels():
        return None, {}
    least = level(available_levels()[0])
    block, places = joined([*(lower_conversion(*pair, least) for pair in PAIRS),
                            *(lower_coding(source, least) for source, _ in CODED_PAIRS)])
    code = Executable(block)
    return code, {pair: code.address + place
                  for pair, place in zip((*PAIRS, *CODED_PAIRS), places, strict=True)}
