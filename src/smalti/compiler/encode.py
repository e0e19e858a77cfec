"""Modules as bytes: JSON for what has names, then code and constants as they are.

    magic | sha256 of all behind it | bytes of text, code and constants, u64 each | these

The compile cache and engine files keep modules so.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict

from smalti.compiler.decoding import decoded
from smalti.compiler.module import Module
from smalti.errors import InputError

HEADER = struct.Struct("<8s32sQQQ")
"""Magic, SHA-256 of all that follows it, and the bytes of text, code and constants."""
MAGIC = b"SMALTI\0\x0c"
DIGEST_END = 40  # of the header's magic and digest, which the digest leaves out


def to_bytes(module: Module) -> bytes:
    """A module as bytes; equal modules give equal bytes."""
    fields = asdict(module)
    code, constants = fields.pop("code"), fields.pop("constants")
    text = json.dumps(fields, separators=(",", ":")).encode()
    lengths = struct.pack("<QQQ", len(text), len(code), len(constants))
    body = b"".join((lengths, text, code, constants))
    return MAGIC + hashlib.sha256(body).digest() + body


def from_bytes(data: bytes) -> Module:
    """The module that `to_bytes` wrote. Raises InputError when `data` is not one, whole."""
    if len(data) < HEADER.size:
        raise InputError(f"{len(data)} bytes are too few for a program; compile it again")
    magic, digest, *lengths = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InputError("the bytes are not a program of this version of Smalti; compile it again")
    if hashlib.sha256(memoryview(data)[DIGEST_END:]).digest() != digest:
        raise InputError("the bytes of the program are damaged or cut off; compile it again")
    at = HEADER.size
    if sum(lengths) != len(data) - at:
        raise InputError("the parts of the program have other lengths; compile it again")
    text, at = data[at:at + lengths[0]], at + lengths[0]
    try:
        module = decoded(Module, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the program is not written as expected ({error}); compile it again"
                         ) from None
    module.code, module.constants = data[at:at + lengths[1]], data[at + lengths[1]:]
    return module
