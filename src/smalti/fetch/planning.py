"""What fetching a model means, before anything of it is fetched; and the fetching.

    name ── address ──► Listing ── choice ──► Choice ── headers ──► FetchPlan ──► Kept
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from smalti import settings
from smalti.checkpoint.file_kind import listed
from smalti.checkpoint.folder import DENOISERS
from smalti.dataclass import dataclass
from smalti.errors import FetchError
from smalti.families import by_name
from smalti.families.names import FileKind
from smalti.fetch import catalogue, civitai, hub, web
from smalti.fetch.address import Address, CivitaiAddress, HubAddress, parsed
from smalti.fetch.choice import SAFE, Choice, RemoteFile, chosen
from smalti.fetch.download import (
    Tell,
    WantedFile,
    check_room,
    download,
    right,
    there,
    unfinished,
)
from smalti.fetch.header import Header, kind_of, precision_of, read_header
from smalti.fetch.listing import Listing
from smalti.fetch.sizes import shown_bytes
from smalti.fetch.store import Kept, KeptFile, ModelStore

HEADERS_MAX = 20
"""Shards of a model whose headers are read; the largest that is read has seven."""


@dataclass(frozen=True)
class FetchPlan:
    """What is to be fetched: the files of `choice`, of which `missing` bytes are not here yet.

    `kind` and `precision` are seen in the headers of safetensors files; `memory` is what the
    weights have to fit in, in bytes, where that was said.
    """

    name: str
    listing: Listing
    choice: Choice
    kind: FileKind | None
    precision: str
    missing: int
    memory: int | None
    store: ModelStore

    def __str__(self) -> str:
        """Size, kind, precision, fit and licence, in a sentence."""
        files = f"{len(self.choice.files)} file{'s' * (len(self.choice.files) > 1)}"
        told = [f"{files}, {shown_bytes(self.choice.bytes)}" + (
            "" if self.missing == self.choice.bytes else
            f", {shown_bytes(self.missing)} to fetch" if self.missing else ", all here")]
        told += [] if self.kind is None else [self.kind.words]
        told += [self.precision] * bool(self.precision)
        if self.memory is not None:
            fits = self.choice.weight_bytes <= self.memory
            told.append(f"{'fits in' if fits else 'is streamed: more than'} the "
                        f"{shown_bytes(self.memory)} of memory")
        told += [self.choice.why] * bool(self.choice.why)
        told += [f"licence: {self.listing.licence}"] * bool(self.listing.licence)
        told += [f"to be accepted at {self.listing.accept}"] * bool(self.listing.accept)
        return f"{self.name}: {'; '.join(told)}"

    def fetch(self, tell: Tell) -> Kept:
        """Have all files, each with its hash, and note it. Raises FetchError."""
        check_room(self.listing.folder, self.missing, self.name)
        kept = []
        for file in self.choice.files:
            path = self.listing.folder / file.name
            if not _here(path, file, tell):
                wanted = WantedFile(self.listing.remote(file), self.listing.target(file),
                                    file.digest, file.bytes if file.sized else None)
                download(wanted, self.store.claims, tell)
                path = self.listing.settle(file)
            kept.append(KeptFile.of(path, file.digest))
        opened = self.listing.folder / self.choice.opened if self.choice.opened else \
            self.listing.folder
        words = "" if self.kind is None else self.kind.words
        found = Kept(self.name, str(opened), str(self.listing.address), self.listing.page, words,
                     self.listing.licence, tuple(kept))
        self.store.keep(found)
        return found


def _here(path: Path, file: RemoteFile, tell: Tell) -> bool:
    try:
        return right(path, file.digest, tell)
    except OSError as error:
        raise FetchError(f"{path} cannot be read: {error.strerror or error}") from None


def plan(name: str, memory: int | None, store: ModelStore) -> FetchPlan:
    """What fetching a model means, by its address and the memory that it is for, in bytes.

    Raises FetchError where it cannot be fetched, or is none that Smalti reads.
    """
    address = parsed(name)
    listing = _listing(address, store)
    title = name.removesuffix(f":{address.file}")
    choice = chosen(title, listing.files, address.file or listing.usual, memory)
    _check_hash(name, choice)
    headers = _headers(listing, choice)
    components = {PurePosixPath(each.name).parent.as_posix() for each in choice.weights}
    kind = kind_of(headers, components - {"."} if not choice.opened else ())
    if headers and (kind is None or not (kind.supported or kind.advice)):
        what = "is of no known kind" if kind is None else f"is {kind.words}"
        raise FetchError(f"{name} {what}; nothing of it is fetched. Smalti reads checkpoints of "
                         f"{listed([each.title for each in by_name()])}, and what belongs to them")
    return FetchPlan(name, listing, choice, kind, precision_of(headers),
                     _missing(listing, choice.files), memory, store)


def _listing(address: Address, store: ModelStore) -> Listing:
    if isinstance(address, HubAddress):
        return hub.listing(address)
    if isinstance(address, CivitaiAddress):
        return civitai.listing(address, store)
    return web.listing(address, store)


def _headers(listing: Listing, choice: Choice) -> list[Header]:
    """Those of the files that show what a model is: of a folder the denoiser's."""
    files = [each for each in choice.weights if each.ending in SAFE and each.sized and (
        choice.opened or PurePosixPath(each.name).parts[0] in DENOISERS)]
    return [read_header(listing.remote(each), each.bytes) for each in files[:HEADERS_MAX]]


def _check_hash(name: str, choice: Choice) -> None:
    """Raise FetchError where the catalogue knows the file by another hash."""
    known = {each.sha256 for each in catalogue.entries().values()
             if each.source == name and each.sha256}
    wrong = [each.name for each in choice.files if known - {each.digest.digits}]
    if wrong:
        raise FetchError(f"{name} is another file now than the catalogue of this version knows; "
                         f"nothing of it is fetched; update Smalti, or give hf:OWNER/NAME@REVISION "
                         f"with the revision that you trust")


def _missing(listing: Listing, files: Sequence[RemoteFile]) -> int:
    """Bytes that are not here."""
    count = 0
    for each in files:
        target = listing.target(each)
        if not target.exists() and not (listing.folder / each.name).exists():
            part = unfinished(target)
            count += max(0, each.bytes - (os.path.getsize(part) if part.exists() else 0))
    return count


def together(plans: Sequence[FetchPlan]) -> str:
    """How much several plans are, and how much of it is to be fetched."""
    whole, missing = (sum(each.choice.bytes for each in plans),
                      sum(each.missing for each in plans))
    return (f"{len(plans)} models, {shown_bytes(whole)}, " +
            (f"{shown_bytes(missing)} to fetch" if missing else "all here"))


def check_rooms(plans: Sequence[FetchPlan]) -> None:
    """Raise FetchError where a disk has room for each of some plans, and not for all of them."""
    needed, folders = Counter[int](), dict[int, Path]()
    for each in plans:
        disk = there(each.listing.folder).stat().st_dev
        folders[disk] = each.listing.folder
        needed[disk] += each.missing
    for disk, folder in folders.items():
        check_room(folder, needed[disk], " and ".join(each.name for each in plans))


def kept(name: str, memory: int | None, tell: Tell, store: ModelStore | None = None) -> Kept:
    """A model by its address: as it was fetched, or fetched now, which `tell` is told of.

    What was fetched is what it was, whatever its source has by now; `plan` looks anew. Raises
    FetchError.
    """
    store = store or ModelStore()
    found = store.found(name)
    if found is not None:
        return store.checked(found)
    address = parsed(name)
    if settings.offline():
        return _offline(name, address, memory, tell, store)
    planned = plan(name, memory, store)
    tell(f"fetching {planned}\n")
    return planned.fetch(tell)


def _offline(name: str, address: Address, memory: int | None, tell: Tell, store: ModelStore
             ) -> Kept:
    """A model that another program has fetched. Raises FetchError where it is not whole."""
    listing = hub.here(address) if isinstance(address, HubAddress) else None
    if listing is None:
        raise FetchError(f"{name} is not here, and HF_HUB_OFFLINE is set, so that nobody is asked; "
                         f"unset it, or give a model that is here (smalti models list)")
    choice = chosen(name, listing.files, address.file, memory)
    return FetchPlan(name, listing, choice, None, "", 0, memory, store).fetch(tell)
