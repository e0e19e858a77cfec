"""Block formats of ggml: small whole numbers with a scale for each block of 32 or 256.

Layouts: ggml-common.h of https://github.com/ggml-org/ggml (MIT); meaning: its ggml-quants.c. `d`
and `m` are scale and minimum, `q` the numbers. The K formats split 256 numbers into parts of 16 or
32, whose own scales are whole numbers of 4 to 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass
from smalti.graph.quantised import FORMATS as QUANTISED
from smalti.graph.quantised import Quantised

Floats = npt.NDArray[np.float32]
Parts = tuple[np.ndarray, Floats, Floats | None]
"""Whole numbers [n, groups, numbers of a group], scales and minima [n, groups]: of each number its
product with the scale, plus the minimum, is what is meant."""
Decode = Callable[[np.ndarray], Parts]

BLOCKS_AT_ONCE = 1 << 13
"""Blocks that are decoded at a time, so that what lies between stays in the cache."""
NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
                     np.int8)
"""The 16 values of IQ4_NL and IQ4_XS."""
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the 16 values of a 4-bit float (OCP Microscaling Formats 1.0, 5.3.3)."""


@dataclass(frozen=True)
class BlockFormat:
    """One format: its number in GGUF files, elements of a block, its record, what it means.

    `decode` takes [n] records apart; `held` is the format of `graph.quantised` that loses nothing.
    """

    id: int
    elements: int
    held: str
    record: np.dtype
    decode: Decode

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return self.record.itemsize


FORMATS: dict[str, BlockFormat] = {}
"""Name -> format, such as "Q4_K"."""


def _format(name: str, id: int, elements: int, held: str,
            *fields: tuple) -> Callable[[Decode], Decode]:
    def enter(decode: Decode) -> Decode:
        FORMATS[name] = BlockFormat(id, elements, held, np.dtype(list(fields)), decode)
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
    for part, (q, scale, least) in _taken_apart(format, blocks):
        with np.errstate(over="ignore", invalid="ignore"):  # scales of a damaged file
            found = scale[:, :, None] * q
            values[part] = (found if least is None else found + least[:, :, None]).reshape(
                -1, format.elements)
    return values.reshape(-1)


def held(name: str, raw: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> Quantised:
    """The same numbers, a weight of `shape`, as programs hold them: no bit of any is lost.

    >>> raw = np.uint8([0, 0x3C, 1, 2, 255] + [0] * 29)
    >>> held("Q8_0", raw, (1, 32)).floats()[0, :4].tolist()
    [1.0, 2.0, -1.0, 0.0]
    """
    format = FORMATS[name]
    form = QUANTISED[format.held]
    blocks = raw.reshape(-1).view(format.record)
    words = np.empty((len(blocks), format.elements // form.group * form.words), np.uint32)
    for part, (q, scale, least) in _taken_apart(format, blocks):
        found = Quantised.of(format.held, q.reshape(-1, form.group), scale.reshape(-1),
                             None if least is None else least.reshape(-1), (0,))
        words[part] = found.words.reshape(len(q), -1)
    return Quantised(format.held, words.reshape(-1, form.words), shape)


def _taken_apart(format: BlockFormat, blocks: np.ndarray) -> Iterator[tuple[slice, Parts]]:
    """Runs of `blocks`, taken apart."""
    for start in range(0, len(blocks), BLOCKS_AT_ONCE):
        part = slice(start, start + BLOCKS_AT_ONCE)
        with np.errstate(over="ignore", invalid="ignore"):  # scales of a damaged file
            parts = format.decode(blocks[part])
        yield part, parts


def _split(data: np.ndarray, bits: int, width: int) -> np.ndarray:
    """Fields of `bits` in bytes [n, bytes], of each `width` bytes first all lowest fields, as
    [n, groups, fields, width]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return data.reshape(len(data), -1, 1, width) >> shifts & np.uint8((1 << bits) - 1)


def _column(values: np.ndarray) -> Floats:
    return values.astype(np.float32)[:, None]


def _nibbles(blocks: np.ndarray) -> np.ndarray:
    """The 32 numbers of 4 bits in `q`, as one group."""
    return _split(blocks["q"], 4, 16).reshape(-1, 1, 32)


def _fifth_bits(blocks: np.ndarray) -> np.ndarray:
    """Bit j of the 32 in `h` as 16 times 0 or 1 for number j."""
    bits = blocks["h"][:, None, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return bits.astype(np.uint8) << np.uint8(4)


@_format("Q4_0", 2, 32, "q4", ("d", "<f2"), ("q", "u1", 16))
def _(b: np.ndarray) -> Parts:
    return _nibbles(b).astype(np.int8) - np.int8(8), _column(b["d"]), None


@_format("Q4_1", 3, 32, "q4_min", ("d", "<f2"), ("m", "<f2"), ("q", "u1", 16))
def _(b: np.ndarray) -> Parts:
    return _nibbles(b), _column(b["d"]), _column(b["m"])


@_format("Q5_0", 6, 32, "q8", ("d", "<f2"), ("h", "<u4"), ("q", "u1", 16))
def _(b: np.ndarray) -> Parts:
    return (_nibbles(b) | _fifth_bits(b)).astype(np.int8) - np.int8(16), _column(b["d"]), None


@_format("Q5_1", 7, 32, "q8_min", ("d", "<f2"), ("m", "<f2"), ("h", "<u4"), ("q", "u1", 16))
def _(b: np.ndarray) -> Parts:
    return _nibbles(b) | _fifth_bits(b), _column(b["d"]), _column(b["m"])


@_format("Q8_0", 8, 32, "q8", ("d", "<f2"), ("q", "i1", 32))
def _(b: np.ndarray) -> Parts:
    return b["q"][:, None], _column(b["d"]), None


@_format("Q2_K", 10, 256, "q4_16_min", ("s", "u1", 16), ("q", "u1", 64), ("d", "<f2"),
         ("m", "<f2"))
def _(b: np.ndarray) -> Parts:
    scale = _column(b["d"]) * (b["s"] & 15)
    least = _column(b["m"]) * (b["s"] >> 4)
    return _split(b["q"], 2, 32).reshape(-1, 16, 16), scale, -least


@_format("Q3_K", 11, 256, "q4_16", ("h", "u1", 32), ("q", "u1", 64), ("s", "u1", 12),
         ("d", "<f2"))
def _(b: np.ndarray) -> Parts:
    low = _split(b["s"][:, :8], 4, 8).reshape(-1, 16)
    high = _split(b["s"][:, 8:], 2, 4).reshape(-1, 16)
    scale = _column(b["d"]) * ((low | high << 4).astype(np.float32) - 32)
    absent = _split(b["h"], 1, 32).reshape(-1, 256) ^ 1
    q = _split(b["q"], 2, 32).reshape(-1, 256).astype(np.int8) - (absent << 2).astype(np.int8)
    return q.reshape(-1, 16, 16), scale, None


def _scales_and_minima(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two times eight numbers of 6 bits out of 12 bytes: of the last four, the low four bits are in
    the last four bytes, the high two above those of the first four."""
    scale, least, both = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    return (np.concatenate([scale & 63, both & 15 | scale >> 2 & 48], axis=1),
            np.concatenate([least & 63, both >> 4 | least >> 2 & 48], axis=1))


def _with_minima(b: np.ndarray, q: np.ndarray) -> Parts:
    scale, least = _scales_and_minima(b["s"])
    return q.reshape(-1, 8, 32), _column(b["d"]) * scale, -(_column(b["m"]) * least)


@_format("Q4_K", 12, 256, "q4_min", ("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("q", "u1", 128))
def _(b: np.ndarray) -> Parts:
    return _with_minima(b, _split(b["q"], 4, 32))


@_format("Q5_K", 13, 256, "q8_min", ("d", "<f2"), ("m", "<f2"), ("s", "u1", 12), ("h", "u1", 32),
         ("q", "u1", 128))
def _(b: np.ndarray) -> Parts:
    high = _split(b["h"], 1, 32).reshape(-1, 8, 32)
    return _with_minima(b, _split(b["q"], 4, 32).reshape(-1, 8, 32) | high << 4)


@_format("Q6_K", 14, 256, "q8_16", ("q", "u1", 128), ("h", "u1", 64), ("s", "i1", 16),
         ("d", "<f2"))
def _(b: np.ndarray) -> Parts:
    low = _split(b["q"], 4, 64).reshape(-1, 256)
    high = _split(b["h"], 2, 32).reshape(-1, 256)
    q = (low | high << 4).astype(np.int8) - np.int8(32)
    return q.reshape(-1, 16, 16), _column(b["d"]) * b["s"], None


@_format("IQ4_NL", 20, 32, "q8", ("d", "<f2"), ("q", "u1", 16))
def _(b: np.ndarray) -> Parts:
    return NONLINEAR[_nibbles(b)], _column(b["d"]), None


@_format("IQ4_XS", 23, 256, "q8", ("d", "<f2"), ("h", "<u2"), ("s", "u1", 4), ("q", "u1", 128))
def _(b: np.ndarray) -> Parts:
    low = (b["s"][:, :, None] >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    high = (b["h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    scale = _column(b["d"]) * ((low | high << 4).astype(np.float32) - 32)
    return NONLINEAR[_split(b["q"], 4, 16).reshape(-1, 8, 32)], scale, None


@_format("MXFP4", 39, 32, "q8", ("e", "u1"), ("q", "u1", 16))
def _(b: np.ndarray) -> Parts:
    scale = np.ldexp(np.float32(1), b["e"].astype(np.int32) - 128)
    return E2M1_DOUBLED[_nibbles(b)], scale[:, None], None
