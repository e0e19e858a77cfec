"""What `smalti generate` does beside making pictures."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

import smalti
from smalti.cli.generate import previewed


def test_a_preview_that_a_viewer_has_open_does_not_end_the_work(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
        ) -> None:
    """As on Windows, which replaces and deletes no file that is open."""
    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Access is denied")

    steps = [SimpleNamespace(result=None, denoised=np.zeros(1)) for _ in range(3)]
    preview = cast(smalti.Preview, lambda latent: [Image.new("RGB", (4, 4))])
    work = previewed(iter(cast(Any, steps)), preview, tmp_path / "preview.png")
    next(work)
    assert (tmp_path / "preview.png").exists()
    monkeypatch.setattr(os, "replace", refused)
    monkeypatch.setattr("smalti.replacement.WAITS", ())
    next(work)
    assert next(work) is steps[2]
    monkeypatch.setattr(Path, "unlink", refused)
    assert list(work) == []
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "not every step has a preview" in said[0]
    assert said[1] == f"the preview {tmp_path / 'preview.png'} stays: Access is denied"
