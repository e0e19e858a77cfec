"""Block formats of ggml: small whole numbers with a scale for each block of 32 or 256.

Layouts: ggml-common.h of https://github.com/ggml-org/ggml (MIT); meaning: its ggml-quants.c. `d`
and `m` are scale and minimum, `q` the numbers. The K formats split 256 numbers into parts of 16 or
32, whose own scales are whole numbers of 4 to 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Decode = Callable[[np.ndarray], Floats]

BLOCKS_AT_ONCE = 1 << 13
"""Blocks that are decoded at a time, so that what lies between stays in the cache."""
NONLINEAR = np.float32([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
"""The 16 values of IQ4_NL and IQ4_XS."""
E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The 16 values of a 4-bit float (OCP Microscaling Formats 1.0, 5.3.3)."""


@dataclass(frozen=True)
class BlockFormat:
    """One format: its number in GGUF files, elements of a block, its record, what it means.

    `decode` makes [n] records [n, elements] of float32.
    """

    id: int
    elements: int
    record: np.dtype
    decode: Decode

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return self.record.itemsize


FORMATS: dict[str, BlockFormat] = {}
"""Name -> format, such as "Q4_K"."""


def _format(name: str, id: int, elements: int, *fields: tuple) -> Callable[[Decode], Decode]:
    def enter(decode: Decode) -> Decode:
        FORMATS[name] = BlockFormat(id, elements, np.dtype(list(fields)), decode)
        return decode

    return enter


def dequantise(name: str, raw: npt.NDArray[np.uint8]) -> Floats:
    """The numbers of a row of blocks of the format `name`, which are bytes side by side.

    >>> dequantise("Q8_0", np.uint8([0, 0x3C, 1, 2, 255] + [0] * 29))[:4].tolist()
    [1.0, 2.0, -1.0, 0.0]
    """
    format = FORMATS[name]
    blocks = raw.reshape(-1).view(format.record)
    values = np.empty((len(blocks), format.elements), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # scales of a damaged file
        for start in range(0, len(blocks), BLOCKS_AT_ONCE):
            part = slice(start, start + BLOCKS_AT_ONCE)
            values[part] = format.decode(blocks[part]).reshape(-1, format.elements)
    return values.reshape(-1)


def _split(data: np.ndarray, bits: int, width: int) -> np.ndarray:
    """Fields of `bits` in bytes [n, bytes], of each `width` bytes first all lowest fields, as
    [n, groups, fields, width]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return data.reshape(len(data), -1, 1, width) >> shifts & np.uint8((1 << bits) - 1)


def _column(values: np.ndarray) -> Floats:
    return values.astype(np.float32)[:, None]


def _fifth_bits(blocks: np.ndarray) -> np.ndarray:
    """Bit j of the 32 in `h` as 16 times 0 or 1 for number j."""
    bits = blocks["h"][:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return bits.astype(np.uint8) << np.uint8(4)


@_format("Q4_0", 2, 32, ("d", "<f2"), ("q", "u1", 16))
def _(b: np.ndarray) -> Floats:
    return _column(b["d"]) * (_split(b["q"], 4, 16).reshape(-1, 32).astype(np.float32) - 8)


@_format("Q4_1", 3, 32, ("d", "<f2"), ("m", "<f2"), ("q", "u1", 16))
def _(b: np.ndarray) -> Floats:
    return _column(b["d"]) * _split(b["q"], 4, 16).reshape(-1, 32) + _column(b["m"])


@_format("Q5_0", 6, 32, ("d", "<f2"), ("h", "<u4"), ("q", "u1", 16))
def _(b: np.ndarray) -> Floats:
    q = _split(b["q"], 4, 16).reshape(-1, 32) | _fifth_bits(b)
    return _column(b["d"]) * (q.astype(np.float32) - 16)


@_format("Q5_1", 7, 32, ("d", "<f2"), ("m", "<f2"), ("h", "<u4"), ("q", "u1", 16))
def _(b: np.ndarray) -> Floats:
    q = _split(b["q"], 4, 16).reshape(-1, 32) | _fifth_bits(b)
    return _column(b["d"]) * q + _column(b["m"])


@_format("Q8_0", 8, 32, ("d", "<f2"), ("q", "i1", 32))
def _(b: np.ndarray) -> Floats:
    return _column(b["d"]) * b["q"]


@_format("Q2_K", 10, 256, ("s", "u1", 16), ("q", "u1", 64), ("d", "<f2"), ("m", "<f2"))
def _(b: np.ndarray) -> Floats:
    scale = _column(b["d"]) * (b["s"] & 15)
    least = _column(b["m"]) * (b["s"] >> 4)
    return scale[:, :, None] * _split(b["q"], 2, 32).reshape(-1, 16, 16) - least[:, :, None]


@_format("Q3_K", 11, 256, ("h", "u1", 32), ("q", "u1", 64), ("s", "u1", 12), ("d", "<f2"))
def _(b: np.ndarray) -> Floats:
    low = _split(b["s"][:, :8], 4, 8).reshape(-1, 16)
    high = _split(b["s"][:, 8:], 2, 4).reshape(-1, 16)
    scale = _column(b["d"]) * ((low | high << 4).astype(np.float32) - 32)
    absent = _split(b["h"], 1, 32).reshape(-1, 256) ^ 1
    q = _split(b["q"], 2, 32).reshape(-1, 256).astype(np.int8) - (absent << 2).astype(np.int8)
    return scale[:, :, None] * q.reshape(-1, 16, 16)


def _scales_and_minima(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two times eight numbers of 6 bits out of 12 bytes: of the last four, the low four bits are in
    the last four bytes, the high two above those of the first four."""
    scale, least, both = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    return (np.concatenate([scale & 63, both & 15 | scale >> 2 & 48], axis=1),
            np.concatenate([least & 63, both >> 4 | least >> 2 & 48], axis=1))


def _with_minima(b: np.ndarray, q: np.ndarray) -> Floats:
    scale, least = _scales_and_minima(b["s"])
    scale, least = _column(b["d"]) * scale, _column(b["m"]) * least
    return scale[:, :, None] * q.reshape(-1, 8, 32) - least[:, :, None]


@_format("Q4_K", 12, 256, ("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("q", "u1", 128))
def _(b: np.ndarray) -> Floats:
    return _with_minima(b, _split(b["q"], 4, 32))


@_format("Q5_K", 13, 256, ("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("h", "u1", 32),
         ("q", "u1", 128))
def _(b: np.ndarray) -> Floats:
    high = _split(b["h"], 1, 32).reshape(-1, 8, 32)
    return _with_minima(b, _split(b["q"], 4, 32).reshape(-1, 8, 32) | high << 4)


@_format("Q6_K", 14, 256, ("q", "u1", 128), ("h", "u1", 64), ("s", "i1", 16), ("d", "<f2"))
def _(b: np.ndarray) -> Floats:
    low = _split(b["q"], 4, 64).reshape(-1, 256)
    high = _split(b["h"], 2, 32).reshape(-1, 256)
    q = (low | high << 4).astype(np.float32) - 32
    return (_column(b["d"]) * b["s"])[:, :, None] * q.reshape(-1, 16, 16)


@_format("IQ4_NL", 20, 32, ("d", "<f2"), ("q", "u1", 16))
def _(b: np.ndarray) -> Floats:
    return _column(b["d"]) * NONLINEAR[_split(b["q"], 4, 16).reshape(-1, 32)]


@_format("IQ4_XS", 23, 256, ("d", "<f2"), ("h", "<u2"), ("s", "u1", 4), ("q", "u1", 128))
def _(b: np.ndarray) -> Floats:
    low = (b["s"][:, :, None] >> np.uint8([0, 4]) & 15).reshape(-1, 8)
    high = (b["h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scale = _column(b["d"]) * ((low | high << 4).astype(np.float32) - 32)
    return scale[:, :, None] * NONLINEAR[_split(b["q"], 4, 16).reshape(-1, 8, 32)]


@_format("MXFP4", 39, 32, ("e", "u1"), ("q", "u1", 16))
def _(b: np.ndarray) -> Floats:
    scale = np.ldexp(np.float32(1), b["e"].astype(np.int32) - 127)
    return scale[:, None] * E2M1[_split(b["q"], 4, 16).reshape(-1, 32)]
