"""Regions of MLIR text: types, affine maps, dense constants, names."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from smalti.export.mlir.scalars import TYPES
from smalti.graph.operation import Type

INLINE_ELEMENTS_MAX = 16
"""Constants of at most so many elements are written as numbers to read, others as bytes in hex."""
Map = Sequence[int | str | None]
"""Where an operand is read, one entry an axis: the number of a dimension, an expression, or None
for an axis of one element that is repeated."""


def tensor(type: Type) -> str:
    """
    >>> tensor(Type((2, 3)))
    'tensor<2x3xf32>'
    """
    return f"tensor<{''.join(f'{n}x' for n in type.shape)}{TYPES[type.dtype]}>"


def affine_map(dimensions: int, results: Map) -> str:
    """
    >>> affine_map(2, (1, None))
    'affine_map<(d0, d1) -> (d1, 0)>'
    """
    names = ", ".join(f"d{i}" for i in range(dimensions))
    read = ", ".join("0" if r is None else r if isinstance(r, str) else f"d{r}" for r in results)
    return f"affine_map<({names}) -> ({read})>"


def dense(data: np.ndarray, dtype: str) -> str:
    """The `dense<…>` of an array; more than a few elements are written as their bytes.

    >>> dense(np.array([1.5, 2.0], np.float32), "f32")
    'dense<[1.5, 2.0]>'
    """
    finite = np.isfinite(data.astype(np.float64)).all()
    if data.size == 1 and finite:
        return f"dense<{_number(data.reshape(-1)[0], dtype)}>"
    if data.size == 0:
        return "dense<>"
    if dtype == "bool" or data.size <= INLINE_ELEMENTS_MAX and finite:
        return f"dense<{_nested(data, dtype)}>"
    return f'dense<"0x{np.ascontiguousarray(data).tobytes().hex().upper()}">'


def _number(value: np.generic, dtype: str) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if TYPES[dtype].startswith("i"):
        return str(int(value))
    digits = repr(float(value))
    mantissa, e, exponent = digits.partition("e")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}{e}{exponent}"


def _nested(data: np.ndarray | np.generic, dtype: str) -> str:
    if isinstance(data, np.generic):
        return _number(data, dtype)
    if data.ndim == 0:
        return _number(data.reshape(1)[0], dtype)
    return f"[{', '.join(_nested(part, dtype) for part in data)}]"


def symbol(name: str) -> str:
    """`name` as the name of a value or function: letters, digits and underscores.

    >>> symbol("conv_in.weight")
    'conv_in_weight'
    """
    plain = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
    return plain if not plain[0].isdigit() else f"_{plain}"


def string(text: str) -> str:
    """`text` as a string attribute: quotes, backslashes and control characters are written in hex.

    >>> string('a"b')
    '"a\\\\22b"'
    """
    safe = "".join(f"\\{ord(c):02X}" if c in '"\\' or ord(c) < 32 else c for c in text)
    return f'"{safe}"'
