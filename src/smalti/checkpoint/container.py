"""Any file of weights, opened by what is in it: safetensors, shards, PyTorch pickles, GGUF."""

from __future__ import annotations

import stat
from pathlib import Path

from smalti.checkpoint.four_bit import unpacked
from smalti.checkpoint.gguf import MAGIC as GGUF_MAGIC
from smalti.checkpoint.gguf_file import GgufFile
from smalti.checkpoint.pickled import PickledFile
from smalti.checkpoint.scaled import unscaled
from smalti.checkpoint.shards import Shards, open_indexed, siblings
from smalti.errors import CheckpointError
from smalti.runtime.inputs import checked_path
from smalti.runtime.tensor_file import TensorFile, Tensors

KINDS = ".safetensors, .ckpt, .pt, .pth, .bin or .gguf"
"""Endings of the files that are read; which kind one is, is seen in its first bytes."""
HEAD_BYTES = 512
"""What is read of a file to see its kind: a block of a tar archive, of which the mark stands last.
"""
TAR = (257, b"ustar")
"""Where in its first block a tar archive is marked, and how (POSIX.1-1988)."""
INTEGERS = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
"""Dtype tags of tensors that are no weights; all others are floats, quantised or not."""
PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
"""What pickles of the protocols 2 to 5 begin with; torch.save has never written older ones."""


def open_tensors(path: str | Path) -> Tensors:
    """The tensors of the file at `path`, whatever kind of file it is; see `Tensors`.

    Reads safetensors, with the other shards where it is one of several, or the `.index.json` that
    lists them; what torch.save writes (.ckpt, .pt, .pth, .bin), without executing anything; and
    GGUF. Weights that are stored with scales beside them (scaled fp8, NF4) read as what they stand
    for, and the scales are no tensors of their own. Raises CheckpointError for everything else.

    >>> import tempfile, numpy as np, safetensors.numpy
    >>> path = Path(tempfile.mkdtemp()) / "tiny.safetensors"
    >>> safetensors.numpy.save_file({"a": np.ones((2, 3), np.float16)}, path)
    >>> file = open_tensors(path)
    >>> file.format, file.names(), file.read("a").sum()
    ('safetensors', ('a',), np.float32(6.0))
    """
    path = Path(checked_path(path, "loading", "the path of a model file, or of a folder"))
    try:
        return unscaled(unpacked(_open(path)))
    except OSError as error:
        raise CheckpointError(f"{error.filename or path} cannot be read: {error.strerror or error}"
                              ) from error


def _open(path: Path) -> Tensors:
    if path.suffix == ".json":
        return open_indexed(path, _open_one)
    files = siblings(path)
    if len(files) == 1:
        return _open_one(path)
    return Shards(path, [_open_one(file) for file in files])


def _open_one(path: Path) -> Tensors:
    """The tensors of a single file, by its first bytes."""
    head = _head(path)
    if head.startswith(GGUF_MAGIC):
        return GgufFile(path)
    safetensors = head[8:9] == b"{"
    if head.startswith(b"PK\x03\x04") or head.startswith(PICKLES) and not safetensors:
        return PickledFile(path)
    if head[TAR[0]:].startswith(TAR[1]):
        raise CheckpointError(f"{path} is a tar archive, as PyTorch wrote before version 0.1.10 or"
                              " somebody packed; expected a model file; unpack it, or take another"
                              " file of the same model")
    return TensorFile(path, f"expected a model file ({KINDS})")


def _head(path: Path) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
        raise CheckpointError(f"{path} cannot be read: it is not a regular file; give a model file "
                              f"({KINDS})")
    with open(path, "rb") as stream:
        return stream.read(HEAD_BYTES)
