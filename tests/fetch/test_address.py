"""Addresses of models: what they name, and what is none."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import FetchError
from smalti.fetch.address import (
    CivitaiAddress,
    HubAddress,
    WebAddress,
    is_address,
    parsed,
    stays_inside,
)

HASH = "AB" * 32


@pytest.mark.parametrize(("text", "expected"), [
    ("hf:org/name", HubAddress("org/name")),
    ("HF:org/na-me_1.0", HubAddress("org/na-me_1.0")),
    ("hf:org/name@v1.0", HubAddress("org/name", "v1.0")),
    ("hf:org/name:a b.safetensors", HubAddress("org/name", file="a b.safetensors")),
    ("hf:org/name@refs/pr/7:vae/a.gguf", HubAddress("org/name", "refs/pr/7", "vae/a.gguf")),
    ("civitai:4384", CivitaiAddress(4384)),
    ("civitai:4384@128713", CivitaiAddress(4384, 128713)),
    ("civitai:4384@128713:a.safetensors", CivitaiAddress(4384, 128713, "a.safetensors")),
    (f"https://a.org/x/b.safetensors?x=1#sha256={HASH}",
     WebAddress("https://a.org/x/b.safetensors?x=1", HASH.lower())),
    (f"https://a.org/b%20c.gguf#sha256:{HASH}",
     WebAddress("https://a.org/b%20c.gguf", HASH.lower())),
])
def test_what_an_address_names(text: str, expected: object) -> None:
    assert is_address(text)
    assert parsed(text) == expected
    assert parsed(str(expected)) == expected


@pytest.mark.parametrize(("text", "said"), [
    ("hf:name", "hf:OWNER/NAME"), ("hf:", "hf:OWNER/NAME"), ("hf:a/b/c", "hf:OWNER/NAME"),
    ("hf:a/b:../c", "hf:OWNER/NAME"), ("hf:a/b:/etc/passwd", "hf:OWNER/NAME"),
    ("hf:a/b:c\\d", "hf:OWNER/NAME"), ("hf:a--b/c", "hf:OWNER/NAME"), ("hf:a/b@:c", "hf:OWNER"),
    ("civitai:", "civitai:MODEL"), ("civitai:abc", "civitai:MODEL"),
    ("civitai:1@x", "civitai:MODEL"), ("civitai:٣", "civitai:MODEL"),
    ("https://a.org/b.safetensors", "has no hash"),
    ("https://a.org/b.safetensors#sha256=12", "has no hash"),
    (f"http://a.org/b.safetensors#sha256={HASH}", "without encryption"),
    (f"https://user:secret@a.org/b.safetensors#sha256={HASH}", "with a password in it"),
    (f"https://a.org/#sha256={HASH}", "names no file"),
    (f"https://a.org/..%2fb#sha256={HASH}", "names no file|b"),
    (f"https://[/b#sha256={HASH}", "is no address"),
])
def test_what_is_no_address(text: str, said: str) -> None:
    if text.startswith("https://a.org/..%2f"):
        assert parsed(text).file == "b"  # only the last part of a path is a name
        return
    with pytest.raises(FetchError, match=said) as raised:
        parsed(text)
    assert "secret" not in str(raised.value)


@examples(50)
@given(st.text(max_size=30))
def test_a_file_of_an_address_stays_in_its_folder(name: str) -> None:
    if name and stays_inside(name):
        assert ".." not in name.split("/") and not name.startswith("/") and "\\" not in name
        assert parsed(f"hf:a/b:{name}") == HubAddress("a/b", file=name)
