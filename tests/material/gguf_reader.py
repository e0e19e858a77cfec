"""A reader of GGUF for tests, by https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

ARRAY, STRING = 9, 8
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
           12: "d"}
TYPES = {0: np.float32, 1: np.float16, 24: np.int8, 25: np.int16, 26: np.int32, 27: np.int64,
         28: np.float64, 30: ml_dtypes.bfloat16}


@dataclass
class Cursor:
    """Takes values off the front."""

    data: bytes
    position: int = 0

    def take(self, format: str) -> Any:
        (value,) = struct.unpack_from(f"<{format}", self.data, self.position)
        self.position += struct.calcsize(f"<{format}")
        return value

    def string(self) -> str:
        length = self.take("Q")
        self.position += length
        return self.data[self.position - length:self.position].decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(NUMBERS[kind])


def read_gguf(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Entries and tensors of a file."""
    cursor = Cursor(data)
    assert data[:4] == b"GGUF" and struct.unpack_from("<I", data, 4) == (3,)
    cursor.position = 8
    tensors, entries = cursor.take("Q"), cursor.take("Q")
    found = {cursor.string(): cursor.value(cursor.take("I")) for _ in range(entries)}
    alignment = found.get("general.alignment", 32)
    places = []
    for _ in range(tensors):
        name = cursor.string()
        shape = [cursor.take("Q") for _ in range(cursor.take("I"))]
        places.append((name, shape[::-1], TYPES[cursor.take("I")], cursor.take("Q")))
    start = -(-cursor.position // alignment) * alignment
    arrays = {}
    for name, shape, dtype, offset in places:
        assert offset % alignment == 0 and len(shape) <= 4 and len(name.encode()) < 64
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(data, dtype, count, start + offset).reshape(shape)
    return found, arrays
