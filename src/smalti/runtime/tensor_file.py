"""One safetensors file, checked and memory-mapped; tensors are read when they are asked for.

Layout (https://github.com/huggingface/safetensors#format): 8 bytes header length (little-endian),
a JSON object `{name: {"dtype", "shape", "data_offsets"}, "__metadata__": {str: str}}`, then the
bytes of all tensors without holes. Nothing is allocated or mapped by a header that has not been
checked against the size of the file.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass
from smalti.errors import CheckpointError
from smalti.runtime.cpu.conversion import converted

HEADER_BYTES_MAX = 10_000_000  # SD 1.5 has 0.1 MB; parsed, JSON takes up to 30 times its size
NAME_LENGTH_MAX = 500  # names are shown in errors; those of models are far shorter
DIMENSIONS_MAX = 32  # as many as arrays had before numpy 2
ELEMENTS_MAX = 2**60  # so that bytes of any dtype are counted in 64 bits

# dtype tag -> numpy type of the raw view; bfloat16 and float8 are views of their bit patterns
RAW_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}

EXOTIC_TYPES = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
                "F8_E5M2": ml_dtypes.float8_e5m2}
"""Number types that numpy has not, of which a raw view is one of bit patterns."""

SAFETENSORS = "expected a safetensors file (8 bytes header length, then JSON, then tensors)"
# first bytes of files that users pass by mistake: what the file is, and what to do
OTHER_FORMATS = (
    (
        b"PK\x03\x04",
        "a zip archive, most likely a pickled PyTorch checkpoint (.ckpt, .pt, .pth)",
        "make a safetensors file of it with `smalti convert`",
    ),
    (
        b"\x80\x02",
        "a pickle, most likely an old PyTorch checkpoint (.ckpt, .pt)",
        "make a safetensors file of it with `smalti convert`",
    ),
    (b"GGUF", "a GGUF file", "make a safetensors file of it with `smalti convert`"),
    (b"\x89PNG", "a PNG picture", "give a model file (.safetensors) or a diffusers folder"),
    (b"\xff\xd8\xff", "a JPEG picture", "give a model file (.safetensors) or a diffusers folder"),
    (b"RIFF", "a WebP picture or other RIFF file", "give a model file (.safetensors)"),
    (
        b"version https://git-lfs",
        "a Git LFS pointer, not the model itself",
        "fetch the real file with `git lfs pull`, or download it again",
    ),
    (
        b"<!DOCTYPE",
        "a web page, so the download went wrong",
        "download it again; some sites want you to log in first",
    ),
    (b"<html", "a web page, so the download went wrong", "download the file again"),
)


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: dtype tag, shape, and byte range in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Tensors(ABC):
    """Tensors by name, whatever kind of file they lie in; each is read when it is asked for.

    `entries` has shape and dtype tag of each, `metadata` what the file says about itself, `notes`
    what was left out of it; `format` is the kind of file in words, `path` names it in messages.
    """

    path: Path
    format: str
    size_bytes: int
    entries: Mapping[str, TensorEntry]
    metadata: dict[str, str]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def names(self) -> tuple[str, ...]:
        """Names of all tensors, in the order of the file."""
        return tuple(self.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self.entry(name).shape

    def dtype(self, name: str) -> str:
        """Dtype tag of a tensor, such as "F16", "BF16", or a block format such as "Q4_K"."""
        return self.entry(name).dtype

    @abstractmethod
    def raw(self, name: str) -> np.ndarray:
        """Read-only view on the mapped file. BF16 is seen as uint16, float8 as uint8.

        Of a block format it is uint8, with the bytes of a row as last axis.
        """

    def array(self, name: str) -> np.ndarray:
        """Read-only view on the mapped file, of the number type that the file states."""
        raw = self.raw(name)
        exotic = EXOTIC_TYPES.get(self.dtype(name))
        return raw if exotic is None else raw.view(exotic)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A dense float32 copy of a tensor (of any dtype)."""
        return np.ascontiguousarray(to_float32(self.raw(name), self.dtype(name)))

    @abstractmethod
    def ahead(self, names: Iterable[str]) -> None:
        """Have the system begin to read what holds `names`, which are wanted soon, in this order.

        It does not wait for what is read. Where the system has no such call (macOS, Windows),
        nothing happens.
        """

    @abstractmethod
    def drop(self, name: str) -> None:
        """Let the system take back the memory that holds `name`; reading it again brings it back.

        Where the system has no such call, nothing happens.
        """

    def entry(self, name: str) -> TensorEntry:
        """Shape, dtype tag and place of a tensor. Raises CheckpointError for an unknown name."""
        try:
            return self.entries[name]
        except KeyError:
            raise CheckpointError(f"{self.path} holds no tensor {name!r}") from None


class MappedTensors(Tensors):
    """Tensors of one memory-mapped file, whose places are known."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with open(self.path, "rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self.size_bytes = len(self._map)

    def raw(self, name: str) -> np.ndarray:
        """Read-only view on the mapped file. BF16 is seen as uint16, float8 as uint8."""
        entry = self.entry(name)
        raw_type = np.dtype(RAW_TYPES[entry.dtype])
        count = (entry.end - entry.start) // raw_type.itemsize
        if not count:
            return np.zeros(entry.shape, raw_type)
        flat = np.frombuffer(self._map, raw_type, count, entry.start)
        return flat.reshape(entry.shape)

    def ahead(self, names: Iterable[str]) -> None:
        """Have the system begin to read what holds `names`, where it has such a call."""
        if not hasattr(os, "posix_fadvise"):
            return
        with suppress(OSError), open(self.path, "rb") as stream:  # moved since: a hint is lost
            for name in names:  # unlike mmap's, this call lets other threads run
                entry = self.entry(name)
                if entry.start < entry.end:  # no bytes would mean all that come after
                    os.posix_fadvise(stream.fileno(), entry.start, entry.end - entry.start,
                                     os.POSIX_FADV_WILLNEED)

    def drop(self, name: str) -> None:
        """Let the system take back the memory that holds `name`; reading it again brings it back.

        Where the system has no such call, nothing happens.
        """
        entry = self.entry(name)
        if not hasattr(self._map, "madvise") or entry.start == entry.end:
            return
        start = entry.start - entry.start % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, entry.end - start)


class TensorFile(MappedTensors):
    """The tensors of one safetensors file, by name; nothing is read before it is asked for.

    Raises `CheckpointError` for anything that is not a sound safetensors file.

    >>> import tempfile, safetensors.numpy
    >>> path = Path(tempfile.mkdtemp()) / "tiny.safetensors"
    >>> safetensors.numpy.save_file({"a": np.ones((2, 3), np.float16)}, path)
    >>> file = TensorFile(path)
    >>> file.dtype("a"), file.shape("a"), file.read("a").dtype
    ('F16', (2, 3), dtype('float32'))
    """

    format = "safetensors"

    def __init__(self, path: str | Path, expected: str = SAFETENSORS) -> None:
        self.entries, self.metadata = _read_header(Path(path), expected)
        super().__init__(path)


def to_float32(raw: np.ndarray, dtype: str) -> npt.NDArray[np.float32]:
    """Float32 copy of a raw view whose dtype tag is `dtype`.

    >>> to_float32(np.array([0x3F80, 0xC000], np.uint16), "BF16").tolist()
    [1.0, -2.0]
    """
    if dtype == "BF16":
        raw = raw.view(ml_dtypes.bfloat16)
    if dtype in ("F8_E4M3", "F8_E5M2"):
        return _float8_values(dtype)[raw]
    return converted(raw, "f32")


@cache
def _float8_values(dtype: str) -> npt.NDArray[np.float32]:
    """The 256 values of a float8 format (Micikevicius et al. 2022, arXiv:2209.05433)."""
    mantissa_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    values = np.empty(256, np.float32)
    for code in range(256):
        exponent = (code & 0x7F) >> mantissa_bits
        fraction = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        if exponent == 0:
            value = math.ldexp(fraction, 1 - bias)
        elif dtype == "F8_E5M2" and exponent == 31:
            value = math.nan if fraction else math.inf
        elif code & 0x7F == 0x7F:  # E4M3 has a NaN and no infinity
            value = math.nan
        else:
            value = math.ldexp(1 + fraction, exponent - bias)
        values[code] = -value if code & 0x80 else value
    return values


def _read_header(path: Path, expected: str) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            raise CheckpointError(
                f"{path} cannot be read: it is not a regular file; give a model file (.safetensors)"
            )
        with open(path, "rb") as stream:
            return parsed_header(stream, path, status.st_size, expected)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def parsed_header(stream: BinaryIO, path: str | Path, file_bytes: int, expected: str = SAFETENSORS
                  ) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Where the tensors of a file are, and what it says of itself; only its header is read.

    `path` is what the file is called in messages. Raises CheckpointError for anything that is not a
    sound safetensors file of so many bytes.
    """
    start = stream.read(32)
    header_bytes = int.from_bytes(start[:8], "little")
    _check_start(path, start, file_bytes, header_bytes, expected)
    stream.seek(8)
    header = _parse_json(path, stream.read(header_bytes))
    metadata = _checked_metadata(path, header.pop("__metadata__", {}))
    data_start = 8 + header_bytes
    entries = {}
    for name, record in header.items():
        entries[name] = _checked_entry(path, name, record, data_start)
    _check_ranges(path, entries, data_start, file_bytes)
    return entries, metadata


def _check_start(path: str | Path, start: bytes, file_bytes: int, header_bytes: int,
                 expected: str) -> None:
    """Refuse what cannot be a safetensors file by its first bytes and its length."""
    if file_bytes == 0:
        raise CheckpointError(f"{path} is empty; {expected}; download or copy it again")
    for magic, what, advice in OTHER_FORMATS:
        if start.startswith(magic) and start[8:9] != b"{":  # 640 as a length looks like a pickle
            raise CheckpointError(f"{path} is {what}; {expected}; {advice}")
    if file_bytes < 8 + 2:
        raise CheckpointError(
            f"{path} has only {file_bytes} bytes; {expected}; download or copy it again"
        )
    if start[8:9] != b"{" or header_bytes < 2:
        raise CheckpointError(f"{path} is something else: {expected}; give another file")
    if header_bytes > HEADER_BYTES_MAX:
        raise CheckpointError(
            f"{path} announces a header of {header_bytes} bytes; expected at most"
            f" {HEADER_BYTES_MAX}; the file is damaged or not a safetensors file"
        )
    if 8 + header_bytes > file_bytes:
        raise CheckpointError(
            f"{path} announces a header of {header_bytes} bytes, but the whole file has"
            f" {file_bytes}; it is cut off or damaged; download or copy it again"
        )


def _parse_json(path: str | Path, text: bytes) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a name occurs twice")
        return table

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} has a damaged header ({error}); expected JSON; download or copy it again"
        ) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} has a {type(header).__name__} as header; expected an object")
    return header


def _checked_metadata(path: str | Path, metadata: object) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{path} has a damaged `__metadata__`; expected an object of strings")
    return metadata


def _checked_entry(path: str | Path, name: str, record: object, data_start: int) -> TensorEntry:
    """One header record as a `TensorEntry`, with all its fields checked on their own."""

    def fail(found: str, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{path}: tensor {name!r} has {found}; expected {expected};"
            " the file is damaged; download or copy it again"
        )

    if len(name) > NAME_LENGTH_MAX or not name.isprintable():  # it will be shown in a terminal
        raise CheckpointError(
            f"{path}: a tensor is named {name[:40]!a}; expected at most {NAME_LENGTH_MAX} printable"
            " characters; the file is damaged; download or copy it again"
        )
    if not isinstance(record, dict):
        raise fail(f"a record {str(record)[:40]!r}", "dtype, shape and data_offsets")
    dtype, shape, offsets = (record.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in RAW_TYPES:
        raise fail(f"dtype {str(dtype)[:40]!r}", "one of " + ", ".join(RAW_TYPES))
    if not _whole_numbers(shape) or len(shape) > DIMENSIONS_MAX:
        raise fail(f"shape {str(shape)[:80]}", f"at most {DIMENSIONS_MAX} whole numbers")
    if math.prod(size for size in shape if size) > ELEMENTS_MAX:
        raise fail(f"shape {str(shape)[:80]}", f"at most {ELEMENTS_MAX} elements")
    if not _whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fail(f"data_offsets {str(offsets)[:80]}", "[start, end], start <= end")
    wanted = math.prod(shape) * np.dtype(RAW_TYPES[dtype]).itemsize
    if offsets[1] - offsets[0] != wanted:
        raise fail(
            f"{offsets[1] - offsets[0]} bytes", f"{wanted} bytes for {dtype} of shape {shape}"
        )
    return TensorEntry(dtype, tuple(shape), data_start + offsets[0], data_start + offsets[1])


def _whole_numbers(values: object) -> bool:
    """Whether `values` is a list of non-negative ints (JSON `true` is none)."""
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _check_ranges(
    path: str | Path, entries: dict[str, TensorEntry], data_start: int, file_bytes: int
) -> None:
    """The tensors fill the rest of the file exactly: no overlap, no hole, nothing behind it."""
    reached = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.end > file_bytes:
            raise CheckpointError(
                f"{path} is cut off: tensor {name!r} ends at byte {entry.end}, but the file has"
                f" {file_bytes}; download or copy it again"
            )
        if entry.start != reached:
            what = "overlaps the one before it" if entry.start < reached else "follows a hole"
            raise CheckpointError(
                f"{path}: tensor {name!r} {what} (starts at byte {entry.start}, expected"
                f" {reached}); the file is damaged; download or copy it again"
            )
        reached = entry.end
    if reached != file_bytes:
        raise CheckpointError(
            f"{path} has {file_bytes} bytes; expected {reached} by its header; the file is"
            " damaged; download or copy it again"
        )
