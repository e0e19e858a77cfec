"""PyTorch's own files (.ckpt, .pt, .pth, .bin), read without running what is in them.

Since 2020 torch.save writes a zip archive: `<folder>/data.pkl` is a pickle of the object, and
`<folder>/data/<key>` the bytes of each storage. Before that it wrote pickles one after the other
(a magic number, a version, facts about the machine, the object, the keys of all storages), then for
each key the number of elements in 8 bytes, and the elements. Source: torch/serialization.py.
Tensors stay in the memory-mapped file; all other objects are left out and counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from smalti.checkpoint import archive
from smalti.checkpoint.archive import ArchiveEntry
from smalti.checkpoint.pickle_machine import Opaque, PickledTensor, run
from smalti.dataclass import dataclass
from smalti.errors import CheckpointError
from smalti.runtime.tensor_file import NAME_LENGTH_MAX, RAW_TYPES, MappedTensors, TensorEntry

PICKLE_BYTES_MAX = 1 << 26
TENSORS_MAX = 100_000
ITEMS_MAX = 150_000
DEPTH_MAX = 16
TEXT_MAX = 10_000
METADATA_MAX = 1000
REPEATED_MAX = 16
"""Tensors may share storages; all together are at most so often the size of the file."""
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
VERSION = 1001
"""What torch.save wrote first before version 1.6 (`torch/serialization.py`, MAGIC_NUMBER and
PROTOCOL_VERSION)."""
DTYPES = {
    "Double": "F64", "Float": "F32", "Half": "F16", "BFloat16": "BF16", "Long": "I64", "Int": "I32",
    "Short": "I16", "Char": "I8", "Byte": "U8", "Bool": "BOOL",
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
    "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "Untyped": "U8",
}
"""What torch calls a storage or a dtype -> dtype tag."""
OTHER_ITEM_BYTES = {"ComplexDouble": 16, "ComplexFloat": 8, "QUInt8": 1, "QInt8": 1, "QInt32": 4,
                    "QUInt4x2": 1, "QUInt2x4": 1}
"""Types of storages that hold no weights."""
WRAPPERS = ("state_dict", "model_state_dict", "params_ema", "params", "model", "module", "net",
            "generator", "ema")
"""Keys under which training programs keep the weights; the first that is there counts."""


@dataclass(frozen=True)
class PickledView(TensorEntry):
    """A tensor of a file, and its strides in elements; the byte range is what it spans."""

    strides: tuple[int, ...]


class PickledFile(MappedTensors):
    """The tensors of one file of torch.save, by their place in it: `unet.conv.weight`.

    `metadata` has the texts and numbers beside them; `notes` says what was left out. Raises
    CheckpointError for a file that is damaged, or that torch.save did not write.
    """

    format = "PyTorch pickle"
    entries: Mapping[str, PickledView]

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        with memoryview(self._map) as data:
            zipped = data[:4] == b"PK\x03\x04"
            value, storages = _zipped(self.path, data) if zipped else _in_a_row(self.path, data)
        found = _Contents(self.path, storages, self.size_bytes)
        found.add(*_unwrapped(value))
        self.entries, self.metadata, self.notes = found.tensors, found.metadata, found.notes()
        if not self.entries:
            raise CheckpointError(f"{self.path} holds no tensors, but {_words(value)}; expected a"
                                  " checkpoint; give the file with the weights")

    def raw(self, name: str) -> np.ndarray:
        """Read-only view on the mapped file, not always dense. BF16 as uint16, float8 as uint8."""
        entry = self.entry(name)
        kind = np.dtype(RAW_TYPES[entry.dtype])
        if 0 in entry.shape:
            return np.zeros(entry.shape, kind)
        flat = np.frombuffer(self._map, kind, (entry.end - entry.start) // kind.itemsize,
                             entry.start)
        steps = [kind.itemsize * stride for stride in self.entries[name].strides]
        return np.lib.stride_tricks.as_strided(flat, entry.shape, steps, writeable=False)


def _zipped(path: Path, data: memoryview) -> tuple[object, dict[str, ArchiveEntry]]:
    """The object of a zip archive, and where the bytes of each storage lie."""
    table = archive.entries(path, data)
    pickles = [name for name in table if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError(
            f"{path} is a zip archive with {len(pickles)} files data.pkl; expected one, as"
            " torch.save writes it; if there are model files in the archive, unpack it first")
    folder = pickles[0].removesuffix("data.pkl")
    order = table.get(f"{folder}byteorder")
    if order and bytes(data[order.start:order.end]) == b"big":
        raise _big_endian(path)
    place = table[pickles[0]]
    if place.end - place.start > PICKLE_BYTES_MAX:
        raise CheckpointError(f"{path} has a pickle of {place.end - place.start} bytes; expected at"
                              f" most {PICKLE_BYTES_MAX}; the file is damaged or no checkpoint")
    value = run(path, data[place.start:place.end]).value
    prefix = f"{folder}data/"
    return value, {name.removeprefix(prefix): stored for name, stored in table.items()
                   if name.startswith(prefix)}


def _in_a_row(path: Path, data: memoryview) -> tuple[object, dict[str, ArchiveEntry]]:
    """The object of a file as torch.save wrote it before 2020, and where each storage lies."""
    code = data[:PICKLE_BYTES_MAX]
    magic = run(path, code)
    if magic.value != MAGIC_NUMBER:
        raise CheckpointError(f"{path} is a pickle that torch.save did not write (it holds"
                              f" {_words(magic.value)}); expected a checkpoint; loading it in"
                              " Python would run what is in it, so give another file")
    version = run(path, code, magic.end)
    if version.value != VERSION:
        raise CheckpointError(f"{path} states another version of torch.save than {VERSION}; the"
                              " file is damaged; download or copy it again")
    machine = run(path, code, version.end)
    if isinstance(machine.value, dict) and machine.value.get("little_endian") is False:
        raise _big_endian(path)
    given = run(path, code, machine.end)
    keys = run(path, code, given.end)
    known = keys.value if isinstance(keys.value, list) else []
    if any(not isinstance(key, str) or key not in given.storages for key in known):
        raise CheckpointError(f"{path} lists storages that it does not mention before; the file is"
                              " damaged; download or copy it again")
    places, at = {}, keys.end
    for key in known:
        storage = given.storages[key]
        end = at + 8 + storage.count * _item_bytes(path, storage.kind)
        if end > len(data) or int.from_bytes(data[at:at + 8], "little") != storage.count:
            raise CheckpointError(f"{path} is cut off or damaged at storage {key[:40]!a}, which"
                                  f" should end at byte {end} of {len(data)}; download or copy it"
                                  " again")
        places[key] = ArchiveEntry(at + 8, end)
        at = end
    return given.value, places


def _big_endian(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} was written on a big-endian machine; expected a little-endian"
                           " file; save it there with `safetensors.torch.save_file`")


def _item_bytes(path: Path, kind: str) -> int:
    """Bytes of one element of a storage, of whatever type torch has."""
    if kind in DTYPES:
        return np.dtype(RAW_TYPES[DTYPES[kind]]).itemsize
    if kind in OTHER_ITEM_BYTES:
        return OTHER_ITEM_BYTES[kind]
    raise CheckpointError(f"{path} holds a storage of type {kind[:40]!a}; expected one of"
                          f" {', '.join(DTYPES)}; the file is damaged or of a newer PyTorch")


def _words(value: object) -> str:
    """What a value is, for a message."""
    if isinstance(value, Opaque):
        return f"an object of {value.what[:80]!a}"
    return f"a {type(value).__name__}"


MODULE_PARTS = ("_parameters", "_buffers", "_modules")
"""What a PyTorch module keeps its tensors and its own modules in."""


def _items(value: object) -> Iterator[tuple[object, object]] | None:
    """Key and value of each thing in a container or a PyTorch module; None for all else."""
    if isinstance(value, Opaque) and isinstance(value.state, dict):
        parts = [part for key in MODULE_PARTS if isinstance(part := value.state.get(key), dict)]
        if len(parts) == len(MODULE_PARTS):
            return (pair for part in parts for pair in part.items())
    if isinstance(value, dict):
        return iter(value.items())
    if isinstance(value, list | tuple):  # long lists of numbers are none of ours
        return ((i, item) for i, item in enumerate(value)
                if isinstance(item, PickledTensor | dict | list | tuple | Opaque))
    return None


def _unwrapped(value: object) -> tuple[object, dict[str, object], str]:
    """The table of weights in what was saved, what stands beside it, and the keys to it."""
    beside: dict[str, object] = {}
    keys: list[str] = []
    for _ in range(DEPTH_MAX):
        if not isinstance(value, dict) or any(isinstance(v, PickledTensor) for v in value.values()):
            break
        key = next((key for key in WRAPPERS if any(_items(value.get(key)) or ())), None)
        if key is None:
            break
        beside.update({name: item for name, item in value.items() if name != key})
        keys.append(key)
        value = value[key]
    return value, beside, ".".join(keys)


def _shown(text: str) -> str:
    """A name out of a file as it can be shown in a terminal."""
    return text[:60] if text.isprintable() else ascii(text[:60])


class _Contents:
    """Tensors, texts and numbers in what was saved; everything else is counted."""

    def __init__(self, path: Path, storages: dict[str, ArchiveEntry], size_bytes: int) -> None:
        self.path, self.storages = path, storages
        self.tensors: dict[str, PickledView] = {}
        self.metadata: dict[str, str] = {}
        self.skipped: Counter[str] = Counter()
        self.beside: Counter[str] = Counter()
        self.bytes_left = REPEATED_MAX * size_bytes

    def add(self, value: object, beside: dict[str, object], keys: str) -> None:
        """Take in the table of weights, and of what stands beside it texts and numbers only."""
        for name, item in self._walk(value):
            self._add(name, item)
        for name, item in self._walk(beside):
            if isinstance(item, PickledTensor):
                self.beside[name.partition(".")[0]] += 1
            else:
                self._add(name, item)
        self.keys = keys

    def notes(self) -> tuple[str, ...]:
        """What was left out."""
        found = []
        if self.skipped:
            listed = [f"{_shown(what)} ({count})" for what, count in self.skipped.most_common(5)]
            more = len(self.skipped) - len(listed)
            found.append(f"left out {sum(self.skipped.values())} objects that are no tensors: "
                         + ", ".join(listed) + (f" and {more} more kinds" if more > 0 else ""))
        if self.beside:
            found.append(f"left out {sum(self.beside.values())} tensors beside {self.keys}, in "
                         + ", ".join(map(_shown, list(self.beside)[:5])))
        return tuple(found)

    def _walk(self, value: object) -> Iterator[tuple[str, object]]:
        """Name and value of each leaf, in order. Raises CheckpointError where they are too many."""
        levels: list[tuple[str, Iterator[tuple[object, object]]]] = [("", iter([("", value)]))]
        seen = 0
        while levels:
            prefix, pairs = levels[-1]
            pair = next(pairs, None)
            if pair is None:
                levels.pop()
                continue
            key, item = pair
            seen += 1
            if seen > ITEMS_MAX:
                raise CheckpointError(f"{self.path} holds over {ITEMS_MAX} objects in one another;"
                                      " expected a checkpoint; the file is damaged or made to harm")
            name = (prefix + str(key)[:NAME_LENGTH_MAX + 1])[:NAME_LENGTH_MAX + 1]
            inner = _items(item) if len(levels) < DEPTH_MAX and name.isprintable() else None
            if inner is None:
                yield name, item
            else:
                levels.append((f"{name}." if name else "", inner))

    def _add(self, name: str, item: object) -> None:
        if isinstance(item, PickledTensor):
            self._add_tensor(name, item)
        elif isinstance(item, str | int | float):
            text = str(item) if len(self.metadata) < METADATA_MAX else ""
            if name.isprintable() and 0 < len(text) <= TEXT_MAX:
                self.metadata[name] = text
        elif item is not None and not isinstance(item, bytes):
            self.skipped[item.what if isinstance(item, Opaque) else type(item).__name__] += 1

    def _add_tensor(self, name: str, tensor: PickledTensor) -> None:
        def fail(found: str) -> CheckpointError:
            return CheckpointError(f"{self.path}: tensor {name[:80]!a} {found}; the file is"
                                   " damaged; download or copy it again")

        if tensor.kind not in DTYPES:
            self.skipped[f"tensors of type {tensor.kind}"] += 1
            return
        if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
            raise fail(f"is no name of at most {NAME_LENGTH_MAX} printable characters")
        if name in self.tensors or len(self.tensors) == TENSORS_MAX:
            raise fail(f"is there twice, or is one of over {TENSORS_MAX}")
        place = self.storages.get(tensor.storage.key)
        if place is None:
            raise fail("has no numbers in the file")
        size = np.dtype(RAW_TYPES[DTYPES[tensor.kind]]).itemsize
        held, count = (place.end - place.start) // size, math.prod(tensor.shape)
        reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
        last = tensor.offset + reach + 1 if count else 0
        if max(last, count) > held:
            raise fail(f"needs {max(last, count)} numbers, of which the file holds {held}")
        self.bytes_left -= count * size
        if self.bytes_left < 0:
            raise fail("repeats numbers of other tensors")
        start = place.start + tensor.offset * size if count else place.start
        end = start + (reach + 1) * size if count else start
        self.tensors[name] = PickledView(DTYPES[tensor.kind], tensor.shape, start, end,
                                         tensor.strides)
