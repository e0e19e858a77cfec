"""A file of the web is used by its hash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_server import HubServer, sha256
from safetensors.numpy import save
from tiny_model import METADATA, tiny_weights

from smalti import fetch
from smalti.errors import FetchError

MODEL = save(tiny_weights(), METADATA)


@pytest.fixture
def address(hub: HubServer) -> str:
    hub.served["tiny.safetensors"] = MODEL
    return f"{hub.url}/cdn/tiny.safetensors?key=secret"


def test_a_file_with_its_hash(address: str, hub: HubServer, tmp_path: Path) -> None:
    kept = fetch.kept(f"{address}#sha256={sha256(MODEL)}", None, lambda text: None)
    assert Path(kept.path).read_bytes() == MODEL
    assert Path(kept.path).relative_to(tmp_path / "models/files/web/127.0.0.1").name == \
        "tiny.safetensors"
    assert "secret" not in kept.page
    assert [headers.get("Authorization") for _, _, headers in hub.asked] == [None] * len(hub.asked)


def test_another_content_than_the_hash_says(address: str, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="is not what it should be") as raised:
        fetch.kept(f"{address}#sha256={'0' * 64}", None, lambda text: None)
    assert "secret" not in str(raised.value)
    assert not [path for path in (tmp_path / "models/files").rglob("*") if path.is_file()]


def test_what_is_no_model_by_its_name(hub: HubServer) -> None:
    with pytest.raises(FetchError, match="no model file by its name"):
        fetch.kept(f"{hub.url}/cdn/setup.exe#sha256={'0' * 64}", None, lambda text: None)
