"""A model of a server as files without their numbers: what is needed to say what it is, and what it
would take, before gigabytes of it are fetched.

Descriptions are whole. A file of weights has its header, and is as long as it is there; behind the
header it holds nothing, and on most file systems takes no room.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from smalti import settings
from smalti.errors import FetchError
from smalti.fetch import catalogue
from smalti.fetch.choice import SAFE, WEIGHTS, RemoteFile
from smalti.fetch.download import Tell
from smalti.fetch.header import header_bytes
from smalti.fetch.listing import Listing
from smalti.fetch.planning import kept, plan
from smalti.fetch.remote import content
from smalti.fetch.sizes import shown_bytes
from smalti.fetch.store import ModelStore
from smalti.runtime.holes import lengthen
from smalti.runtime.tensor_file import HEADER_BYTES_MAX


def outlined(name: str, memory: int | None, folder: Path, tell: Tell,
             store: ModelStore | None = None) -> Path:
    """The path of a model by its address or short name: of the model itself where it is here, else
    of its outline, which is made below `folder`; `tell` hears what is chosen. Raises FetchError.
    """
    store = store or ModelStore()
    address = catalogue.address(name) or name
    found = store.found(address)
    if found is not None:
        return Path(store.checked(found).path)
    if settings.offline():
        return Path(kept(address, memory, tell, store).path)
    planned = plan(address, memory, store)
    folder = folder / re.sub(r"[^\w.-]", "_", address)
    tell(f"{planned}\n")
    for file in planned.choice.files:
        _write(planned.listing, file, _place(folder, file))
    return folder / planned.choice.opened if planned.choice.opened else folder


def _place(folder: Path, file: RemoteFile) -> Path:
    """Where a file comes to lie; names come from a server. Raises FetchError."""
    path = PurePosixPath(file.name)
    if path.is_absolute() or ".." in path.parts or "\\" in file.name or ":" in file.name:
        raise FetchError(f"the source has a file {file.name!r:.200}, which is no name of one in a "
                         f"folder; nothing of it is fetched")
    return folder.joinpath(*path.parts)


def _write(listing: Listing, file: RemoteFile, path: Path) -> None:
    remote = listing.remote(file)
    weights = file.ending in WEIGHTS
    if weights and (file.ending not in SAFE or not file.sized):
        raise FetchError(f"{remote.title}: only safetensors files begin with all that is to be "
                         f"known of them; fetch the model to look at it: smalti models get")
    first = header_bytes(remote, file.bytes) if weights else \
        content(remote, HEADER_BYTES_MAX, 0, file.bytes)[0]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(first)
            if weights:
                lengthen(stream, file.bytes)
    except OSError as error:  # a file system without holes may be full
        raise FetchError(f"{path} cannot be written: {error.strerror or error}; have TMPDIR name a "
                         f"folder with room for {shown_bytes(file.bytes)}") from None
