"""JSON files beside weights: configurations and indices."""

from __future__ import annotations

import json
from pathlib import Path

from smalti.errors import CheckpointError

JSON_BYTES_MAX = 10_000_000
"""Of an index of shards or a configuration: one line for each tensor, a hundred bytes each."""


def read_json(path: Path, bytes_max: int = JSON_BYTES_MAX) -> dict[str, object]:
    """A JSON object from a file of at most 10 MB, or what is told. Raises `CheckpointError`."""
    try:
        if path.stat().st_size > bytes_max:
            raise CheckpointError(f"{path} has over {bytes_max} bytes; expected a short JSON")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is no JSON ({error}); download the folder again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    return value
