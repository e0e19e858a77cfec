"""What an adapter or an embedding is, in a few lines: the text of `smalti inspect`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from smalti.checkpoint.adapters.adapter import AdapterFile
from smalti.checkpoint.embeddings import Embedding
from smalti.checkpoint.file_kind import listed
from smalti.errors import CheckpointError, UnknownFamilyError, first_of
from smalti.families import by_name
from smalti.families.distilled import DISTILLED, Recommended

LISTED_MAX = 5  # names, ranks or kinds in one line of `smalti inspect`


def adapter_report(path: str | Path) -> str:
    """What the adapter at `path` is and fits. Raises CheckpointError for a file that is none."""
    adapter = AdapterFile.open(path)
    file = adapter.file
    alphas: Counter[str] = Counter()
    for change in adapter.changes:
        try:
            if change.extent and change.rank:
                alphas.update([f"{change.scale * change.rank:g}"])
        except CheckpointError:
            alphas.update(["damaged"])
    lines = {
        "file": str(path),
        "format": f"{file.format}, {file.size_bytes / 1e6:.1f} MB",
        "family": f"an adapter for {adapter.kind.words}",
        "changes": f"{len(adapter.changes)} layers: {_counts(adapter.forms)}",
        "rank": _counts(adapter.ranks),
        "alpha": _counts(alphas),
        "precision": _counts(Counter(file.dtype(name) for name in file)),
        "few steps": str(found) if (found := adapter.distilled(_recommended(adapter))) else "",
        "embeddings": _embeddings(adapter),
        "not used": f"{len(adapter.left)}: {first_of(adapter.left, LISTED_MAX)}"
        if adapter.left else "",
    }
    return "\n".join(f"{label:<12}{text}" for label, text in lines.items() if text)


def embedding_report(path: str | Path) -> str:
    """What the embedding at `path` is. Raises CheckpointError for a file that is none."""
    word = Embedding.open(path)
    vectors = [f"{len(rows)} x {rows.shape[1]}"
               f" for {encoder or _readers(rows.shape[1])}"
               for encoder, rows in word.vectors.items()]
    lines = {"file": str(path), "family": "a textual-inversion embedding", "word": word.name,
             "vectors": "; ".join(vectors)}
    return "\n".join(f"{label:<12}{text}" for label, text in lines.items())


def _readers(width: int) -> str:
    """The models of which all text encoders that read embeddings are of this width."""
    models = [family.title for family in by_name()
              if {text.encoder.width for text in family.texts if text.encoder.chunked} == {width}]
    return listed(models) if models else "an unknown model"


def _recommended(adapter: AdapterFile) -> Recommended:
    """What is recommended for models of few steps of the kind that an adapter is for."""
    kinds = [family.recommended for family in by_name() if family.backbone.name == adapter.kind.id]
    return kinds[0] if kinds else DISTILLED


def _counts(found: Counter) -> str:
    """The most frequent of them, and how often where there is more than one."""
    if len(found) == 1:
        return str(*found)
    return first_of((f"{what} ({count})" for what, count in found.most_common()), LISTED_MAX)


def _embeddings(adapter: AdapterFile) -> str:
    try:
        return first_of((f"{word.name} ({word.count})" for word in adapter.embeddings), LISTED_MAX)
    except UnknownFamilyError as error:
        return f"damaged ({error})"
