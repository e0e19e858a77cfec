"""GGUF, the file format of ggml: its facts, and a writer.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), all little-endian: magic,
version, number of tensors, number of entries; the entries (key, type, value); for each tensor its
name, dimensions (innermost first), type and offset; then, aligned, the bytes of all tensors, each
aligned.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

import ml_dtypes
import numpy as np

from smalti.checkpoint.blocks import FORMATS
from smalti.dataclass import dataclass
from smalti.errors import InputError

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32
NAME_BYTES_MAX = 63
"""ggml reads no longer names of tensors: with the zero that ends one they take 64 bytes."""
DIMENSIONS_MAX = 4
"""Of a tensor of ggml (GGML_MAX_DIMS)."""
VALUE_TYPES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7,
               "str": 8, "array": 9, "u64": 10, "i64": 11, "f64": 12}
TENSOR_TYPES = {"f32": 0, "f16": 1, "i8": 24, "i16": 25, "i32": 26, "i64": 27, "f64": 28,
                "bf16": 30}
"""Those that are plain arrays; quantised ones come in blocks."""
NUMPY_TYPES = {"f32": "<f4", "f16": "<f2", "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8",
               "f64": "<f8", "bf16": ml_dtypes.bfloat16}
ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
"""Key before the name of a tensor that is stored in another shape than the model has."""
FILE_TYPES = {"f32": 0, "f16": 1}
"""`general.file_type`: what most tensors are."""

Entry = str | int | Sequence[str] | Sequence[int]


@dataclass(frozen=True)
class GgufTensor:
    """A tensor to write: `shape` is outermost first; `read` is called when its turn has come.

    `dtype` is one of TENSOR_TYPES, or a block format such as "Q4_K": then `read` gives its bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]


def write_gguf(stream: BinaryIO, entries: Mapping[str, Entry], tensors: Sequence[GgufTensor],
               name_bytes_max: int = NAME_BYTES_MAX) -> None:
    """Write a GGUF file; one tensor at a time is in memory.

    Entries are strings, whole numbers below 2^32, and lists of strings or of numbers below 2^31.
    Raises InputError for a tensor that GGUF cannot hold: a name that is empty, taken or over
    `name_bytes_max` bytes, more than four dimensions, another dtype, or an array of another shape
    than announced.

    >>> import io
    >>> file = io.BytesIO()
    >>> tensor = GgufTensor("a", (2, 3), "f32", lambda: np.ones((2, 3)))
    >>> write_gguf(file, {"general.name": "tiny"}, [tensor])
    >>> file.getvalue()[:8], len(file.getvalue())
    (b'GGUF\\x03\\x00\\x00\\x00', 160)
    """
    for _ in writing_gguf(stream, entries, tensors, name_bytes_max):
        pass


def writing_gguf(stream: BinaryIO, entries: Mapping[str, Entry], tensors: Sequence[GgufTensor],
                 name_bytes_max: int = NAME_BYTES_MAX) -> Iterator[int]:
    """As `write_gguf`, giving the number of each tensor when it is written."""
    _check(tensors, name_bytes_max)
    stream.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(entries)))
    for key, value in entries.items():
        stream.write(_string(key) + _entry(value))
    offset = 0
    for tensor in tensors:
        shape = tensor.shape[::-1] or (1,)
        stream.write(_string(tensor.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        stream.write(struct.pack("<IQ", _number(tensor.dtype), offset))
        offset += _aligned(_bytes(tensor))
    stream.write(bytes(_aligned(stream.tell()) - stream.tell()))
    for number, tensor in enumerate(tensors):
        stream.write(_content(tensor).data)
        stream.write(bytes(_aligned(_bytes(tensor)) - _bytes(tensor)))
        yield number


def _check(tensors: Sequence[GgufTensor], name_bytes_max: int) -> None:
    taken: set[str] = set()
    for tensor in tensors:
        if not 0 < len(tensor.name.encode()) <= name_bytes_max or tensor.name in taken:
            raise InputError(f"a tensor is named {tensor.name!r}; expected are names of 1 to "
                             f"{name_bytes_max} bytes, each for one tensor")
        known = tensor.dtype in TENSOR_TYPES or tensor.dtype in FORMATS
        if len(tensor.shape) > DIMENSIONS_MAX or not known:
            raise InputError(f"tensor {tensor.name!r} is {tensor.dtype}{list(tensor.shape)}; "
                             f"expected are {', '.join([*TENSOR_TYPES, *FORMATS])} in at most "
                             f"{DIMENSIONS_MAX} dimensions")
        if tensor.dtype in FORMATS and (tensor.shape or (1,))[-1] % FORMATS[tensor.dtype].elements:
            raise InputError(f"tensor {tensor.name!r} has rows of {tensor.shape[-1:]} numbers; "
                             f"blocks of {tensor.dtype} have {FORMATS[tensor.dtype].elements}")
        taken.add(tensor.name)


def _number(dtype: str) -> int:
    return FORMATS[dtype].id if dtype in FORMATS else TENSOR_TYPES[dtype]


def _content(tensor: GgufTensor) -> np.ndarray:
    """The bytes of a tensor. Raises InputError where they are not as many as announced."""
    array = tensor.read()
    if tensor.dtype not in FORMATS:
        if array.shape != tensor.shape:
            raise InputError(f"tensor {tensor.name!r} is {array.shape}, {tensor.shape} was "
                             f"announced")
        array = np.ascontiguousarray(array, NUMPY_TYPES[tensor.dtype])
    elif array.dtype != np.uint8 or array.size != _bytes(tensor):
        raise InputError(f"tensor {tensor.name!r} is {array.size} numbers of {array.dtype}, "
                         f"{_bytes(tensor)} bytes were announced")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _bytes(tensor: GgufTensor) -> int:
    count = int(np.prod(tensor.shape, dtype=np.int64))
    if tensor.dtype in FORMATS:
        return count // FORMATS[tensor.dtype].elements * FORMATS[tensor.dtype].bytes
    return count * np.dtype(NUMPY_TYPES[tensor.dtype]).itemsize


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _entry(value: Entry) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", VALUE_TYPES["str"]) + _string(value)
    if isinstance(value, int):
        return struct.pack("<II", VALUE_TYPES["u32"], value)
    texts = [_string(item) for item in value if isinstance(item, str)]
    numbers = [item for item in value if isinstance(item, int)]
    kind = VALUE_TYPES["i32" if numbers else "str"]  # readers of shapes take no other type
    head = struct.pack("<IIQ", VALUE_TYPES["array"], kind, len(value))
    return head + struct.pack(f"<{len(numbers)}i", *numbers) + b"".join(texts)
