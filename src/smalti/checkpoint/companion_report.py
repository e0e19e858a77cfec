"""What a ControlNet, an upscaler or a tiny autoencoder is, as the text of `smalti inspect`."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from smalti.checkpoint.companion import open_companion
from smalti.checkpoint.companion_kind import kind_of
from smalti.checkpoint.report import millions


def companion_report(path: str | Path) -> str:
    """What the network at `path` is and fits. Raises CheckpointError for a file that is none."""
    found = open_companion(path)
    config, kind = found.config, kind_of(found.config)
    count = sum(math.prod(found.shape(name)) for name in found.names())
    kinds = Counter(found.dtype(name) for name in found.names())
    lines = {
        "file": str(path),
        "family": kind.title(config),
        "details": kind.details(config),
        "precision": ", ".join(f"{kind} ({number} tensors)" for kind, number in kinds.items()),
        "parameters": millions(count),
        "halves": ", ".join(half for half in ("decoder", "encoder") if any(
            name.startswith(f"taesd.{half}.") for name in found.names())),
        "use": kind.use,
    }
    return "\n".join(f"{label:<12}{text}" for label, text in lines.items() if text)
