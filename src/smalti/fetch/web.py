"""A file of the web, by its hash."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from smalti.errors import FetchError
from smalti.fetch.address import WebAddress
from smalti.fetch.choice import WEIGHTS, RemoteFile
from smalti.fetch.digest import SHA256, Digest
from smalti.fetch.listing import Listing
from smalti.fetch.remote import Remote, content
from smalti.fetch.store import ModelStore

DIGITS = 16
"""Of the hash, in the name of the folder that a file is kept in."""


def listing(address: WebAddress, store: ModelStore) -> Listing:
    """The file as the only one of its source. Raises FetchError."""
    parts = urlsplit(address.url)
    title = f"{parts.scheme}://{parts.netloc}{parts.path}"  # a query may hold a key
    if not address.file.lower().endswith(WEIGHTS):
        raise FetchError(f"{title} is no model file by its name; expected one that ends in "
                         f"{', '.join(WEIGHTS)}")
    remote = Remote(address.url, title)
    _, total = content(remote, 1, 0, 1)
    file = RemoteFile(address.file, total or 0, Digest(SHA256, address.sha256),
                      sized=total is not None)
    folder = store.place("web", str(parts.hostname), address.sha256[:DIGITS])

    def target(file: RemoteFile) -> Path:
        return folder / file.name

    return Listing(address, title, [file], lambda file: remote, target, target, folder,
                   usual=address.file)
