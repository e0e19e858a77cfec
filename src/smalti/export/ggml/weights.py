"""The weights file of a project: the parameters that the model reads, and its larger constants."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import partial
from typing import BinaryIO

import numpy as np

from smalti.checkpoint.gguf import FILE_TYPES, NAME_BYTES_MAX, GgufTensor, write_gguf
from smalti.errors import InputError
from smalti.export.ggml import layout
from smalti.export.ggml.builder import DTYPES, NUMPY_TYPES
from smalti.export.ggml.model import GgmlModel
from smalti.export.ggml.names import plain
from smalti.graph import Value


def refuse_missing(model: GgmlModel, parameters: Mapping[str, np.ndarray]) -> None:
    """Raise InputError where parameters that `model` reads are not there."""
    missing = [value.name for value in model.parameters if value.name not in parameters]
    if missing:
        raise InputError(f"{len(missing)} of {len(model.parameters)} parameters are missing: "
                         f"{', '.join(missing[:10])}{' …' if len(missing) > 10 else ''}")


def write_weights(stream: BinaryIO, model: GgmlModel, parameters: Mapping[str, np.ndarray],
                  precision: str) -> None:
    """Write them as GGUF, what may be so in `precision`, all else as f32 or i32.

    Tensors have the model's names where these are short enough for ggml; `smalti.names` lists the
    whole names in the order of the tensors, `smalti.swapped` those whose axes are exchanged. Raises
    InputError for a parameter of another shape.
    """
    tensors: dict[str, GgufTensor] = {}
    taken: set[str] = set()

    def add(name: str, shape: tuple[int, ...], dtype: str, read: partial) -> None:
        full = plain(name)
        if full in tensors:
            raise InputError(f"two parameters are named {full!r}")
        tensors[full] = GgufTensor(_short(full, taken), shape, dtype, read)
        taken.add(tensors[full].name)

    for value in model.parameters:
        dtype = DTYPES[value.dtype]
        shape = value.shape[::-1] if value.name in model.swapped else value.shape
        add(value.name, layout.dimensions(shape), precision if value.name in model.half else dtype,
            partial(_stored, parameters, value, value.name in model.swapped))
    for name, array in model.constants.items():
        dtype = next(key for key, kind in NUMPY_TYPES.items() if array.dtype == kind)
        add(name, array.shape, dtype, partial(np.asarray, array))
    write_gguf(stream, {
        "general.architecture": "smalti", "general.name": plain(model.graph.name),
        "general.file_type": FILE_TYPES[precision], "smalti.names": list(tensors),
        "smalti.swapped": sorted(map(plain, model.swapped)),
    }, list(tensors.values()))


def _stored(parameters: Mapping[str, np.ndarray], value: Value, swapped: bool) -> np.ndarray:
    array = np.asarray(parameters[value.name])
    if array.shape != value.shape:
        raise InputError(f"parameter {value.name} is {array.shape}, expected {value.shape}")
    if DTYPES[value.dtype] == "i32" and array.size:
        low, high = int(array.min()), int(array.max())
        if low < -2**31 or high >= 2**31:
            raise InputError(f"parameter {value.name} has numbers from {low} to {high}; they are "
                             f"expected to fit 32 bits")
    array = array.T if swapped else array
    return array.reshape(layout.dimensions(array.shape))


def _short(name: str, taken: set[str]) -> str:
    """`name` if ggml can read it, else its end behind eight digits that are its own.

    >>> _short("to_q.weight", set()), _short("block." * 20 + "to_q.weight", set())
    ('to_q.weight', 'ecee5705..block.block.block.block.block.block.block.to_q.weight')
    """
    short, salt = name, 0
    while short in taken or not 0 < len(short.encode()) <= NAME_BYTES_MAX:
        digits = f"{zlib.crc32(name.encode(), salt):08x}."
        tail = name.encode()[-(NAME_BYTES_MAX - len(digits)):].decode(errors="ignore")
        short, salt = digits + tail, salt + 1
    return short
