"""What torch.save writes, without torch: pickles of plain data, tensors and objects, as bytes."""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass

import ml_dtypes
import numpy as np

KINDS = {"float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16",
         "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte",
         "bool": "Bool"}
NEWER = {"float8_e4m3fn", "float8_e5m2", "uint16"}
"""Types that have no storage of their own."""
MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
VERSION = b"\x80\x02M\xe9\x03."
MACHINE = b"\x80\x02}(X\x0d\x00\x00\x00little_endian\x88u."


@dataclass(eq=False)
class View:
    """A tensor that is a view: of a flat array, from `offset`, in `shape` with `strides`."""

    flat: np.ndarray
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Code:
    """Instructions that are written as they are."""

    text: bytes


class Writer:
    """Makes instructions; `arrays` are the storages so far."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []

    def code(self, value: object) -> bytes:
        """Instructions that build `value`."""
        if isinstance(value, Code):
            return value.text
        if isinstance(value, np.ndarray):
            steps = tuple(step // value.itemsize for step in
                          np.empty(value.shape, value.dtype).strides)
            return self._tensor(View(value.reshape(-1), 0, value.shape, steps))
        if isinstance(value, View):
            return self._tensor(value)
        if isinstance(value, dict):
            pairs = b"".join(self.code(key) + self.code(item) for key, item in value.items())
            return b"}(" + pairs + b"u"
        if isinstance(value, tuple | list):
            items = b"".join(map(self.code, value))
            return b"(" + items + b"t" if isinstance(value, tuple) else b"](" + items + b"e"
        if value is None or isinstance(value, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        if isinstance(value, int):
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            return b"\x8a" + bytes([len(data)]) + data
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        data = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(data)) + data

    def _tensor(self, view: View) -> bytes:
        self.arrays.append(view.flat)
        kind = view.flat.dtype.name
        newer = kind in NEWER
        storage = b"ctorch.storage\nUntypedStorage\n" if newer else \
            f"ctorch\n{KINDS[kind]}Storage\n".encode()
        count = view.flat.nbytes if newer else view.flat.size
        key = self.code("storage") + storage + self.code(str(len(self.arrays) - 1))
        parts = b"(" + key + self.code("cpu") + self.code(count) + b"tQ" + self.code(view.offset)
        parts += self.code(view.shape) + self.code(view.strides) + b"\x89N"
        parts += f"ctorch\n{kind}\n".encode() if newer else b""
        name = b"_rebuild_tensor_v3" if newer else b"_rebuild_tensor_v2"
        return b"ctorch._utils\n" + name + b"\n(" + parts + b"tR"


def pickled(value: object) -> tuple[bytes, list[np.ndarray]]:
    """A pickle of `value`, and its storages."""
    writer = Writer()
    return b"\x80\x02" + writer.code(value) + b".", writer.arrays


def torch_zip(value: object) -> bytes:
    """The file that torch.save writes since 2020."""
    code, arrays = pickled(value)
    return zipped({"archive/data.pkl": code, "archive/byteorder": b"little",
                   **{f"archive/data/{i}": array.tobytes() for i, array in enumerate(arrays)},
                   "archive/version": b"3\n"})


def zipped(entries: dict[str, bytes]) -> bytes:
    """A zip archive of stored entries."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return stream.getvalue()


def torch_row(value: object) -> bytes:
    """The file that torch.save wrote before 2020."""
    code, arrays = pickled(value)
    keys = b"\x80\x02" + Writer().code([str(i) for i in range(len(arrays))]) + b"."
    data = b"".join(struct.pack("<q", array.size) + array.tobytes() for array in arrays)
    return MAGIC + VERSION + MACHINE + code + keys + data


def bfloat16(array: np.ndarray) -> np.ndarray:
    """The numbers as bfloat16."""
    return array.astype(ml_dtypes.bfloat16)
