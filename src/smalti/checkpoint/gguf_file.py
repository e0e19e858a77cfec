"""Reads GGUF files (`gguf.py` has the layout): tensors in any block format, memory-mapped.

Files of diffusion models keep the names of the original checkpoint, and `general.architecture` says
which model it is. ggml has at most four dimensions and whole blocks in each row, so converters
store some weights in another shape, and the right one as `comfy.gguf.orig_shape.<name>`.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.checkpoint.blocks import FORMATS, dequantise
from smalti.checkpoint.gguf import ALIGNMENT, MAGIC, ORIGINAL_SHAPE, TENSOR_TYPES, VALUE_TYPES
from smalti.dataclass import dataclass
from smalti.errors import CheckpointError
from smalti.runtime.tensor_file import (
    ELEMENTS_MAX,
    NAME_LENGTH_MAX,
    RAW_TYPES,
    MappedTensors,
    TensorEntry,
)

VERSIONS = (2, 3)
TENSORS_MAX = 100_000
ENTRIES_MAX = 10_000
DIMENSIONS_MAX = 8
ARRAY_ITEMS_MAX = 2_000_000
"""Of all arrays of texts together; the largest published vocabularies have 0.8 million."""
KEPT_ITEMS_MAX = 64
"""Of an array of the metadata; longer ones are vocabularies, which are passed over."""
TEXT_MAX = 10_000
"""Characters of a text of the metadata; longer ones are passed over."""
ALIGNMENT_MAX = 1 << 16
"""What the starts of tensors may be multiples of: llama.cpp writes 32, no page is above 65536."""
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q",
           11: "<q", 12: "<d"}
TOKENIZER = "tokenizer.ggml."
"""What the keys about the tokenizer begin with."""
TEXT, ARRAY = VALUE_TYPES["str"], VALUE_TYPES["array"]
PLAIN = {number: name.upper() for name, number in TENSOR_TYPES.items()}
BLOCKS = {format.id: name for name, format in FORMATS.items()}
OTHER_BLOCKS = {9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
                21: "IQ3_S", 22: "IQ2_S", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
                41: "Q1_0"}


@dataclass(frozen=True)
class BlockEntry(TensorEntry):
    """A tensor, and the shape in which the file has it: rows of whole blocks."""

    stored: tuple[int, ...]


class GgufFile(MappedTensors):
    """The tensors of one GGUF file of version 2 or 3, by name, shapes outermost first.

    `metadata` has the entries of the file as texts; of long arrays only how long they are. Raises
    CheckpointError for a file that is damaged or in a block format that is not read.
    """

    entries: dict[str, BlockEntry]

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        cursor = _Cursor(self.path, self._map)
        version, tensors, pairs = _counts(cursor)
        self.format = f"GGUF version {version}"
        self.metadata = {}
        for _ in range(pairs):
            key = cursor.text()
            value = _text_of(cursor)
            if value is not None and key.isprintable() and len(key) <= NAME_LENGTH_MAX:
                self.metadata[key] = value
        records = [_record(cursor) for _ in range(tensors)]
        start = _data_start(cursor, self.metadata)
        self.entries = {record.name: self._entry(cursor, start, record) for record in records}
        if len(self.entries) < len(records):
            raise cursor.fault("two tensors of one name")
        _check_apart(cursor, self.entries)

    def raw(self, name: str) -> np.ndarray:
        """Read-only view on the mapped file. BF16 is seen as uint16.

        Of a block format it is uint8, [..., bytes of a row] in the shape that the file has.
        """
        entry = self.entries.get(name)
        if not isinstance(entry, BlockEntry) or entry.dtype not in FORMATS:
            return super().raw(name)
        flat = np.frombuffer(self._map, np.uint8, entry.end - entry.start, entry.start)
        rows = entry.stored[:-1]
        return flat.reshape(*rows, len(flat) // math.prod(rows))

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A float32 copy of a tensor, whatever its format."""
        if self.dtype(name) not in FORMATS:
            return super().read(name)
        return dequantise(self.dtype(name), self.raw(name)).reshape(self.shape(name))

    def _entry(self, cursor: _Cursor, start: int, record: _Record) -> BlockEntry:
        """Where a tensor lies, with everything that the file says of it checked."""
        dtype, shape = PLAIN.get(record.type) or BLOCKS.get(record.type), record.shape
        if dtype is None:
            other = OTHER_BLOCKS.get(record.type)
            what = f"in the block format {other}" if other else f"of unknown type {record.type}"
            raise CheckpointError(f"{self.path}: tensor {record.name!r} is {what}; Smalti reads"
                                  f" {', '.join([*PLAIN.values(), *FORMATS])}; take a file in one"
                                  " of these")
        elements, size = 1, 0
        if dtype in FORMATS:
            elements, size = FORMATS[dtype].elements, FORMATS[dtype].bytes
        else:
            size = np.dtype(RAW_TYPES[dtype]).itemsize
        count = math.prod(shape)
        if not 0 < count <= ELEMENTS_MAX or shape[-1] % elements:
            raise cursor.fault(f"tensor {record.name!r} is {dtype} of shape {list(shape)}")
        begin = start + record.offset
        end = begin + count // elements * size
        if end > self.size_bytes:
            raise CheckpointError(f"{self.path} is cut off: tensor {record.name!r} ends at byte"
                                  f" {end}, but the file has {self.size_bytes}; download or copy it"
                                  " again")
        stated = self.metadata.pop(ORIGINAL_SHAPE + record.name, None)
        return BlockEntry(dtype, _original(cursor, record.name, shape, stated), begin, end, shape)


def tokenizer_entries(path: Path) -> dict[str, Any]:
    """What a GGUF file says of its tokenizer, by key without what these begin with: texts, and
    lists of texts and of numbers, whole. Raises CheckpointError for a damaged file."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(path, data)
        _, _, pairs = _counts(cursor)
        found: dict[str, Any] = {}
        for _ in range(pairs):
            key = cursor.text()
            if key.startswith(TOKENIZER):
                found[key.removeprefix(TOKENIZER)] = _value(cursor)
            else:
                _text_of(cursor)
    return found


def _value(cursor: _Cursor) -> Any:
    """The next value, whole: a text, which may be of any length that the file has, a number, or a
    list of these."""
    kind = cursor.whole("<I")
    if kind != ARRAY:
        return cursor.number(NUMBERS[kind]) if kind in NUMBERS else _long_text(cursor, kind)
    kind, count = cursor.whole("<I"), cursor.whole("<Q")
    cursor.items_left -= count
    if cursor.items_left < 0:
        raise cursor.fault(f"arrays of over {ARRAY_ITEMS_MAX} values")
    if kind in NUMBERS:
        form = struct.Struct(f"<{count}{NUMBERS[kind][1]}")
        return list(form.unpack(cursor.bytes(form.size)))
    return [_long_text(cursor, kind) for _ in range(count)]


def _long_text(cursor: _Cursor, kind: int) -> str:
    if kind != TEXT:
        raise cursor.fault(f"a value of type {kind}")
    return cursor.bytes(cursor.whole("<Q")).decode("utf-8", "replace")


@dataclass(frozen=True)
class _Record:
    """What the file says of a tensor; the shape is outermost first."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


class _Cursor:
    """Takes values off the front of a file, and no more than it has."""

    def __init__(self, path: Path, data: bytes | mmap.mmap) -> None:
        self.path, self.data, self.position = path, data, 0
        self.items_left = ARRAY_ITEMS_MAX

    def fault(self, said: str) -> CheckpointError:
        """The error for a file that holds `said`."""
        return CheckpointError(f"{self.path} is a damaged GGUF file ({said:.200}); download or copy"
                               " it again")

    def number(self, form: str) -> int | float | bool:
        """The next number, of a `struct` format."""
        size = struct.calcsize(form)
        (value,) = struct.unpack(form, self.bytes(size))
        return value

    def whole(self, form: str) -> int:
        """The next number, of a `struct` format for whole ones."""
        return int(self.number(form))

    def bytes(self, count: int) -> bytes:
        """The next bytes."""
        self.skip(count)
        return self.data[self.position - count:self.position]

    def skip(self, count: int) -> None:
        """Pass over bytes."""
        if count > len(self.data) - self.position:
            raise self.fault(f"cut off: {count} bytes are announced at byte {self.position} of"
                             f" {len(self.data)}")
        self.position += count

    def skip_texts(self, count: int) -> None:
        """Pass over so many texts."""
        length, at = struct.Struct("<Q"), self.position
        try:
            for _ in range(count):
                at += 8 + length.unpack_from(self.data, at)[0]
        except (struct.error, OverflowError):
            raise self.fault(f"cut off within {count} texts") from None
        self.position = at

    def text(self) -> str:
        """The next text, of which no more is taken than a name or a value may have."""
        count = self.whole("<Q")
        if count > TEXT_MAX:
            self.skip(count)
            return ""
        return self.bytes(count).decode("utf-8", "replace")


def _counts(cursor: _Cursor) -> tuple[int, int, int]:
    """Version, number of tensors and number of entries."""
    if cursor.bytes(4) != MAGIC:
        raise CheckpointError(f"{cursor.path} is no GGUF file; expected one that starts with GGUF")
    version = cursor.whole("<I")
    if version not in VERSIONS:
        raise CheckpointError(f"{cursor.path} is GGUF of version {version}; expected version 2 or 3"
                              " on a little-endian machine; take a newer file of the same model")
    tensors, pairs = cursor.whole("<Q"), cursor.whole("<Q")
    if tensors > TENSORS_MAX or pairs > ENTRIES_MAX:
        raise cursor.fault(f"{tensors} tensors and {pairs} entries are announced")
    return version, tensors, pairs


def _text_of(cursor: _Cursor) -> str | None:
    """The next value as text, JSON where it is an array; None where it is too long to keep."""
    kind = cursor.whole("<I")
    if kind == TEXT:
        text = cursor.text()
        return text if text.isprintable() else json.dumps(text)
    if kind in NUMBERS:
        return str(cursor.number(NUMBERS[kind]))
    if kind != ARRAY:
        raise cursor.fault(f"a value of type {kind}")
    kind, count = cursor.whole("<I"), cursor.whole("<Q")
    if kind in NUMBERS and count <= KEPT_ITEMS_MAX:
        return json.dumps([cursor.number(NUMBERS[kind]) for _ in range(count)])
    if kind in NUMBERS:
        cursor.skip(count * struct.calcsize(NUMBERS[kind]))
    elif kind != TEXT:
        raise cursor.fault(f"an array of type {kind}")
    else:
        cursor.items_left -= count
        if cursor.items_left < 0:
            raise cursor.fault(f"arrays of over {ARRAY_ITEMS_MAX} texts")
        if count <= KEPT_ITEMS_MAX:
            return json.dumps([cursor.text() for _ in range(count)])
        cursor.skip_texts(count)
    return f"({count} values)"


def _record(cursor: _Cursor) -> _Record:
    name = cursor.text()
    if not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise cursor.fault(f"a tensor is named {name[:40]!a}")
    dimensions = cursor.whole("<I")
    if dimensions > DIMENSIONS_MAX:
        raise cursor.fault(f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.whole("<Q") for _ in range(dimensions))[::-1] or (1,)
    return _Record(name, shape, cursor.whole("<I"), cursor.whole("<Q"))


def _data_start(cursor: _Cursor, metadata: dict[str, str]) -> int:
    alignment = metadata.get("general.alignment", str(ALIGNMENT))
    if not alignment.isdecimal() or not 0 < int(alignment[:9]) <= ALIGNMENT_MAX:
        raise cursor.fault(f"an alignment of {alignment[:20]}")
    return -(-cursor.position // int(alignment)) * int(alignment)


def _original(cursor: _Cursor, name: str, shape: tuple[int, ...], stated: str | None
              ) -> tuple[int, ...]:
    """The shape of the weight, which is `shape` where the file states no other."""
    if stated is None:
        return shape
    try:
        sizes = json.loads(stated)
    except (ValueError, RecursionError):
        sizes = None
    if not isinstance(sizes, list) or any(type(n) is not int or n < 0 for n in sizes) \
            or math.prod(sizes) != math.prod(shape):
        raise cursor.fault(f"tensor {name!r} of shape {list(shape)} is said to be {stated:.80}")
    return tuple(sizes)


def _check_apart(cursor: _Cursor, entries: dict[str, BlockEntry]) -> None:
    """Raise CheckpointError where two tensors share a byte."""
    reached = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if entry.start < reached:
            raise cursor.fault(f"tensor {name!r} overlaps another one")
        reached = entry.end
