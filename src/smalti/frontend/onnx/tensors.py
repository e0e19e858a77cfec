"""Tensors of an ONNX model: checked against what the file really holds, then read.

A `TensorProto` says how many elements it has; nothing is allocated before that number is found to
be what its fields, or its external file, hold. External files are memory-mapped, and lie in the
folder of the model or below: no absolute path, no `..`, no link that leads out.

https://github.com/onnx/onnx/blob/main/docs/ExternalData.md
"""

from __future__ import annotations

import math
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.messages import TensorProto
from smalti.graph.operation import DTYPES, Type, bits_of

T = TensorProto
DTYPE_OF = {
    T.FLOAT: "f32", T.DOUBLE: "f64", T.FLOAT16: "f16", T.BFLOAT16: "bf16",
    T.INT8: "i8", T.INT16: "i16", T.INT32: "i32", T.INT64: "i64",
    T.UINT8: "u8", T.UINT16: "u16", T.UINT32: "u32", T.UINT64: "u64", T.BOOL: "bool",
    T.INT4: "i4", T.UINT4: "u4", T.FLOAT4E2M1: "f4e2m1", T.INT2: "i2", T.UINT2: "u2",
    T.FLOAT8E4M3FN: "f8e4m3fn", T.FLOAT8E4M3FNUZ: "f8e4m3fnuz",
    T.FLOAT8E5M2: "f8e5m2", T.FLOAT8E5M2FNUZ: "f8e5m2fnuz", T.FLOAT8E8M0: "f8e8m0",
}
"""The dtype of each element type of ONNX; strings, complex and 6-bit numbers have none."""
ELEMENT_OF = {dtype: element for element, dtype in DTYPE_OF.items()}
PACKED = tuple(dtype for dtype in DTYPES if bits_of(dtype) < 8)
ELEMENTS_MAX = 1 << 48
"""Elements that a tensor may claim, before they are compared with what the file holds: products of
extents stay far below the 2^63 of a signed word, and no file is as large."""

FIELDS = {
    "float_data": ("f32",), "double_data": ("f64",), "int64_data": ("i64",),
    "uint64_data": ("u32", "u64"),
    "int32_data": ("i32", "i16", "i8", "u16", "u8", "bool", "f16", "bf16", "f8e4m3fn",
                   "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0", *PACKED),
}
WORDS = {"float_data": np.float32, "double_data": np.float64, "int64_data": np.int64,
         "uint64_data": np.uint64, "int32_data": np.int32}
"""The numpy type of the numbers in each field."""
WORDED = tuple(dtype for dtype in FIELDS["int32_data"] if dtype[0] in "bf" or dtype in PACKED)
"""The dtypes whose bits stand in `int32_data`, and not their numbers."""
FIELD_OF = {dtype: field for field, dtypes in FIELDS.items() for dtype in dtypes}


def dtype_of(element: int, what: str) -> str:
    """Our name of an element type. Raises InputError for one that has none."""
    if element not in DTYPE_OF:
        known = dict(T.DataType.items())
        label = next((name for name, n in known.items() if n == element), f"number {element}")
        raise InputError(f"{what} has elements of type {label}; known: {sorted(ELEMENT_OF)}")
    return DTYPE_OF[element]


def shape_of(tensor: TensorProto, name: str = "") -> tuple[int, ...]:
    """The extents of a tensor. Raises InputError for ones that no memory holds."""
    shape = tuple(tensor.dims)
    if any(n < 0 for n in shape) or math.prod(max(n, 1) for n in shape) > ELEMENTS_MAX \
            or len(shape) > 32:
        raise InputError(f"tensor {(name or tensor.name)!r} has the shape {list(shape)[:40]}")
    return shape


def bytes_of(count: int, dtype: str) -> int:
    """Bytes of `count` elements in a file."""
    return (count * bits_of(dtype) + 7) // 8


def read(tensor: TensorProto, folder: Path | None = None, name: str = "") -> np.ndarray:
    """The elements of `tensor`; external ones lie in `folder` or below, and stay in their file.

    Messages call it `name`, where that is given, since tensors of nodes are often nameless.
    Strings are given as an array of objects. Raises InputError when the tensor holds another number
    of elements than it says.

    >>> read(T(data_type=T.FLOAT, dims=(2,), float_data=[1.0, 2.0]))
    array([1., 2.], dtype=float32)
    """
    shape, what = shape_of(tensor, name), f"tensor {(name or tensor.name)!r}"
    count = math.prod(shape)
    if tensor.data_type == T.STRING:
        if len(tensor.string_data) != count:
            raise InputError(f"{what} holds {len(tensor.string_data)} strings, not {count}")
        texts = [text.decode("utf-8", "replace") for text in tensor.string_data]
        return np.array(texts, object).reshape(shape)
    type = type_of(tensor, folder, name)
    if tensor.data_location == T.EXTERNAL:
        return _mapped(tensor, type, *_place(tensor, type, folder, what))
    if tensor.HasField("raw_data"):
        return array_of(np.frombuffer(tensor.raw_data, np.uint8), type)
    words = np.array(getattr(tensor, FIELD_OF[type.dtype]), WORDS[FIELD_OF[type.dtype]])
    if type.dtype in WORDED:  # a word holds the bits of an element, or of several side by side
        return array_of(words.astype(f"u{max(1, bits_of(type.dtype) // 8)}").view(np.uint8), type)
    return words.astype(DTYPES[type.dtype], copy=False).reshape(shape)


def type_of(tensor: TensorProto, folder: Path | None = None, name: str = "") -> Type:
    """The type that `tensor` states, once it is found to hold as many elements.

    Raises InputError where it does not, and for elements without a dtype here.
    """
    what, shape = f"tensor {(name or tensor.name)!r}", shape_of(tensor, name)
    type = Type(shape, dtype_of(tensor.data_type, what))
    if tensor.data_location == T.EXTERNAL:
        _place(tensor, type, folder, what)
        return type
    count, dtype = type.size, type.dtype
    if tensor.HasField("raw_data"):
        held, expected, unit = len(tensor.raw_data), bytes_of(count, dtype), "bytes"
    else:
        held = len(getattr(tensor, FIELD_OF[dtype]))
        expected, unit = bytes_of(count, dtype) if dtype in PACKED else count, "elements"
    if held != expected:
        raise InputError(f"{what} of shape {list(shape)} holds {held} {unit}, not {expected}")
    return type


def _place(tensor: TensorProto, type: Type, folder: Path | None,
           what: str) -> tuple[Path, int]:
    """The file that a tensor names, and where in it the elements begin."""
    fields = {entry.key: entry.value for entry in tensor.external_data}
    if folder is None:
        raise InputError(f"{what} lies in the file {fields.get('location')!r} beside the model; "
                         f"give the path of the model, not the loaded model")
    path = inside(folder, fields.get("location", ""), what)
    try:
        offset, length = int(fields.get("offset", "0")), int(fields.get("length", "-1"))
    except ValueError:
        raise InputError(f"{what}: offset {fields.get('offset')!r} and length "
                         f"{fields.get('length')!r} are no numbers") from None
    size, expected = path.stat().st_size, bytes_of(type.size, type.dtype)
    if offset < 0 or offset + expected > size or length not in (-1, expected):
        raise InputError(f"{what} of type {type} takes {expected} bytes; {length} bytes "
                         f"from {offset} on are named, and {path.name} has {size}; copy the "
                         f"file again")
    return path, offset


def _mapped(tensor: TensorProto, type: Type, path: Path, offset: int) -> np.ndarray:
    """A view of the file that a tensor lies in."""
    shape, dtype, expected = type.shape, type.dtype, bytes_of(type.size, type.dtype)
    if expected == 0:
        return np.zeros(shape, DTYPES[dtype])
    if dtype in PACKED:
        return array_of(np.fromfile(path, np.uint8, expected, offset=offset), type)
    return array_of(np.asarray(np.memmap(path, np.uint8, "r", offset, (expected,))), type)


def array_of(raw: np.ndarray, type: Type) -> np.ndarray:
    """Elements of the bytes that a file has for them; those of fewer than eight bits lie side by
    side there, the first in the lowest bits.

    >>> array_of(np.array([0x21, 0x03], np.uint8), Type((3,), "u4")).tolist()
    [1, 2, 3]
    """
    bits, dtype = bits_of(type.dtype), DTYPES[type.dtype]
    if bits >= 8:
        return raw.view(dtype).reshape(type.shape)
    apart = raw[:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    return apart.reshape(-1)[:type.size].view(dtype).reshape(type.shape)


def tensor_of(array: np.ndarray) -> TensorProto:
    """An array of a dtype of eight bits or more as a tensor.

    >>> read(tensor_of(np.array([[1.5]], np.float16)))
    array([[1.5]], dtype=float16)
    """
    dtype = next(name for name, known in DTYPES.items() if array.dtype == known)
    return T(data_type=ELEMENT_OF[dtype], dims=array.shape, raw_data=array.tobytes())


def inside(folder: Path, location: str, what: str) -> Path:
    """The regular file `location` below `folder`. Raises InputError for any other place."""
    pure = PurePosixPath(location)
    if not location or pure.is_absolute() or PureWindowsPath(location).anchor \
            or "\\" in location or ".." in pure.parts or "\0" in location:
        raise InputError(f"{what} names the file {location!r}; a relative path in the folder of "
                         f"the model is expected")
    try:
        path = (folder / pure).resolve(strict=True)
        inner = path.is_relative_to(folder.resolve(strict=True))
        regular = stat.S_ISREG(path.stat().st_mode)
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{what} lies in the file {location!r} beside the model, which cannot be "
                         f"read: {why}; copy it there, under that name") from None
    if not inner or not regular:
        raise InputError(f"{what} names the file {location!r}, which "
                         f"{'is no regular file' if inner else 'leads out of the model folder'}")
    return path
