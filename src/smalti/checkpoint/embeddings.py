"""Textual inversion: vectors that stand for a word in a prompt (Gal et al. 2022, arXiv:2208.01618).

Files differ in how they are laid out, not in what they hold: n vectors of the width of a text
encoder's embedding table.

    string_to_param.*            AUTOMATIC1111's .pt, pickled
    <token>                      diffusers: one tensor under any name, of one vector or of several
    emb_params                   kohya's trainer
    clip_l, clip_g               one tensor for each text encoder, as SDXL needs them
    bundle_emb.NAME. …           any of these, within an adapter
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smalti.checkpoint.container import INTEGERS, open_tensors
from smalti.dataclass import dataclass
from smalti.errors import CheckpointError, UnknownFamilyError, first_of
from smalti.families import text_encoders
from smalti.runtime.tensor_file import Tensors

BUNDLE = "bundle_emb."
VECTORS_MAX = 1000
"""Of one word; what is behind the 75 tokens of a chunk is not read anyway."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Embedding:
    """The vectors of one word, each f32 [n, width], by text encoder; "" where the file does not say
    for which.

    >>> word = Embedding("cat", {"": np.zeros((2, 768), np.float32)})
    >>> word.fit({"clip_l": 768})["clip_l"].shape, word.count
    ((2, 768), 2)
    """

    name: str
    vectors: Mapping[str, Floats]

    @classmethod
    def open(cls, path: str | Path) -> Embedding:
        """The embedding in a file of any layout; its name is that of the file.

        Raises CheckpointError for a damaged file, UnknownFamilyError for one that holds something
        else.
        """
        file = open_tensors(path)
        return _read(file, Path(path).stem, {name: name for name in file}, str(path))

    @property
    def count(self) -> int:
        """How many tokens it takes in a prompt."""
        return len(next(iter(self.vectors.values())))

    def fit(self, widths: Mapping[str, int]) -> dict[str, Floats]:
        """The vectors for each text encoder of a model, whose embedding tables have these widths.

        Encoders of plain text may go without. Raises CheckpointError naming both when they do not
        fit.
        """
        found = {}
        for encoder, width in widths.items():
            vectors = self.vectors.get(encoder, self.vectors.get(""))
            if vectors is not None and vectors.shape[1] == width:
                found[encoder] = vectors
            elif text_encoders()[encoder].chunked:
                break
        else:
            if found:
                return found
        has = ", ".join(f"{vectors.shape[1]}" + f" for {encoder}" * bool(encoder)
                        for encoder, vectors in self.vectors.items())
        needs = ", ".join(f"{width} for {encoder}" for encoder, width in widths.items())
        raise CheckpointError(f"the embedding {self.name!r} has vectors of width {has}, and the "
                              f"model's text encoders read {needs}; use an embedding that was made "
                              f"for models of this family")


def bundled(file: Tensors) -> list[Embedding]:
    """The embeddings that lie within an adapter file."""
    tables: dict[str, dict[str, str]] = {}
    for stored in file:
        if stored.startswith(BUNDLE):
            name, _, rest = stored.removeprefix(BUNDLE).partition(".")
            tables.setdefault(name, {})[rest] = stored
    return [_read(file, name, table, f"{file.path}, {BUNDLE}{name}")
            for name, table in tables.items()]


def _read(file: Tensors, name: str, table: Mapping[str, str], title: str) -> Embedding:
    """The embedding whose tensors are called so, each with its name in the file."""
    parts = {_encoder(inner): stored for inner, stored in table.items()}
    sound = len(parts) == len(table) > 0 and all(_sound(file, stored) for stored in parts.values())
    if not sound or not ("" in parts) ^ any(parts):
        raise UnknownFamilyError(
            f"{title} is no textual-inversion embedding: it holds {len(table)} tensors "
            f"({first_of(_described(file, table.values()), 3)}); expected one of shape "
            f"[vectors, width], or one for each text encoder ({', '.join(text_encoders())})")
    vectors = {}
    for encoder, stored in parts.items():
        values = np.atleast_2d(file.read(stored))
        if not np.isfinite(values).all():
            raise CheckpointError(f"{title}: {stored!r} holds NaN or Inf; the file is damaged or "
                                  f"its training diverged, use another one")
        vectors[encoder] = values
    if len({len(values) for values in vectors.values()}) > 1:
        raise CheckpointError(f"{title} has other numbers of vectors for each text encoder; "
                              f"expected as many for all, since they stand for the same tokens")
    return Embedding(name, vectors)


def _encoder(name: str) -> str:
    """The text encoder that a tensor is for, or "" where its name does not say."""
    return name if name in text_encoders() else ""


def _sound(file: Tensors, stored: str) -> bool:
    """Whether a tensor may be vectors."""
    shape = file.shape(stored)
    return (len(shape) in (1, 2) and 0 not in shape and file.dtype(stored) not in INTEGERS
            and (len(shape) == 1 or shape[0] <= VECTORS_MAX))


def _described(file: Tensors, names: Iterable[str]) -> list[str]:
    return [f"{name} {list(file.shape(name))}" for name in names]
