"""The record of an operation, and the table of all of them.

An operation is one `Operation`: its name, which attributes it has, how shapes follow from shapes,
what it means (numpy), what it costs and, for composites, what it is made of. Nothing else in
Smalti lists operations by hand: adding one is adding one record in `graph/operations/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import ml_dtypes
import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import InputError

DTYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "bool": np.bool_,
    "i4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "f4e2m1": ml_dtypes.float4_e2m1fn,
    "i2": ml_dtypes.int2, "u2": ml_dtypes.uint2,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8e5m2": ml_dtypes.float8_e5m2, "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f8e8m0": ml_dtypes.float8_e8m0fnu,
}
"""The numpy type of each dtype; those of fewer than eight bits take a byte in memory."""
HALVES = ("bf16", "f16")
FLOATS = ("f64", "f32", "f16", "bf16")


def bits_of(dtype: str) -> int:
    """Bits of an element in a file, where elements of fewer than eight lie side by side.

    >>> bits_of("u4"), bits_of("bool"), bits_of("f64")
    (4, 8, 64)
    """
    narrow = {"i4": 4, "u4": 4, "f4e2m1": 4, "i2": 2, "u2": 2}
    return narrow.get(dtype) or 8 * np.dtype(DTYPES[dtype]).itemsize


REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Type:
    """Shape and dtype of a value; prints as `f32[2, 4, 64, 64]`."""

    shape: tuple[int, ...]
    dtype: str = "f32"

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def bytes(self) -> int:
        """Bytes of the values, without padding."""
        return self.size * np.dtype(DTYPES[self.dtype]).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


ShapeRule = Callable[[Sequence[Type], Mapping[str, Any]], Type]
Meaning = Callable[..., np.ndarray]
FlopRule = Callable[[Sequence[Type], Type, Mapping[str, Any]], int]


@dataclass(frozen=True)
class Operation:
    """One operation: shape rule, numpy meaning, cost and decomposition on adjacent lines.

    `shape(types, attributes)` gives the result's `Type` or raises `InputError`.
    `meaning(*arrays, **attributes)` computes it with numpy and is the definition of the operation.
    `flops(types, result, attributes)` counts additions and multiplications; a transcendental
    function counts as one.
    `pointwise` ones compute each element from the elements at the same place; `commutative` ones
    give the same for their two inputs in either order.
    `decompose(graph, inputs, attributes)` rebuilds a composite from simpler operations.
    """

    name: str
    shape: ShapeRule
    meaning: Meaning
    flops: FlopRule
    inputs: tuple[int, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    pointwise: bool = False
    commutative: bool = False
    decompose: Callable[..., Any] | None = None

    def complete(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given attributes with defaults filled in; lists become tuples.

        Raises InputError for an unknown or missing attribute.
        """
        unknown = set(given) - set(self.attributes)
        if unknown:
            raise InputError(f"{self.name} has no attribute {sorted(unknown)}; "
                             f"it has {sorted(self.attributes)}")
        full = {}
        for name, default in self.attributes.items():
            value = given.get(name, default)
            if value is REQUIRED:
                raise InputError(f"{self.name} needs the attribute {name!r}")
            full[name] = tuple(value) if isinstance(value, list) else value
        return full

    def infer(self, types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
        """The result's type. Raises InputError when the inputs do not fit."""
        low, high = self.inputs
        if not low <= len(types) <= high:
            count = f"{low}" if low == high else f"{low} to {high}"
            raise InputError(f"{self.name} takes {count} input{'s' * (high > 1)}, got {len(types)}")
        return self.shape(types, attributes)


OPERATIONS: dict[str, Operation] = {}


def define(**fields: Any) -> Operation:
    """Make an `Operation` and enter it in the table."""
    operation = Operation(**fields)
    if operation.name in OPERATIONS:
        raise ValueError(f"operation {operation.name} is defined twice")
    OPERATIONS[operation.name] = operation
    return operation


def broadcast(*types: Type) -> Type:
    """The numpy broadcast of shapes; the dtypes must agree."""
    try:
        shape = np.broadcast_shapes(*(t.shape for t in types))
    except ValueError:
        raise InputError(f"shapes {[t.shape for t in types]} do not broadcast") from None
    dtypes = {t.dtype for t in types}
    if len(dtypes) > 1:
        raise InputError(f"dtypes differ: {sorted(dtypes)}")
    return Type(tuple(int(n) for n in shape), types[0].dtype)
