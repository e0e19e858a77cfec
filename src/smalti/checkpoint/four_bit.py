"""Weights of 4 bits as bitsandbytes stores them: NF4 (QLoRA, arXiv:2305.14314) and FP4.

`<weight>` is a row of bytes with two numbers each, the first in the high bits; they are places in
`<weight>.quant_map`, which has 16 values, and each block of them is multiplied with its entry in
`<weight>.absmax`. Those may be 8-bit places themselves, in `nested_quant_map`, with a scale a block
and an offset. `<weight>.quant_state.bitsandbytes__nf4` is JSON with the shape and the sizes of
blocks. Source: bitsandbytes/functional.py, class QuantState (MIT).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass
from smalti.errors import CheckpointError
from smalti.runtime.tensor_file import DIMENSIONS_MAX, TensorEntry, Tensors

FORMATS = ("NF4", "FP4")
STATE = re.compile(r"(.+)\.quant_state\.bitsandbytes__(nf4|fp4)")
STATE_BYTES_MAX = 10_000
"""Of the JSON beside a weight, which has seven short values."""
HELPERS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
BLOCK_MAX = 1 << 16
"""Numbers that share a scale; bitsandbytes has 64 to 4096 of them."""
OFFSET_MAX = 1e30
"""Of scales; a larger one would make infinities of f32."""


@dataclass(frozen=True)
class FourBitEntry(TensorEntry):
    """A weight: numbers of a block that share a scale, and of a block of scales; 0 for plain ones.

    `offset` is what is added to scales that are stored as places.
    """

    block: int
    scale_block: int
    offset: float


def unpacked(file: Tensors) -> Tensors:
    """`file` itself, or its tensors with weights of 4 bits as what they stand for.

    Raises CheckpointError where what describes them is damaged.
    """
    return FourBitTensors(file) if any(map(STATE.fullmatch, file)) else file


class FourBitTensors(Tensors):
    """The weights of a file of which some have 4 bits; their dtype tags are "NF4" and "FP4".

    `raw` gives the bytes as stored, `read` the numbers.
    """

    def __init__(self, file: Tensors) -> None:
        self.path, self.format, self.size_bytes = file.path, file.format, file.size_bytes
        self.metadata, self.notes = file.metadata, file.notes
        self._file = file
        states = {match[1]: match for match in map(STATE.fullmatch, file) if match}
        helpers = {f"{weight}.{helper}" for weight in states for helper in HELPERS}
        helpers |= {match[0] for match in states.values()}
        self._helpers = [name for name in file if name in helpers]
        self.entries = {name: file.entry(name) for name in file if name not in helpers}
        for weight, match in states.items():
            self.entries[weight] = self._checked(weight, match)

    def raw(self, name: str) -> np.ndarray:
        """Read-only view on what is stored."""
        self.entry(name)
        return self._file.raw(name)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A dense float32 copy of a tensor."""
        entry = self.entry(name)
        if not isinstance(entry, FourBitEntry):
            return self._file.read(name)
        packed = self._file.raw(name).reshape(-1, 1)
        both = packed >> np.array([4, 0], np.uint8) & np.uint8(15)
        places = both.reshape(-1)[:math.prod(entry.shape)]
        values = self._file.read(f"{name}.quant_map").reshape(-1)[places]
        scales = np.repeat(self._scales(name, entry), entry.block)[:len(values)]
        return (values * scales).reshape(entry.shape)

    def ahead(self, names: Iterable[str]) -> None:
        """Have the system begin to read what holds `names`, and what their scales are."""
        self._file.ahead([*names, *self._helpers])

    def drop(self, name: str) -> None:
        """Let the system take back the memory that holds `name`."""
        self.entry(name)
        self._file.drop(name)

    def _scales(self, name: str, entry: FourBitEntry) -> npt.NDArray[np.float32]:
        """The scale of each block of a weight."""
        scales = self._file.raw(f"{name}.absmax").reshape(-1)
        if not entry.scale_block:
            return self._file.read(f"{name}.absmax").reshape(-1)
        values = self._file.read(f"{name}.nested_quant_map").reshape(-1)[scales]
        nested = self._file.read(f"{name}.nested_absmax").reshape(-1)
        return values * np.repeat(nested, entry.scale_block)[:len(values)] + entry.offset

    def _checked(self, weight: str, match: re.Match[str]) -> FourBitEntry:
        """What is stated about a weight, compared with what is there."""
        stated = self._stated(match[0])
        shape, block = stated.get("shape"), stated.get("blocksize")
        nested, offset = stated.get("nested_blocksize", 0), stated.get("nested_offset", 0.0)
        if not isinstance(shape, list) or len(shape) > DIMENSIONS_MAX or not all(
                type(n) is int and n >= 0 for n in shape):
            raise self._fault(match[0], "states no shape")
        if type(block) is not int or not 0 < block <= BLOCK_MAX or type(nested) is not int \
                or not 0 <= nested <= BLOCK_MAX or type(offset) not in (int, float) \
                or not abs(offset) < OFFSET_MAX:
            raise self._fault(match[0], "states no sizes of blocks")
        count = math.prod(shape)
        blocks = -(-count // block)
        self._require(weight, "U8", -(-count // 2))
        self._require(f"{weight}.quant_map", None, 16)
        self._require(f"{weight}.absmax", "U8" if nested else None, blocks)
        if nested:
            self._require(f"{weight}.nested_quant_map", None, 256)
            self._require(f"{weight}.nested_absmax", None, -(-blocks // nested))
        entry = self._file.entry(weight)
        return FourBitEntry(match[2].upper(), tuple(shape), entry.start, entry.end, block, nested,
                            float(offset))

    def _stated(self, name: str) -> dict:
        entry = self._file.entry(name)
        if entry.dtype != "U8" or entry.end - entry.start > STATE_BYTES_MAX:
            raise self._fault(name, "is no short JSON")
        try:
            stated = json.loads(self._file.raw(name).tobytes())
        except (ValueError, RecursionError):
            stated = None
        if not isinstance(stated, dict):
            raise self._fault(name, "is no JSON object")
        return stated

    def _require(self, name: str, dtype: str | None, count: int) -> None:
        """Raise CheckpointError unless a tensor is there, with so many numbers; floats for None."""
        if name not in self._file:
            raise self._fault(name, "is missing beside a weight of 4 bits")
        found = self._file.dtype(name)
        right = found == dtype if dtype else found in ("F32", "F16", "BF16")
        if not right or math.prod(self._file.shape(name)) != count:
            raise self._fault(name, f"is {found}{list(self._file.shape(name))}; expected"
                                    f" {count} of {dtype or 'floats'}")

    def _fault(self, name: str, said: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {name!r:.200} {said}; the file is damaged; download"
                               " or copy it again")
