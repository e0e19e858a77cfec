"""What a source says it has: the same for the hub, for civitai and for a file of the web."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path

from smalti.dataclass import dataclass
from smalti.fetch.address import Address
from smalti.fetch.choice import RemoteFile
from smalti.fetch.remote import Remote


@dataclass(frozen=True)
class Listing:
    """Files of a source, from which some are chosen; they come to lie in `folder`.

    `address` is the exact one, which always means the same files. `remote` tells how a file is
    fetched, `target` where its content grows; `settle` gives it its place when it is whole and
    right, and tells the path. `licence` is its name, `accept` the address where it has to be
    accepted before anything can be fetched.
    """

    address: Address
    page: str
    files: Sequence[RemoteFile]
    remote: Callable[[RemoteFile], Remote] = field(repr=False)
    target: Callable[[RemoteFile], Path] = field(repr=False)
    settle: Callable[[RemoteFile], Path] = field(repr=False)
    folder: Path
    licence: str = ""
    accept: str = ""
    usual: str | None = None
    """The file that is meant where none is named."""
