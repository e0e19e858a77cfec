"""The end of every script: the table, the file, the exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from smalti.benchmark.table import Row, show


def finish(rows: Sequence[Row], path: Path | None) -> int:
    """Print the table, write it as JSON where asked; the exit code: 1 when a bound is missed."""
    print(show(rows), flush=True)
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return int(any(row.ok is False for row in rows))
