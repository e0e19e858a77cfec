"""What a model is called by: an address, in one of four forms.

| form | what it names |
| --- | --- |
| `hf:OWNER/NAME[@REVISION][:FILE]` | a repository of the Hugging Face hub, or a file in it |
| `civitai:MODEL[@VERSION][:FILE]` | a model of civitai, by the numbers in its address |
| `https://HOST/FILE#sha256=HASH` | a file anywhere, by its hash, which is what is trusted |
| a short name, such as `sdxl` | an entry of the catalogue (`smalti models search`) |
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from smalti.dataclass import dataclass
from smalti.errors import FetchError

HUB, CIVITAI = "hf:", "civitai:"
WEB = ("https://", "http://")
OWN_HOSTS = ("127.0.0.1", "::1", "localhost")
"""Hosts that nobody stands between, so that `http` is as good as `https`."""
MAIN = "main"
"""The branch of a repository where none is named."""
_HUB = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.+/-]+))?"
                  r"(?::(?P<file>.+))?", re.ASCII)
_CIVITAI = re.compile(r"civitai:(?P<model>[0-9]{1,12})(?:@(?P<version>[0-9]{1,12}))?"
                      r"(?::(?P<file>.+))?")
_HASH = re.compile(r"sha256[=:]([0-9a-fA-F]{64})")


@dataclass(frozen=True)
class HubAddress:
    """A repository of the hub at a revision, and a file in it; None where it is to be chosen.

    >>> str(HubAddress("org/name", "v1", "a.safetensors")), str(HubAddress("org/name"))
    ('hf:org/name@v1:a.safetensors', 'hf:org/name')
    """

    repository: str
    revision: str = MAIN
    file: str | None = None

    def __str__(self) -> str:
        return (f"{HUB}{self.repository}" + f"@{self.revision}" * (self.revision != MAIN)
                + (f":{self.file}" if self.file else ""))


@dataclass(frozen=True)
class CivitaiAddress:
    """A model of civitai, one of its versions (None: the newest), and a file of that."""

    model: int
    version: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        return (f"{CIVITAI}{self.model}" + (f"@{self.version}" if self.version else "")
                + (f":{self.file}" if self.file else ""))


@dataclass(frozen=True)
class WebAddress:
    """A file at an address, and the SHA-256 that it has to have, in small letters."""

    url: str
    sha256: str

    @property
    def file(self) -> str:
        """What the file is called, by the address."""
        return PurePosixPath(unquote(urlsplit(self.url).path)).name

    def __str__(self) -> str:
        return f"{self.url}#sha256={self.sha256}"


Address = HubAddress | CivitaiAddress | WebAddress


def is_address(text: object) -> bool:
    """Whether something says where to get a model, and is no path.

    >>> is_address("hf:org/name"), is_address("C:/models/a.safetensors"), is_address(None)
    (True, False, False)
    """
    return isinstance(text, str) and text.lower().startswith((HUB, CIVITAI, *WEB))


def parsed(text: str) -> Address:
    """What an address names. Raises FetchError for one that is none.

    >>> parsed("hf:org/name@refs/pr/1:vae/ae.safetensors").file
    'vae/ae.safetensors'
    >>> parsed("civitai:101055@128078")
    CivitaiAddress(model=101055, version=128078, file=None)
    """
    scheme, colon, rest = text.partition(":")
    text = scheme.lower() + colon + rest
    if text.startswith(HUB):
        found = _HUB.fullmatch(text)
        if found is None or "--" in found["repository"] or not stays_inside(found["file"]):
            raise FetchError(f"{text!r:.200} names no model of the hub; expected "
                             f"hf:OWNER/NAME, hf:OWNER/NAME@REVISION or hf:OWNER/NAME:FILE")
        return HubAddress(found["repository"], found["revision"] or MAIN, found["file"])
    if text.startswith(CIVITAI):
        found = _CIVITAI.fullmatch(text)
        if found is None:
            raise FetchError(f"{text!r:.200} names no model of civitai; expected civitai:MODEL or "
                             f"civitai:MODEL@VERSION, by the numbers in its address "
                             f"(.../models/MODEL?modelVersionId=VERSION)")
        version = found["version"]
        return CivitaiAddress(int(found["model"]), None if version is None else int(version),
                              found["file"])
    return _web(text)


def _web(text: str) -> WebAddress:
    """The address of a file, with its hash. Raises FetchError."""
    url, _, fragment = text.partition("#")
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise FetchError(f"{text!r:.200} is no address: {error}") from None
    if parts.scheme != "https" and host not in OWN_HOSTS:
        raise FetchError(f"{text!r:.200} is not fetched without encryption; give its https: one")
    if parts.username is not None or parts.password is not None:
        raise FetchError(f"{parts.scheme}://{host}{parts.path} is given with a password in it, "
                         f"which would be kept with the file; give it without")
    found = _HASH.fullmatch(fragment)
    if found is None:
        raise FetchError(f"{text!r:.300} has no hash; a file from the web is used by its hash only:"
                         f" add #sha256=HASH, with the 64 digits that its page tells")
    address = WebAddress(url, found[1].lower())
    if not host or not stays_inside(address.file or None) or not address.file:
        raise FetchError(f"{text!r:.200} names no file; expected https://HOST/FILE#sha256=HASH")
    return address


def stays_inside(file: str | None) -> bool:
    """Whether a file's name leads out of no folder, on any system; None is no name.

    >>> stays_inside("vae/ae.safetensors"), stays_inside("../ae.safetensors")
    (True, False)
    """
    return file is None or not (
        set(file) & set('\\:*?"<>|\0') or file.startswith("/")
        or {"", ".", ".."} & set(file.split("/")) or not file.isprintable())
