"""Tiny models of all families in files, which tests of pictures share."""

from __future__ import annotations

import pytest
import tiny_families as tiny


@pytest.fixture(scope="session")
def family_files(tmp_path_factory: pytest.TempPathFactory) -> tiny.Files:
    return tiny.Files(tmp_path_factory.mktemp("families"))
