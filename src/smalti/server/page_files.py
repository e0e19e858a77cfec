"""The page's files as answers: all of them are read when the server starts, each has one address.

No path is made of a request: `/page/NAME` is a route for each name that was found, and whatever
else is asked for is not there.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cached_property
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from smalti.dataclass import dataclass

FOLDER = Path(__file__).with_name("page")
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain",
}
"""Endings of the page's files; a file with another one is none of the page."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
                               "img-src 'self' blob: data:; connect-src 'self'; font-src 'self'; "
                               "manifest-src 'self'; base-uri 'none'; form-action 'none'; "
                               "frame-ancestors 'none'",
    "cache-control": "no-cache",  # a browser keeps it, and asks each time whether it is the same
    "vary": "accept-encoding",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page, by its name below the folder of the page."""

    name: str
    content: bytes

    @cached_property
    def tag(self) -> str:
        """What changes when the content does."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:16]}"'

    @cached_property
    def packed(self) -> bytes:
        """The content as gzip."""
        return gzip.compress(self.content, mtime=0)

    def answer(self, request: Request) -> Response:
        """The file, or that the browser has it already."""
        headers = {**HEADERS, "etag": self.tag}
        known = [each.strip().removeprefix("W/")
                 for each in request.headers.get("if-none-match", "").split(",")]
        if self.tag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        content = self.content
        if takes_gzip(request.headers.get("accept-encoding", "")):
            content, headers["content-encoding"] = self.packed, "gzip"
        return Response(content, headers={**headers, "content-type": TYPES[suffix(self.name)]})


def takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header names gzip, and not to refuse it.

    >>> takes_gzip("br, gzip"), takes_gzip("gzip;q=0, br"), takes_gzip("")
    (True, False, False)
    """
    for each in accepted.lower().split(","):
        name, _, quality = each.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def suffix(name: str) -> str:
    """The ending of a name."""
    return Path(name).suffix


def page_files(folder: Path = FOLDER) -> list[PageFile]:
    """All files of the page."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in TYPES]
    return [PageFile(path.relative_to(folder).as_posix(), path.read_bytes()) for path in found]


def routes() -> list[Route]:
    """`/` and `/page/NAME` for every file; browsers ask for them with GET or HEAD."""
    found = []
    for each in page_files():
        async def called(request: Request, file: PageFile = each) -> Response:
            return file.answer(request)

        path = "/" if each.name == INDEX else f"/page/{each.name}"
        found.append(Route(path, called, methods=["GET"]))
    return found
