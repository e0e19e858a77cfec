"""In which format the web UI's API answers with pictures, by its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smalti.errors import InputError

FORMATS = {"png": "PNG", "jpg": "JPEG", "jpeg": "JPEG", "webp": "WEBP"}
"""Of pictures in answers, by the option `samples_format`."""


def check_format(options: Mapping[str, Any]) -> None:
    """Raise InputError for a format of answers that there is not, or a quality out of range."""
    kind, quality = options.get("samples_format", "png"), options.get("jpeg_quality", 1)
    if not isinstance(kind, str) or kind.lower() not in FORMATS:
        raise InputError(f"samples_format is {kind!r:.80}; expected one of {', '.join(FORMATS)}")
    if isinstance(quality, bool) or not isinstance(quality, int) or not 1 <= quality <= 100:
        raise InputError(f"jpeg_quality is {quality!r:.80}; expected a whole number from 1 to 100")
