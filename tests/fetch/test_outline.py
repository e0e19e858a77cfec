"""Models of a server looked at before they are fetched: only their headers are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hub_server import HubServer
from safetensors.numpy import save
from tiny_model import METADATA, TINY, tiny_weights

from smalti import checkpoint, fetch
from smalti.errors import FetchError
from smalti.fetch import ModelStore, outline
from smalti.fetch.choice import RemoteFile
from smalti.fetch.digest import Digest

MODEL = save(tiny_weights(), METADATA)


def silent(text: str) -> None:
    """Nobody listens."""


def test_an_outline_is_what_the_model_is(hub: HubServer, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.fetch.header.FIRST_BYTES", 64)
    hub.repositories["org/tiny"] = {"a/tiny.safetensors": MODEL}
    said: list[str] = []
    path = fetch.outlined("hf:org/tiny", None, tmp_path / "outlines", said.append)
    assert path.name == "tiny.safetensors" and path.stat().st_size == len(MODEL)
    found, header = checkpoint.load(path), 8 + int.from_bytes(MODEL[:8], "little")
    assert found.config.denoiser == TINY.denoiser
    read = [_range(headers) for _, _, headers in hub.of("cdn")]
    assert sum(end - first for first, end in read) <= 2 * header
    assert said[0].startswith("hf:org/tiny: 1 file, 2.2 MB; a Stable Diffusion 1.x checkpoint")
    assert ModelStore().found("hf:org/tiny") is None
    if os.name == "posix":
        assert path.stat().st_blocks * 512 < len(MODEL) / 4  # what is behind the header is a hole


def _range(headers: dict[str, str]) -> tuple[int, int]:
    first, last = headers["Range"].removeprefix("bytes=").split("-")
    return int(first), int(last) + 1


def test_what_is_here_is_taken_itself(hub: HubServer, tmp_path: Path) -> None:
    hub.repositories["org/tiny"] = {"tiny.safetensors": MODEL}
    kept = fetch.kept("hf:org/tiny", None, silent)
    hub.asked.clear()
    assert fetch.outlined("hf:org/tiny", None, tmp_path, silent) == Path(kept.path)
    assert not hub.asked


def test_headers_of_other_formats_are_not_read(hub: HubServer, tmp_path: Path) -> None:
    hub.repositories["org/packed"] = {"tiny-q8_0.gguf": b"GGUF" + bytes(100)}
    with pytest.raises(FetchError, match="only safetensors files .* smalti models get"):
        fetch.outlined("hf:org/packed", None, tmp_path, silent)


def test_without_a_network_only_what_is_here_is_looked_at(
        hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FetchError, match="org/none is not here, and HF_HUB_OFFLINE is set"):
        fetch.outlined("hf:org/none", None, tmp_path, silent)


@pytest.mark.parametrize("name", ["../a.json", "a/../../b.json", "/etc/a.json", "c:a.json",
                                  "..\\a.json"])
def test_no_file_is_written_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(FetchError, match="no name of one in a folder"):
        outline._place(tmp_path, RemoteFile(name, 1, Digest("sha256", "0")))


def test_a_place_without_room_is_told(hub: HubServer, tmp_path: Path) -> None:
    hub.repositories["org/tiny"] = {"tiny.safetensors": MODEL}
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(FetchError, match="cannot be written: .*TMPDIR .* room for 2.2 MB"):
        fetch.outlined("hf:org/tiny", None, tmp_path / "taken", silent)
