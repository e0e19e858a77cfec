"""Models of civitai: which file, by which hash, and who is told the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer, sha256
from safetensors.numpy import save
from tiny_model import METADATA, tiny_weights

from smalti import fetch
from smalti.errors import FetchError
from smalti.fetch import civitai

MODEL = save(tiny_weights(), METADATA)


def file(hub: HubServer, name: str, content: bytes, **more: Any) -> dict[str, Any]:
    hub.served[sha256(content)] = content
    return {"name": name, "sizeKB": len(content) / 1024 + .1, "type": "Model",
            "hashes": {"SHA256": sha256(content).upper()}, "metadata": {"fp": "fp32"},
            "downloadUrl": f"{hub.url}/cdn/{sha256(content)}", **more}


@pytest.fixture
def site(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    monkeypatch.setattr(civitai, "ENDPOINT", hub.url)
    monkeypatch.setenv("CIVITAI_API_TOKEN", "key")
    hub.civitai[7] = {"id": 7, "name": "Tiny", "allowCommercialUse": ["Image"], "modelVersions": [
        {"id": 71, "files": [
            file(hub, "tiny.ckpt", b"pickled"), file(hub, "vae.safetensors", b"vae", type="VAE"),
            file(hub, "tiny.safetensors", b"whole", primary=True),
            file(hub, "tiny.safetensors", MODEL, metadata={"fp": "fp16"})]},
        {"id": 70, "files": [file(hub, "old.safetensors", MODEL + b"")]}]}
    return hub


def got(name: str) -> Path:
    return Path(fetch.kept(name, None, lambda text: None).path)


def test_halves_of_the_newest_version(site: HubServer, tmp_path: Path) -> None:
    path = got("civitai:7")
    assert path == tmp_path / "models/files/civitai/7@71/tiny.safetensors"
    assert path.read_bytes() == MODEL
    kept = fetch.ModelStore().found("civitai:7")
    assert kept is not None and kept.address == "civitai:7@71"
    assert kept.licence == "allowCommercialUse Image"
    assert {each["Authorization"] for _, _, each in site.asked} == {"Bearer key"}


def test_another_version_and_another_file(site: HubServer) -> None:
    assert got("civitai:7@70").name == "old.safetensors"
    assert got("civitai:7:vae.safetensors").read_bytes() == b"vae"


@pytest.mark.parametrize(("name", "said"), [
    ("civitai:8", "no such file"), ("civitai:7@72", "has no version 72; it has @71, @70"),
    ("civitai:7:other.safetensors", "has no file 'other.safetensors'")])
def test_what_there_is_not(site: HubServer, name: str, said: str) -> None:
    with pytest.raises(FetchError, match=said):
        got(name)


@pytest.mark.parametrize(("told", "said"), [
    ({"hashes": {}}, "no weights with a hash"), ({"name": "../x.safetensors"}, "no weights with a"),
    ({"downloadUrl": "https://evil.example/x"}, "which is another site"),
    ({"hashes": {"SHA256": "0" * 64}}, "is not what it should be")])
def test_what_is_not_fetched(site: HubServer, told: dict[str, Any], said: str) -> None:
    site.civitai[7]["modelVersions"] = [{"id": 71, "files": [
        {**file(site, "a.safetensors", MODEL), **told}]}]
    with pytest.raises(FetchError, match=said):
        got("civitai:7")
