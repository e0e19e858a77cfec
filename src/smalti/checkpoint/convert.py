"""Weights from any file to a safetensors or GGUF file, in another precision where that is asked.

Names stay those of the source. What is small and matters much stays as precise as it was when
weights become 8-bit floats or blocks: biases, norms, embeddings, first and last layers, and the
autoencoder. The rules are those of stable-diffusion.cpp and of the GGUF files that are published
for ComfyUI, which all of its readers take.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
import numpy.typing as npt

from smalti.checkpoint.blocks import FORMATS
from smalti.checkpoint.container import INTEGERS, open_tensors
from smalti.checkpoint.file_kind import detect
from smalti.checkpoint.folder import model_name
from smalti.checkpoint.gguf import DIMENSIONS_MAX as GGUF_DIMENSIONS_MAX
from smalti.checkpoint.gguf import ORIGINAL_SHAPE, Entry, GgufTensor, writing_gguf
from smalti.checkpoint.hints import arch_config
from smalti.checkpoint.quantise import ENCODERS, quantise
from smalti.checkpoint.source import (
    ARCHITECTURE,
    FAMILY,
    FoundModel,
    named_kind,
    open_source,
    with_parts,
)
from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.families import backbones, text_encoders
from smalti.families.hints import Hints
from smalti.families.names import FileKind
from smalti.runtime.tensor_file import RAW_TYPES

PRECISIONS = {"f32": "F32", "f16": "F16", "bf16": "BF16", "fp8": "F8_E4M3",
              **{name.lower(): name for name in ENCODERS}}
"""What may be asked for -> dtype tag."""
CONTAINERS = (".safetensors", ".gguf")
PRECISE = (r"(^|\.)(first_stage_model|vae)\.|^(en|de)coder\.(conv|down|up|mid|norm|head)"
           r"|quant_conv\.|embedding|_embed(\.|$)|_embedder\.|embed_tokens|relative_attention")
"""Names of tensors that stay precise when others become 8-bit floats or blocks, whatever the model;
the record of its denoiser has more."""
PRECISE_ELEMENTS_MAX = 1024
FULL = ("F32", "F16", "BF16")
LARGEST = {"F16": 65504.0, "F8_E4M3": 448.0}
"""Largest value of a type -> what has larger ones stays in the next larger type."""
LARGER = {"F8_E4M3": "F16", "F16": "F32"}
NAME_BYTES_MAX = 127
"""Of a tensor in GGUF; readers of diffusion models take longer names than ggml's own 63 bytes."""
ROW = 256
"""Numbers in a row where the rows of a weight are no whole blocks."""
SMALLER_BLOCKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What weights get whose numbers are no whole blocks of 256; those of no blocks at all get F16."""
GGUF_INTEGERS = {"U8": "I16", "BOOL": "I8", "U16": "I32", "U32": "I64", "U64": "I64"}
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K": 14,
              "Q5_K": 16, "Q6_K": 18, "BF16": 32}
"""`general.file_type` of llama.h: what most tensors are."""
NUMPY = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
         "F8_E5M2": ml_dtypes.float8_e5m2}


@dataclass(frozen=True)
class Given:
    """A tensor to convert: as stored, where it can be read, and how memory is given back."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: Callable[[], np.ndarray]
    read: Callable[[], npt.NDArray[np.float32]]
    drop: Callable[[], None]


@dataclass(frozen=True)
class Planned:
    """A tensor, and the dtype tag and shape in which it is to be written."""

    given: Given
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of it in the file."""
        count = math.prod(self.shape)
        if self.dtype in FORMATS:
            return count // FORMATS[self.dtype].elements * FORMATS[self.dtype].bytes
        return count * np.dtype(RAW_TYPES[self.dtype]).itemsize

    def content(self) -> np.ndarray:
        """The numbers as they are written; blocks as bytes. Lets go of what was read."""
        given = self.given
        if self.dtype == given.dtype:
            found = given.raw()
        elif self.dtype in FORMATS:
            values = given.read()
            if not np.isfinite(values).all():
                raise InputError(f"{given.name} holds NaN or infinity; the model file is damaged or"
                                 " its training diverged, use another copy")
            found = quantise(self.dtype, values)
        elif given.dtype in INTEGERS:
            found = given.raw().astype(RAW_TYPES[self.dtype])
        else:
            found = given.read().astype(NUMPY.get(self.dtype, RAW_TYPES[self.dtype]))
        if self.dtype not in FORMATS:
            found = found.view(NUMPY.get(self.dtype, found.dtype)).reshape(self.shape)
        return np.ascontiguousarray(found)


@dataclass(frozen=True)
class Conversion:
    """What a file is to become: planned tensors, and what is said about them."""

    container: str
    tensors: tuple[Planned, ...]
    metadata: Mapping[str, str]
    kind: FileKind | None
    notes: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def precisions(self) -> dict[str, int]:
        """Number of tensors by dtype tag, most frequent first."""
        return dict(Counter(tensor.dtype for tensor in self.tensors).most_common())

    def _main_dtype(self) -> str:
        """The dtype tag of most bytes."""
        sizes = Counter({dtype: 0 for dtype in self.precisions})
        for tensor in self.tensors:
            sizes[tensor.dtype] += tensor.bytes
        return max(sizes, key=sizes.__getitem__, default="F32")

    def write(self, stream: BinaryIO) -> Iterator[int]:
        """Write the file; gives the bytes of tensors that are written so far, tensor by tensor."""
        if self.container == ".gguf":
            yield from self._write_gguf(stream)
        else:
            yield from self._write_safetensors(stream)

    def _write_safetensors(self, stream: BinaryIO) -> Iterator[int]:
        header: dict[str, object] = {"__metadata__": dict(self.metadata)} if self.metadata else {}
        at = 0
        for tensor in self.tensors:
            header[tensor.given.name] = {"dtype": tensor.dtype, "shape": tensor.shape,
                                         "data_offsets": (at, at + tensor.bytes)}
            at += tensor.bytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        stream.write(len(text).to_bytes(8, "little") + text)
        done = 0
        for tensor in self.tensors:
            stream.write(tensor.content().reshape(-1).view(np.uint8).data)
            tensor.given.drop()
            done += tensor.bytes
            yield done

    def _write_gguf(self, stream: BinaryIO) -> Iterator[int]:
        entries: dict[str, Entry] = {
            ARCHITECTURE: self.metadata.get(ARCHITECTURE) or (
                self.kind.family or self.kind.id if self.kind else "none"),
            "general.quantization_version": 2,
            "general.file_type": FILE_TYPES.get(self._main_dtype(), 1),
        }
        entries |= {key: value for key, value in self.metadata.items()
                    if not key.startswith("general.")}
        for tensor in self.tensors:
            if tensor.shape != tensor.given.shape and tensor.given.shape:
                entries[ORIGINAL_SHAPE + tensor.given.name] = list(tensor.given.shape)
        tensors = [GgufTensor(tensor.given.name, tensor.shape,
                              tensor.dtype if tensor.dtype in FORMATS else tensor.dtype.lower(),
                              tensor.content) for tensor in self.tensors]
        done = 0
        for number in writing_gguf(stream, entries, tensors, NAME_BYTES_MAX):
            self.tensors[number].given.drop()
            done += self.tensors[number].bytes
            yield done


def plan(path: str | Path, container: str, precision: str | None = None,
         text_encoders: Sequence[Path] = (), vae: Path | None = None) -> Conversion:
    """How the weights at `path`, a file or a diffusers folder, are written to a `container` (of
    CONTAINERS) in a `precision` (of PRECISIONS; None for that which they have).

    Parts of a folder, or of several files, get the names that Smalti has for them; so does a model
    whose autoencoder or text encoders are replaced. Raises InputError for what the container cannot
    hold, CheckpointError for files that cannot be read.
    """
    if container not in CONTAINERS:
        raise InputError(f"the output ends in {container!r}; expected {' or '.join(CONTAINERS)}")
    if precision is not None and precision not in PRECISIONS:
        raise InputError(f"--precision is {precision!r}; known: {', '.join(PRECISIONS)}")
    wanted = PRECISIONS[precision] if precision else None
    if container == ".safetensors" and wanted in FORMATS:
        raise InputError(f"safetensors files cannot hold {precision}; give an output that ends in"
                         " .gguf, or another --precision")
    if container == ".gguf" and wanted == "F8_E4M3":
        raise InputError("GGUF files cannot hold fp8; give an output that ends in .safetensors, or"
                         " --precision q8_0")
    path = Path(path)
    if path.is_dir() or text_encoders or vae:
        given, metadata, kind, notes = _of_parts(path, text_encoders, vae)
    else:
        given, metadata, kind, notes = _of_file(path)
    if container == ".gguf":
        given = [item if math.prod(item.shape) else _zero(item) for item in given]
    tensors = tuple(_planned(item, container, wanted) for item in given)
    return Conversion(container, tensors, metadata, kind, notes)


def _of_file(path: Path) -> tuple[list[Given], Mapping[str, str], FileKind | None, tuple[str, ...]]:
    file = open_tensors(path)

    def given(name: str) -> Given:
        return Given(name, file.dtype(name), file.shape(name), lambda: file.raw(name),
                     lambda: file.read(name), lambda: file.drop(name))

    kind = detect({name: file.shape(name) for name in file})
    told = named_kind(kind, model_name(path), file.metadata.get(FAMILY, ""))
    telling = {each.architecture for each in text_encoders().values() if each.architecture}
    kept = {key: value for key, value in file.metadata.items() if not key.startswith("general.")
            or key == ARCHITECTURE and value in telling}
    return [given(name) for name in file], kept | _family(told, kind), told, file.notes


def _of_parts(path: Path, text_encoders: Sequence[Path], vae: Path | None
              ) -> tuple[list[Given], Mapping[str, str], FileKind | None, tuple[str, ...]]:
    source = with_parts(open_source(path), text_encoders, vae)
    given = [Given(name, tensor.dtype, tensor.shape, tensor.raw, tensor.read, tensor.drop)
             for name, tensor in source.tensors.items()]
    shown = detect(source.shapes)
    return (given, {"arch_config": arch_config(_hints(source)), **_family(source.kind, shown)},
            source.kind, source.notes)


def _family(kind: FileKind | None, shown: FileKind | None) -> dict[str, str]:
    """What tells the family of a model where its name did and its tensors do not."""
    if kind is None or shown is None or not kind.family or kind.id == shown.id:
        return {}
    return {FAMILY: kind.family}


def _hints(source: FoundModel) -> Hints:
    """What the source states, about text encoders in the order in which a single file has them."""
    hints = source.hints()
    if source.family is None or not hints.texts:
        return hints
    places = [source.place(text.encoder.name) for text in source.family.texts]
    return replace(hints, texts=tuple(hints.texts[place] for place in places
                                      if place < len(hints.texts)))


def _zero(given: Given) -> Given:
    """One zero for an empty tensor, which GGUF cannot hold: that some are there says what a model
    predicts."""
    zero = np.zeros(1, np.float32)
    return replace(given, dtype="F32", shape=(1,), raw=zero.copy, read=zero.copy)


def _planned(given: Given, container: str, wanted: str | None) -> Planned:
    dtype = _dtype(given, container, wanted)
    if container != ".gguf":
        return Planned(given, dtype, given.shape)
    shape = _stored_shape(given.shape, FORMATS[dtype].elements if dtype in FORMATS else 1)
    if shape is None:
        return _planned(given, container, SMALLER_BLOCKS.get(dtype, "F16"))
    return Planned(given, dtype, shape)


def _dtype(given: Given, container: str, wanted: str | None) -> str:
    """The dtype tag that a tensor gets."""
    own, gguf = given.dtype, container == ".gguf"
    if own in INTEGERS:
        return GGUF_INTEGERS.get(own, own) if gguf else own
    full = own if own in FULL else "F16"
    held = own in FULL or own == "F64" or (own in FORMATS if gguf else own in NUMPY)
    dtype = wanted or (own if held else full)
    flat = len(given.shape) <= 1
    small = flat or math.prod(given.shape) <= PRECISE_ELEMENTS_MAX
    if wanted in FORMATS or wanted == "F8_E4M3":
        if small or is_precise(given.name):
            dtype = "F32" if gguf and small else full
    elif gguf and flat and wanted in ("F16", "BF16"):
        dtype = "F32"  # ggml adds and scales in f32
    while dtype != own and dtype in LARGEST and not _fits(given, dtype):
        dtype = LARGER[dtype]
    return dtype


def is_precise(name: str) -> bool:
    """Whether a tensor of this name stays as precise as it is."""
    return any(re.search(pattern, name)
               for pattern in (PRECISE, *(kind.precise for kind in backbones().values())))


def _fits(given: Given, dtype: str) -> bool:
    """Whether a type has values as large as the largest of a tensor."""
    if given.dtype == "F16" and dtype == "F16" or not math.prod(given.shape):
        return True
    values = given.read()
    fits = bool(np.abs(values).max() <= LARGEST[dtype]) or not np.isfinite(values).all()
    given.drop()
    return fits


def _stored_shape(shape: tuple[int, ...], elements: int) -> tuple[int, ...] | None:
    """The shape that GGUF can hold, rows being whole blocks; None where there is none."""
    count, shape = math.prod(shape), shape or (1,)
    if len(shape) <= GGUF_DIMENSIONS_MAX and shape[-1] % elements == 0:
        return shape
    row = next((row for row in (ROW, elements) if row % elements == 0 and count % row == 0), None)
    return (count // row, row) if row else None
