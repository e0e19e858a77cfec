"""Models of civitai, by its public API (https://developer.civitai.com, `/api/v1`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from smalti import settings
from smalti.errors import FetchError
from smalti.fetch.address import CivitaiAddress, stays_inside
from smalti.fetch.choice import SAFE, WEIGHTS, RemoteFile
from smalti.fetch.digest import SHA256, Digest
from smalti.fetch.listing import Listing
from smalti.fetch.remote import AUTHORIZATION, Remote, content
from smalti.fetch.store import ModelStore

ENDPOINT = "https://civitai.com"
JSON_BYTES_MAX = 20_000_000
"""Of what the API says of a model: with all versions and pictures some hundred kB."""
ADVICE = (f"make a key at {ENDPOINT}/user/account and give it in CIVITAI_API_TOKEN; some models are"
          f" only for those who log in")
BYTES_OF_KB = 1024
"""The API tells sizes in units of so many, some of them rounded."""


def _headers(url: str) -> dict[str, str]:
    """What is sent along: the key, to civitai alone."""
    token = settings.civitai_token()
    own = urlsplit(url)[:2] == urlsplit(ENDPOINT)[:2]
    return {AUTHORIZATION: f"Bearer {token}"} if token and own else {}


def _asked(title: str, path: str) -> Mapping[str, Any]:
    """What the API answers. Raises FetchError."""
    url = f"{ENDPOINT}/api/v1/{path}"
    text, _ = content(Remote(url, title, _headers(url), ADVICE), JSON_BYTES_MAX)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FetchError(f"{title}: {url} answers no JSON ({error}); try again later") from None
    if not isinstance(found, dict):
        raise FetchError(f"{title}: {url} answers a {type(found).__name__}, expected an object")
    return found


def listing(address: CivitaiAddress, store: ModelStore) -> Listing:
    """What a version of a model has. Raises FetchError."""
    title = str(address)
    model = _asked(title, f"models/{address.model}")
    versions = {each.get("id"): each for each in _objects(model.get("modelVersions"))}
    version = address.version if address.version is not None else next(iter(versions), None)
    if version not in versions or not isinstance(version, int):
        known = ", ".join(f"@{number}" for number in list(versions)[:10]) or "none"
        raise FetchError(f"{title}: {ENDPOINT}/models/{address.model} has no version "
                         f"{address.version}; it has {known}")
    files: dict[str, RemoteFile] = {}
    urls: dict[str, str] = {}
    for each in sorted(_objects(versions[version].get("files")), key=_rank):
        found = _file(each)
        if found is not None and found.name not in files:
            files[found.name], urls[found.name] = found, str(each.get("downloadUrl"))
    if not files:
        raise FetchError(f"{title} has no weights with a hash, without which nothing is fetched")
    exact = CivitaiAddress(address.model, version, address.file)
    folder = store.place("civitai", f"{address.model}@{version}")

    def remote(file: RemoteFile) -> Remote:
        url = urls[file.name]
        if not url.startswith(f"{ENDPOINT}/"):
            raise FetchError(f"{exact}: the API says that {file.name} is at {url!r:.200}, which is "
                             f"another site; it is not fetched")
        return Remote(url, f"{CivitaiAddress(address.model, version)}:{file.name}", _headers(url),
                      ADVICE)

    def target(file: RemoteFile) -> Path:
        return folder / file.name

    licence = ", ".join(f"{name} {_said(model.get(name))}" for name in (
        "allowCommercialUse", "allowNoCredit", "allowDerivatives") if name in model)
    return Listing(exact, f"{ENDPOINT}/models/{address.model}?modelVersionId={version}",
                   [*files.values()], remote, target, target, folder, licence,
                   usual=next(iter(files)))


def _objects(told: object) -> list[Mapping[str, Any]]:
    """The objects of a list, where there is one."""
    return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def _said(told: object) -> str:
    return "/".join(map(str, told)) if isinstance(told, list) else str(told)


def _rank(told: Mapping[str, Any]) -> tuple[bool, bool, bool, bool]:
    """Models before what belongs to them, without pickles before with, halves first, then what
    civitai itself would give."""
    about = told.get("metadata")
    about = about if isinstance(about, dict) else {}
    return (told.get("type") not in ("Model", "Pruned Model"),
            not str(told.get("name")).lower().endswith(SAFE),
            about.get("fp") not in ("fp16", "bf16"), told.get("primary") is not True)


def _file(told: Mapping[str, Any]) -> RemoteFile | None:
    """A file with weights and a hash; None for others."""
    name, size, hashes = told.get("name"), told.get("sizeKB"), told.get("hashes")
    if not isinstance(name, str) or not isinstance(hashes, dict) or "/" in name:
        return None
    digest = Digest.of_blob(str(hashes.get("SHA256", "")))
    usable = stays_inside(name) and name.lower().endswith(WEIGHTS)
    if not usable or digest is None or digest.kind != SHA256:
        return None
    number = size * BYTES_OF_KB if isinstance(size, int | float) and 0 <= size < 1e12 else 0
    return RemoteFile(name, round(number), digest, sized=False)


def search(words: str, limit: int) -> Iterable[tuple[str, str]]:
    """Checkpoints that match: names, and what they are."""
    query = urlencode({"query": words, "types": "Checkpoint", "limit": limit})
    for each in _objects(_asked(f"civitai: {words}", f"models?{query}").get("items")):
        version = next(iter(_objects(each.get("modelVersions"))), {})
        yield f"civitai:{each.get('id')}", f"{each.get('name')} ({version.get('baseModel', '?')})"
