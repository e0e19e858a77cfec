"""The image of a compiled program: code, launches, memory plan and names, without any weights.

It is plain data that goes to bytes and back: JSON for what has names, then code and constants as
they are. The compile cache keeps images.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from smalti.compiler.decoding import decoded
from smalti.errors import InputError
from smalti.graph.operation import DTYPES, FLOATS

HEADER = struct.Struct("<8s32sQQQ")
"""Magic, SHA-256 of all that follows it, and the bytes of text, code and constants."""
MAGIC = b"SMALTI\0\7"
DIGEST_END = 40
BF16_EXPONENT = 0x7F80
"""The exponent bits of a bf16: all are set in NaN and Inf, and in nothing else."""


@dataclass(frozen=True)
class Place:
    """A tensor in the arena: byte offset, shape and strides (in bytes), dtype."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = "f32"


@dataclass(frozen=True)
class WinogradWeight:
    """That a layer computes F(`size`), and how its weight [o, c, 3, 3] lies in the parameter."""

    size: int
    folded: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """Where a parameter lies among the bound weights.

    `kind` is "raw" (as in the checkpoint), "packed" (by the function number `function`, a tile a
    panel) or "constant". `start` is the first element that is meant, of the parameter or among the
    image's constants. `dtype` is what the parameter is taken as.
    """

    name: str
    kind: str
    bytes: int
    start: int = 0
    dtype: str = "f32"
    function: int = -1
    panels: int = 0
    winograd: WinogradWeight | None = None


@dataclass(frozen=True)
class Launch:
    """One launch: function number, tiles from `first` to `tiles`, and a reference for each pointer.

    A reference is ("arena", byte offset) or ("slot", number). Without a `barrier` behind it, the
    next launch begins before all of its tiles are done.
    """

    function: int
    tiles: int
    pointers: tuple[tuple[str, int], ...]
    region: int
    first: int = 0
    barrier: bool = True


@dataclass(frozen=True)
class Operand:
    """Where a host call reads: in the arena where `slot` is negative, else in that slot."""

    slot: int
    place: Place


@dataclass(frozen=True)
class HostCall:
    """An operation that no kernel computes: its meaning is looked up by its name in `graph/`."""

    operation: str
    attributes: dict[str, Any]
    operands: tuple[Operand, ...]
    result: Place
    region: int


@dataclass(frozen=True)
class RegionInfo:
    """What `explain` prints of a kernel or a host call, and where its results lie.

    `bytes` are those of operands and results, each once, as they are stored. In more than one of
    `strips`, it writes its result over the part of an operand that is not read any more. `kernel`
    is the number of its text among those of the image, -1 of a host call.
    """

    form: str
    scope: str
    reason: str
    schedule: str
    flops: int
    bytes: int
    results: tuple[Place, ...]
    strips: int = 1
    kernel: int = -1


@dataclass
class Image:
    """A compiled program; `rows` bounds the numbers of inputs that look up rows of tables.

    Of the `launches`, which are of kernels and calls of the host, the first `steady` depend on
    parameters only and run once after these are bound. Those from there to `changing` depend on the
    inputs named `held` besides, and run when these change.
    `work_seconds` is what a run takes one thread, predicted within a factor of a few. `layouts`
    says what each packing function makes: equal texts are equal bytes. `kernels` are the texts of
    all kernels, each once.
    """

    name: str
    level: str
    precision: str
    arena_bytes: int
    scratch_bytes: int
    weights_bytes: int
    functions: list[int] = field(default_factory=list)
    launches: list[Launch | HostCall] = field(default_factory=list)
    regions: list[RegionInfo] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: dict[str, Place] = field(default_factory=dict)
    outputs: dict[str, Place] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    winograd_sizes: dict[str, int] = field(default_factory=dict)
    layouts: dict[str, int] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    steady: int = 0
    changing: int = 0
    work_seconds: float = 0.0
    code: bytes = b""
    constants: bytes = b""

    def to_bytes(self) -> bytes:
        """The image as bytes; equal images give equal bytes."""
        fields = asdict(self)
        code, constants = fields.pop("code"), fields.pop("constants")
        text = json.dumps(fields, separators=(",", ":")).encode()
        lengths = struct.pack("<QQQ", len(text), len(code), len(constants))
        body = b"".join((lengths, text, code, constants))
        return MAGIC + hashlib.sha256(body).digest() + body

    @classmethod
    def from_bytes(cls, data: bytes) -> Image:
        """The image that `to_bytes` wrote. Raises InputError when `data` is not one, whole."""
        if len(data) < HEADER.size:
            raise InputError(f"{len(data)} bytes are too few for a program; compile it again")
        magic, digest, *lengths = HEADER.unpack_from(data)
        if magic != MAGIC:
            raise InputError("the bytes are not a program of this version of Smalti; compile it "
                             "again")
        if hashlib.sha256(memoryview(data)[DIGEST_END:]).digest() != digest:
            raise InputError("the bytes of the program are damaged or cut off; compile it again")
        at = HEADER.size
        if sum(lengths) != len(data) - at:
            raise InputError("the parts of the program have other lengths; compile it again")
        text, at = data[at:at + lengths[0]], at + lengths[0]
        try:
            image = decoded(cls, json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InputError(f"the program is not written as expected ({error}); compile it again"
                             ) from None
        image.code, image.constants = data[at:at + lengths[1]], data[at + lengths[1]:]
        return image


def finite_at(memory: np.ndarray, place: Place) -> bool:
    """Whether the tensor at `place` in `memory` holds neither NaN nor Inf."""
    array = array_at(memory, place)
    if place.dtype == "bf16":
        return not bool(((array.view(np.uint16) & BF16_EXPONENT) == BF16_EXPONENT).any())
    return place.dtype not in FLOATS or bool(np.isfinite(array).all())


def array_at(memory: np.ndarray, place: Place) -> np.ndarray:
    """The tensor at `place` in `memory` (uint8), without a copy."""
    return np.ndarray(place.shape, DTYPES[place.dtype], memory.data, place.offset, place.strides)
