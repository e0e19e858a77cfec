"""What goes wrong on the way: each ends resumed or in one clear error, and no wrong file is used.

Through the hub's own client and a real server on loopback, which fails as it is told to.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_server import COMMIT, Fault, Handler, HubServer, git_hash, sha256
from safetensors.numpy import save
from tiny_model import METADATA, tiny_weights

from smalti import fetch
from smalti.errors import InputError
from smalti.fetch import download, remote

NAME, FILE = "hf:org/tiny", "tiny.safetensors"
MODEL = save(tiny_weights(), METADATA)
HALF = len(MODEL) // 2


def answers(status: int, content: bytes = b"", **headers: str) -> Fault:
    """The server says this, whatever was asked."""
    def fault(handler: Handler) -> bool:
        handler.send(status, content, {name.replace("_", "-"): value
                                       for name, value in headers.items()})
        return True
    return fault


def passes(handler: Handler) -> bool:
    """Nothing is wrong this time."""
    return False


def hangs_up(handler: Handler) -> bool:
    """The connection ends without an answer."""
    handler.close_connection = True
    return True


def breaks_off(handler: Handler, after: int = HALF) -> bool:
    """The connection ends within the content."""
    asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
    start = int(asked[1]) if asked else 0
    headers = {"Content-Range": f"bytes {start}-{len(MODEL) - 1}/{len(MODEL)}", "ETag": '"same"'}
    handler.send(206 if asked else 200, MODEL[start:], headers if asked else {"ETag": '"same"'},
                 after)
    return True


def breaks_at_once(handler: Handler) -> bool:
    return breaks_off(handler, 0)


def stalls(handler: Handler) -> bool:
    """The content stops coming, and the connection stays."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(MODEL)))
    handler.end_headers()
    handler.wfile.write(MODEL[:1000])
    handler.wfile.flush()
    handler.rfile.read(1)  # until the client has gone
    handler.close_connection = True
    return True


def ignores_ranges(handler: Handler) -> bool:
    handler.send(200, MODEL)
    return True


def sends_too_much(handler: Handler) -> bool:
    """No length is said, and more comes than the file has."""
    handler.send_response(200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(MODEL + b"more")
    handler.close_connection = True
    return True


def circles(handler: Handler) -> bool:
    handler.hub.faults["cdn"].append(circles)  # before the answer, which the test may end with
    handler.send(302, b"", {"Location": handler.hub.cdn + handler.path})
    return True


@dataclass(frozen=True)
class Case:
    """Faults of a kind of question, in order; what is said, "" where it succeeds in spite of
    them."""

    name: str
    kind: str
    faults: tuple[Fault, ...]
    error: str = ""
    info: dict[str, Any] | None = None


HEADERS = (passes,)
"""The questions for the header of the file, before that for the file: one, as it is short."""
WRONG = bytes(reversed(MODEL))
PAGE = b"<html>log in</html>"
CASES = (
    Case("the list once 503", "info", (answers(503),)),
    Case("the list always 500", "info", (answers(500),) * 9, "the hub answers 500, after 5"),
    Case("the list once 429", "info", (answers(429, Retry_After="0"),)),
    Case("the list 429 for an hour", "info", (answers(429, Retry_After="3600"),),
         "asks to wait 3600 seconds"),
    Case("the list hangs up once", "info", (hangs_up,)),
    Case("the list hangs up always", "info", (hangs_up,) * 9, "cannot be fetched now.*after 5"),
    Case("the list is no JSON", "info", (answers(200, PAGE),), "cannot be asked"),
    Case("the list asks who it is", "info", (answers(401),), "HF_TOKEN"),
    Case("the list is of no repository", "info", (answers(404, X_Error_Code="RepoNotFound"),),
         "there is no repository .*/org/tiny, or it is a private one"),
    Case("the list is of no revision", "info", (answers(404, X_Error_Code="RevisionNotFound"),),
         "no revision 'main'"),
    Case("the list is refused", "info", (answers(403),), "the hub answers 403"),
    Case("the list names no commit", "info", (), "says no commit", {"sha": None}),
    Case("the list leads elsewhere", "info", (), "leads elsewhere",
         {"siblings": [{"rfilename": "../../x.safetensors", "size": 1, "blobId": git_hash(b"")}]}),
    Case("the list has no sizes", "info", (), "no size or hash",
         {"siblings": [{"rfilename": FILE}]}),
    Case("the list is empty", "info", (), "no weights", {"siblings": []}),
    Case("the file asks who it is", "file", (answers(401),), "log in with `hf auth login`"),
    Case("the file's licence", "file", (answers(403, X_Error_Code="GatedRepo"),),
         "accept its licence at http://.*/org/tiny"),
    Case("the file is not there", "file", (answers(404),), "no such file"),
    Case("the file once 429", "file", (*HEADERS, answers(429, Retry_After="0"))),
    Case("the file 429 for long", "file", (*HEADERS, answers(429, Retry_After="999")),
         "asks to wait 999 seconds"),
    Case("the file twice 503", "file", (*HEADERS, answers(503), answers(502))),
    Case("the file always 503", "file", (*HEADERS, *(answers(503),) * 9), "after 5 attempts"),
    Case("the file redirected to a program", "file", (*HEADERS, answers(
        302, Location="file:///etc/passwd")), "answers 302"),
    Case("the content breaks off", "cdn", (*HEADERS, breaks_off)),
    Case("the content breaks off thrice", "cdn", (*HEADERS, *[
        lambda handler: breaks_off(handler, 100_000)] * 3)),
    Case("the content never comes", "cdn", (*HEADERS, *(breaks_at_once,) * 9), "after 5 attempts"),
    Case("the content hangs up", "cdn", (*HEADERS, hangs_up)),
    Case("the content stalls", "cdn", (*HEADERS, stalls)),
    Case("the content is another", "cdn", (*HEADERS, answers(200, WRONG)), "not what it should be"),
    Case("the content is a page", "cdn", (*HEADERS, answers(200, PAGE)),
         f"the server has {len(PAGE)} bytes, expected {len(MODEL)}"),
    Case("the content is longer", "cdn", (*HEADERS, sends_too_much), "sends more than"),
    Case("the content ignores ranges", "cdn", (ignores_ranges, ignores_ranges)),
    Case("the content ignores ranges after a break", "cdn", (
        *HEADERS, breaks_off, ignores_ranges)),
    Case("the content changes after a break", "cdn", (
        *HEADERS, breaks_off, lambda handler: bool(handler.content(
            handler.path, "other")) or True)),
    Case("the content from another place", "cdn", (*HEADERS, breaks_off, answers(
        206, MODEL, Content_Range=f"bytes 5-9/{len(MODEL)}")), "bytes from"),
    Case("the content in circles", "cdn", (*HEADERS, circles), "answers 302"),
    Case("the header is another's", "cdn", (answers(
        206, WRONG[:1000], Content_Range=f"bytes 0-999/{len(MODEL)}"),) * 9, "broke off"),
    Case("the place once 503", "head", (answers(503),)),
    Case("the place of another content", "head", (answers(
        200, X_Repo_Commit=COMMIT, ETag=f'"{sha256(WRONG)}"', Content_Length=str(len(MODEL))),)),
)


@pytest.fixture
def tiny(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """The hub with a repository of one model."""
    hub.repositories["org/tiny"] = {FILE: MODEL, "README.md": b"# tiny"}
    hub.served[sha256(WRONG)] = WRONG
    monkeypatch.setattr(remote, "TIMEOUT_SECONDS", 0.3)
    return hub


def got(tell: Callable[[str], None] = lambda text: None) -> Path:
    return Path(fetch.kept(NAME, None, tell).path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_ends_resumed_or_in_one_error(tiny: HubServer, case: Case, tmp_path: Path) -> None:
    tiny.info = case.info or {}
    tiny.faults[case.kind] += case.faults
    if not case.error:
        assert got().read_bytes() == MODEL
        return
    with pytest.raises(InputError, match=case.error) as raised:
        got()
    assert "\n" not in str(raised.value) and "Traceback" not in str(raised.value)
    assert not [*(tmp_path / "models" / "fetched").glob("*")]
    for path in (tmp_path / "hub").rglob("*"):  # nothing that could be taken for the file
        assert not path.is_file() or path.suffix != ".safetensors", path
    for path in (tmp_path / "hub").glob("models--org--tiny/blobs/*"):
        assert path.suffix == download.UNFINISHED or path.name in (sha256(MODEL), sha256(WRONG))
    tiny.faults.clear()
    tiny.info = {}
    assert got().read_bytes() == MODEL  # and the next attempt succeeds


def test_what_was_fetched_is_not_fetched_again(tiny: HubServer) -> None:
    tiny.faults["cdn"] += [passes, breaks_off, *[breaks_at_once] * 9]
    with pytest.raises(InputError, match="what is here is kept"):
        got()
    tiny.faults.clear()
    before = len(tiny.of("cdn"))
    got()
    ranges = [headers.get("Range") for _, _, headers in tiny.of("cdn")[before:]]
    assert ranges[-1] == f"bytes={HALF}-"
    asked = len(tiny.asked)
    got()
    assert len(tiny.asked) == asked  # it is here, and nobody is asked


def test_what_is_here_of_another_content_is_fetched_anew(tiny: HubServer, tmp_path: Path) -> None:
    part = tmp_path / "hub/models--org--tiny/blobs" / (sha256(MODEL) + download.UNFINISHED)
    part.parent.mkdir(parents=True)
    for wrong in (WRONG[:1000], WRONG, WRONG + b"more"):
        part.write_bytes(wrong)
        path = got()
        assert path.read_bytes() == MODEL and not part.exists()
        fetch.ModelStore().remove(fetch.ModelStore().found(NAME))
        assert not path.exists()


def test_a_wrong_content_in_the_cache_of_the_hub_is_fetched_anew(
        tiny: HubServer, tmp_path: Path) -> None:
    blob = tmp_path / "hub/models--org--tiny/blobs" / sha256(MODEL)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(WRONG)
    assert got().read_bytes() == MODEL


def test_a_file_that_was_changed_is_not_used(tiny: HubServer) -> None:
    path = got()
    real = Path(os.path.realpath(path))
    real.write_bytes(WRONG)
    os.utime(real, ns=(1, 1))
    with pytest.raises(InputError, match="has another sha256.*smalti models get"):
        got()
    fetch.plan(NAME, None, fetch.ModelStore()).fetch(lambda text: None)
    assert got().read_bytes() == MODEL


def test_a_client_that_fetches_another_content_is_noticed(tiny: HubServer) -> None:
    tiny.faults["head"] += [answers(200, X_Repo_Commit=COMMIT, ETag=f'"{sha256(WRONG)}"',
                                    Content_Length=str(len(MODEL)))]
    tiny.faults["file"] += [passes, passes, answers(200, WRONG)]
    with pytest.raises(InputError, match="tiny.safetensors is not what the hub listed"):
        got()
    assert got().read_bytes() == MODEL


def test_a_disk_without_room_is_said_before(tiny: HubServer, monkeypatch: pytest.MonkeyPatch
                                            ) -> None:
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(InputError, match="needs .* MB, and .* has 1 kB free"):
        got()
    assert len(tiny.of("cdn")) == 1  # the header


class FullDisk(io.FileIO):
    """A file on a disk that is full after half of it."""

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > HALF:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content)


def test_a_disk_that_becomes_full_is_one_error(tiny: HubServer, monkeypatch: pytest.MonkeyPatch
                                               ) -> None:
    monkeypatch.setattr(download, "CHUNK_BYTES", 1 << 16)
    monkeypatch.setattr(download, "open", lambda path, mode: FullDisk(
        path, "ab") if "a" in mode else open(path, mode), raising=False)
    with pytest.raises(InputError, match="the disk of .* is full; make room"):
        got()
    monkeypatch.setattr(download, "open", open)
    assert got().read_bytes() == MODEL
    assert "Range" in tiny.of("cdn")[-1][2]


def test_a_folder_that_cannot_be_written_is_one_error(tiny: HubServer, tmp_path: Path) -> None:
    (tmp_path / "hub").write_text("a file")
    with pytest.raises(InputError, match="cannot be kept at"):
        got()
    (tmp_path / "hub").unlink()
    shutil.rmtree(tmp_path / "models")
    (tmp_path / "models").write_text("a file")
    with pytest.raises(InputError, match="cannot be kept at|cannot be written"):
        got()


def test_the_token_goes_to_the_hub_and_to_nobody_else(tiny: HubServer) -> None:
    got()
    assert {headers["authorization" if "authorization" in headers else "Authorization"]
            for kind, _, headers in tiny.asked if kind in ("info", "file", "head")
            } == {"Bearer hf_secret"}
    assert not [headers for _, _, headers in tiny.of("cdn")
                if "authorization" in {name.lower() for name in headers}]
