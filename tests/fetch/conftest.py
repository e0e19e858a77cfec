"""A hub on loopback, and folders of this test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hub_server
import huggingface_hub.constants
import huggingface_hub.utils._http
import pytest
from hub_server import HubServer

from smalti.fetch import remote


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub without repositories, which the client asks, and nobody waits for."""
    with hub_server.served() as server:
        for name, value in {"ENDPOINT": server.url, "HF_HUB_CACHE": str(tmp_path / "hub"),
                            "HUGGINGFACE_CO_URL_TEMPLATE":
                                server.url + "/{repo_id}/resolve/{revision}/{filename}",
                            "HF_TOKEN_PATH": str(tmp_path / "token"), "HF_HUB_OFFLINE": False,
                            }.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        monkeypatch.setenv("SMALTI_MODELS", str(tmp_path / "models"))
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(remote, "WAITS", (0.0, 0.0, 0.0, 0.0))
        monkeypatch.setattr(huggingface_hub.utils._http.time, "sleep", lambda seconds: None)
        yield server
