"""Files of HTTP servers: ranges of them, patience with servers, and errors that say what to do.

By Python's own client, so that it needs no package. What is asked for never goes with a password or
token to another host than the one that it is meant for.
"""

from __future__ import annotations

import email.message
import http.client
import io
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import IO, Any
from urllib.parse import urlsplit

from smalti.dataclass import dataclass
from smalti.errors import FetchError

TIMEOUT_SECONDS = 30.0
"""For a connection, and between two pieces of an answer."""
WAITS = (1.0, 2.0, 4.0, 8.0)
"""Seconds before the next attempts, of which there are as many without any progress."""
RETRY_AFTER_SECONDS_MAX = 60.0
"""That a server may ask to wait; what asks for more is an error that says so."""
PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses after which the same question may be answered."""
BROKEN = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError,
          ssl.SSLError)
"""How a connection fails; but for what is refused by certificate, another attempt may succeed."""
AUTHORIZATION = "Authorization"
_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)")


class BrokenError(Exception):
    """An answer that broke off, or one that may be another the next time; `wait` is how many
    seconds the server asks for."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


@dataclass(frozen=True)
class Remote:
    """A file at an address: what is sent with each question, what it is called in messages, and
    what to do where the server wants to know who asks (401) or does not let in (403)."""

    url: str
    title: str
    headers: Mapping[str, str] = field(default_factory=dict)
    advice: str = "look whether it can be downloaded without an account"


@dataclass(frozen=True)
class Answer:
    """What a server sends: where in the file it starts, and how long the whole file is."""

    stream: http.client.HTTPResponse
    start: int
    total: int | None
    headers: email.message.Message


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to other hosts without what is meant for the first, and never out of encryption."""

    def redirect_request(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str,
                         headers: Any, newurl: str) -> urllib.request.Request | None:
        """The next question. Raises HTTPError for an address that is not followed."""
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if before.scheme == "https" and after.scheme != "https":
            raise urllib.error.HTTPError(
                newurl, code, "leads out of encryption", headers, fp)
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and (before.scheme, before.netloc) != (after.scheme, after.netloc):
            new.remove_header(AUTHORIZATION)
        return new


_opener = urllib.request.build_opener(_Redirects)


@contextmanager
def answer(remote: Remote, start: int = 0, end: int | None = None,
           etag: str | None = None) -> Iterator[Answer]:
    """What the server sends of a file, from `start` up to before `end`, if it is still that of
    `etag`. Raises BrokenError for what may pass, and FetchError for what does not."""
    headers = {"User-Agent": "smalti", "Accept-Encoding": "identity",
               **remote.headers}
    ranged = start > 0 or end is not None
    if ranged:
        headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if etag is not None and start > 0:
            headers["If-Range"] = etag
    try:
        with _opener.open(urllib.request.Request(remote.url, headers=headers),
                          timeout=TIMEOUT_SECONDS) as stream:
            yield _placed(remote, stream, start)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(remote, error) from None
    except BROKEN as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise FetchError(f"{remote.title} is not fetched: the certificate of its server is not "
                             f"trusted ({reason}); look at the clock and the proxy of this "
                             f"computer") from None
        raise BrokenError(f"{type(reason).__name__}: {reason}") from None


def _placed(remote: Remote, stream: Any, start: int) -> Answer:
    """An answer whose place in the file is known."""
    length = stream.headers.get("Content-Length", "")
    if stream.status == 206:
        found = _RANGE.fullmatch(stream.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise FetchError(f"{remote.title} is not fetched: the server was asked for bytes from "
                             f"{start} on and answers {stream.headers.get('Content-Range')!r}")
        return Answer(stream, start, None if found[3] == "*" else int(found[3]), stream.headers)
    return Answer(stream, 0, int(length) if length.isdecimal() else None, stream.headers)


def _refused(remote: Remote, error: urllib.error.HTTPError) -> BrokenError | FetchError:
    """What a status other than success means."""
    reason = str(error.reason).partition("\n")[0]
    status, said = error.code, f"{remote.title}: the server answers {error.code} {reason}"
    if status in PASSING:
        return BrokenError(f"{status} {reason}", asked_wait(error.headers))
    if status == 401:
        return FetchError(f"{said}: it wants to know who asks; {remote.advice}")
    if status in (403, 451):
        return FetchError(f"{said}: it may not be fetched by who asks; {remote.advice}")
    if status in (404, 410):
        return FetchError(f"{said}: there is no such file; look at the name")
    return FetchError(f"{said}; it is not what was expected of {urlsplit(remote.url).hostname}")


def asked_wait(headers: Any) -> float | None:
    """The seconds that a server asks to wait, where it says so as a number."""
    asked = headers.get("Retry-After", "") if headers else ""
    return float(asked) if asked.isdecimal() else None


class Patience:
    """How often something is tried again without progress, and how long is waited between."""

    def __init__(self, title: str) -> None:
        self._title, self._tries = title, 0

    def renew(self) -> None:
        """There was progress: all attempts are there again."""
        self._tries = 0

    def wait(self, error: BrokenError) -> None:
        """Wait before the next attempt. Raises FetchError where there were enough."""
        if error.wait is not None and error.wait > RETRY_AFTER_SECONDS_MAX:
            raise FetchError(f"{self._title}: the server asks to wait {error.wait:.0f} seconds "
                             f"({error}); try again then, what is here is kept") from None
        if self._tries == len(WAITS):
            raise FetchError(f"{self._title} cannot be fetched now: {error}, after "
                             f"{self._tries + 1} attempts; look at the network and try again, what "
                             f"is here is kept") from None
        time.sleep(max(WAITS[self._tries], error.wait or 0.0))
        self._tries += 1


def content(remote: Remote, limit: int, start: int = 0, end: int | None = None
            ) -> tuple[bytes, int | None]:
    """What a file holds from `start` to before `end`, and how long it is; at most `limit` bytes.

    Raises FetchError.
    """
    patience = Patience(remote.title)
    while True:
        try:
            with answer(remote, start, end) as found:
                left = start - found.start  # where the server sends all of it
                _skip(found.stream, left)
                wanted = limit if end is None else min(limit, end - start)
                read = found.stream.read(wanted)
                whole = found.total is None or len(read) == min(wanted, found.total - start)
                if whole:
                    return read, found.total
                raise BrokenError("the answer broke off")
        except BrokenError as error:
            patience.wait(error)


def _skip(stream: IO[bytes], count: int) -> None:
    while count > 0:
        passed = len(stream.read(min(count, io.DEFAULT_BUFFER_SIZE)))
        if not passed:
            raise BrokenError("the answer broke off")
        count -= passed
