"""Models of the Hugging Face hub, through its own client: `huggingface_hub`, an extra.

The client knows the hub's addresses, who asks (`HF_TOKEN`, `hf auth login`), where its cache is
(`HF_HOME`, `HF_HUB_CACHE`), whether it may ask at all (`HF_HUB_OFFLINE`), another server instead
(`HF_ENDPOINT`), and how the cache is laid out, in which it puts the links. The bytes are fetched by
`download`: the client throws away what a stopped process has fetched, and compares no hash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from smalti.errors import FetchError
from smalti.fetch.address import MAIN, HubAddress, stays_inside
from smalti.fetch.choice import RemoteFile
from smalti.fetch.digest import SHA256, Digest
from smalti.fetch.listing import Listing
from smalti.fetch.remote import PASSING, BrokenError, Patience, Remote, asked_wait
from smalti.replacement import replacing

EXTRA = "pip install smalti[hub]"
FOUND_MAX = 100
"""Repositories that a search lists at most."""
COMMIT = re.compile("[0-9a-f]{40}")


def client() -> ModuleType:
    """The hub's own client. Raises FetchError where it is not installed."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise FetchError(f"models of the hub are fetched by its own client, which is not "
                         f"installed: {EXTRA}") from None
    found: ModuleType = huggingface_hub
    return found


def cache() -> Path:
    """Folder of the hub's cache."""
    return Path(client().constants.HF_HUB_CACHE)


def page_of(repository: str) -> str:
    """Where a repository is described, and its licence accepted."""
    return f"{client().constants.ENDPOINT}/{repository}"


@contextmanager
def _asking(address: HubAddress) -> Iterator[None]:
    """What the client raises becomes an error that says what to do, or a reason to try again."""
    hub = client()
    errors, page = hub.errors, page_of(address.repository)
    login = "log in with `hf auth login`, or give a token in HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError:
        raise FetchError(f"{address} may be fetched by those who have accepted its licence: accept "
                         f"it at {page}, and {login}") from None
    except errors.RepositoryNotFoundError:
        raise FetchError(f"{address}: there is no repository {page}, or it is a private one; look "
                         f"at the name, or {login}") from None
    except errors.RevisionNotFoundError:
        raise FetchError(f"{address}: {page} has no revision {address.revision!r}; look at "
                         f"{page}/commits") from None
    except errors.EntryNotFoundError as error:
        raise FetchError(f"{address}: {page} lacks a file ({_line(error)})") from None
    except errors.OfflineModeIsEnabled:
        raise FetchError(f"{address} is not here, and HF_HUB_OFFLINE is set, so that nobody is "
                         f"asked; unset it, or give a model that is here (smalti models list)"
                         ) from None
    except errors.HfHubHTTPError as error:
        status = None if error.response is None else error.response.status_code
        if status in PASSING:
            raise BrokenError(f"the hub answers {status}",
                              asked_wait(error.response.headers)) from None
        if status == 401:
            raise FetchError(f"{address}: the hub does not know who asks (401); {login}") from None
        raise FetchError(f"{address}: the hub answers {status}: {_line(error)}") from None
    except errors.HTTPError as error:  # of its HTTP client: no connection, or one that breaks
        raise BrokenError(f"{type(error).__name__}: {_line(error)}") from None
    except (OSError, ValueError) as error:
        raise FetchError(f"{address}: the hub cannot be asked: {_line(error)}") from None


def _line(error: BaseException) -> str:
    """The first line of what an error says."""
    return str(error).strip().partition("\n")[0][:300]


def _patiently(address: HubAddress, ask: Any) -> Any:
    """What a question to the hub gives, asked again where it may pass. Raises FetchError."""
    patience = Patience(str(address))
    while True:
        try:
            with _asking(address):
                return ask()
        except BrokenError as error:
            patience.wait(error)


def listing(address: HubAddress) -> Listing:
    """What a repository has at a revision, which is then known by its commit. Raises FetchError."""
    hub = client()
    info = _patiently(address, lambda: hub.HfApi().model_info(
        address.repository, revision=address.revision, files_metadata=True))
    if info.sha is None or not COMMIT.fullmatch(info.sha):
        raise FetchError(f"{address}: {page_of(address.repository)} says no commit; it is no hub")
    files = []
    for each in info.siblings or ():
        digits = each.lfs.sha256 if each.lfs else each.blob_id
        digest = Digest.of_blob(digits or "")
        size = each.lfs.size if each.lfs else each.size
        if digest is None or size is None or bool(each.lfs) != (digest.kind == SHA256):
            raise FetchError(f"{address}: the hub tells no size or hash of {each.rfilename!r}, "
                             f"without which nothing is fetched")
        _check_name(address, each.rfilename)
        files.append(RemoteFile(each.rfilename, size, digest))
    card = info.card_data
    licence = " ".join(str(text) for name in ("license", "license_name") if card is not None
                       and (text := getattr(card, name, None)))
    exact = HubAddress(address.repository, info.sha, address.file)
    place = _Place(exact, address.revision)
    page = page_of(address.repository)
    return Listing(exact, page, files, place.remote, place.blob, place.settle, place.snapshot,
                   licence, page if info.gated else "")


def _check_name(address: HubAddress, name: str) -> None:
    """Raise FetchError for a file whose name leads out of the cache."""
    if not stays_inside(name):
        raise FetchError(f"{address}: the hub lists a file {name!r:.100}, which leads elsewhere; "
                         f"nothing of it is fetched")


class _Place:
    """A commit of a repository in the hub's cache."""

    def __init__(self, address: HubAddress, revision: str) -> None:
        self._address, self._revision = address, revision
        self.repository = cache() / f"models--{address.repository.replace('/', '--')}"
        self.snapshot = self.repository / "snapshots" / address.revision

    def remote(self, file: RemoteFile) -> Remote:
        """Where a file is fetched from."""
        hub, address = client(), self._address
        url = hub.hf_hub_url(address.repository, file.name, revision=address.revision,
                             endpoint=hub.constants.ENDPOINT)
        headers = {name.title(): value for name, value in hub.utils.build_hf_headers(
            library_name="smalti").items()}
        page = page_of(address.repository)
        return Remote(url, f"hf:{address.repository}:{file.name}", headers, (
            f"accept its licence at {page} if it asks for that, and log in with `hf auth login`, "
            f"or give a token in HF_TOKEN"))

    def blob(self, file: RemoteFile) -> Path:
        """Where the content of a file is: by its hash."""
        return self.repository / "blobs" / file.digest.digits

    def settle(self, file: RemoteFile) -> Path:
        """Have the client put the link to a content that is here. Raises FetchError."""
        hub, address, blob = client(), self._address, self.blob(file)
        path = self.snapshot / file.name
        if not path.exists():
            path = Path(_patiently(address, lambda: hub.hf_hub_download(
                address.repository, file.name, revision=address.revision, cache_dir=cache())))
        if not (blob.exists() and path.samefile(blob)):
            if path.stat().st_size != file.bytes or not file.digest.fits(path):
                path.unlink()
                raise FetchError(f"{address}: {file.name} is not what the hub listed a moment ago; "
                                 f"it is deleted; try again")
            if not path.is_symlink():  # a system without links has it twice
                blob.unlink(missing_ok=True)
        self._refer()
        return path

    def _refer(self) -> None:
        """Note which commit a branch or tag is, as the client does."""
        if self._revision == self._address.revision:
            return
        reference = self.repository / "refs" / self._revision
        with suppress(OSError):  # a name that is no file's: it is only asked for again
            reference.parent.mkdir(parents=True, exist_ok=True)
            with replacing(reference) as stream:
                stream.write(self._address.revision.encode())


def here(address: HubAddress) -> Listing | None:
    """What of a repository is in the hub's cache, without asking anybody; None for nothing."""
    place = _Place(address, address.revision).repository
    commit = address.revision
    reference = place / "refs" / commit
    if not COMMIT.fullmatch(commit):
        if not reference.is_file():
            return None
        commit = reference.read_text(encoding="utf-8").strip()
    snapshot = place / "snapshots" / commit
    if not COMMIT.fullmatch(commit) or not snapshot.is_dir():
        return None
    files = []
    for path in sorted(each for each in snapshot.rglob("*") if each.is_file()):
        digest = Digest.of_blob(Path(os.path.realpath(path)).name)
        if digest is not None:
            files.append(RemoteFile(path.relative_to(snapshot).as_posix(), path.stat().st_size,
                                    digest))
    exact = HubAddress(address.repository, commit, address.file)
    held = _Place(exact, commit)
    return Listing(exact, page_of(address.repository), files, held.remote, held.blob, held.settle,
                   snapshot)


def search(words: str, limit: int) -> list[tuple[str, str]]:
    """Repositories of text-to-image models that match: names, and how often each was fetched."""
    if not 1 <= limit <= FOUND_MAX:
        raise FetchError(f"a search lists 1 to {FOUND_MAX}, not {limit}")
    address = HubAddress(words, MAIN)
    found = _patiently(address, lambda: [*client().HfApi().list_models(
        search=words, pipeline_tag="text-to-image", sort="downloads", limit=limit)])
    return [(f"hf:{each.id}", f"{each.downloads or 0} downloads a month" + (
        ", a licence to accept" if each.gated else "")) for each in found]
