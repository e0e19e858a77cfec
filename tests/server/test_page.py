"""The page's files: what a browser is given, and what they may not hold."""

from __future__ import annotations

import gzip
import re
from pathlib import PurePosixPath

import pytest
from served import Client

from smalti.server.page_files import FOLDER, INDEX, PageFile, page_files

FILES = {each.name: each for each in page_files()}
USABLE_BYTES_MAX = 300 << 10
"""Of all that a browser loads before the page can be used."""
LINKED = re.compile(r'(?:src|href)="/page/([^"]+)"')
IMPORTED = re.compile(r'^(?:import|export)\b[^;]*?from\s*"(\.[^"]+)"', re.MULTILINE)
PACKED_IMPORT = re.compile(r'(?:from|import)\s*"(\./[^"]+)"')
NAMED = re.compile(r'^import \{([^}]*)\}\s*from "(\.[^"]+)"', re.MULTILINE)
GIVEN = re.compile(r"^export (?:async )?(?:const|function|class|let) (\w+)", re.MULTILINE)
LATER = re.compile(r'\bimport\("(\.[^"]+)"\)')
HOSTS = re.compile(r"https?://[^\s\"'`)]*")
NAMESPACES = ("http://www.w3.org/",)
"""Names of SVG and XHTML, which look like addresses and are never asked for."""
UNSAFE = re.compile(r"\beval\(|new Function|innerHTML|insertAdjacentHTML")
BEGINS = re.compile(r"(export )?((async )?function\b|const \w+ = .*=> \{$)")
"""A function at the outer level of a module; it ends with a line that begins with a brace."""
FUNCTION_LINES_MAX, FILE_LINES_MAX, WIDTH_MAX = 70, 600, 100
WRITTEN = sorted(name for name in FILES if not name.startswith("vendor/"))


def text(name: str) -> str:
    return FILES[name].content.decode()


def imports(name: str, pattern: re.Pattern[str]) -> list[str]:
    """The files that a module names, as the server calls them."""
    folder = PurePosixPath(name).parent
    return [str(folder / each) for each in pattern.findall(text(name))]


def loaded_at_once() -> set[str]:
    """What a browser loads for the page, modules with all that they import."""
    found: set[str] = set()
    waiting = [INDEX, *LINKED.findall(text(INDEX))]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name.endswith(".js"):
            waiting += imports(name, PACKED_IMPORT if name.startswith("vendor/") else IMPORTED)
    return found


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_file_is_served_as_what_it_is(client: Client, name: str) -> None:
    answer = client.get("/" if name == INDEX else f"/page/{name}")
    kinds = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
             ".html": "text/html; charset=utf-8", ".svg": "image/svg+xml", ".txt": "text/plain"}
    assert answer.status == 200 and answer.content == FILES[name].content
    assert answer.headers["content-type"].startswith(kinds[PurePosixPath(name).suffix])
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_page_may_load_from_its_own_server_only(client: Client) -> None:
    policy = client.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert "unsafe" not in policy and "http" not in policy and "frame-ancestors 'none'" in policy


def test_a_browser_that_has_a_file_is_told_so(client: Client) -> None:
    tag = client.get("/page/main.js").headers["etag"]
    for given in (tag, f'"other", W/{tag}', "*"):
        answer = client.ask("GET", "/page/main.js", headers={"If-None-Match": given})
        assert answer.status == 304 and not answer.content and answer.headers["etag"] == tag
    assert client.ask("GET", "/", headers={"If-None-Match": tag}).status == 200


def test_files_are_packed_for_those_who_unpack_them(client: Client) -> None:
    answer = client.ask("GET", "/page/main.js", headers={"Accept-Encoding": "br, gzip;q=0.5"})
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(answer.content) == FILES["main.js"].content
    plain = client.ask("GET", "/page/main.js", headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in plain.headers and len(plain.content) > len(answer.content)


@pytest.mark.parametrize("path", [
    "/page/", "/page/none.js", "/page/../page_files.py", "/page/%2e%2e/page_files.py",
    "/page/vendor", "/page/index.html", "/page/MAIN.JS"])
def test_nothing_but_the_files_is_there(client: Client, path: str) -> None:
    assert client.get(path).status == 404


def test_the_tag_follows_the_content() -> None:
    assert PageFile("a.js", b"1").tag != PageFile("a.js", b"2").tag


def test_what_is_asked_for_is_there() -> None:
    for name in FILES:
        if name.endswith(".js"):
            packed = name.startswith("vendor/")
            wanted = imports(name, PACKED_IMPORT if packed else IMPORTED) + imports(name, LATER)
            assert not {*wanted} - {*FILES}, name
    assert not {*LINKED.findall(text(INDEX))} - {*FILES}


def test_the_browser_is_told_of_all_modules_at_once() -> None:
    told = re.findall(r'modulepreload" href="/page/([^"]+)"', text(INDEX))
    modules = {each for each in loaded_at_once() if each.endswith(".js")}
    assert len(told) == len({*told}) and {*told} == modules - {"main.js", "theme.js"}


@pytest.mark.parametrize("name", [name for name in WRITTEN if name.endswith(".js")])
def test_modules_take_from_others_what_those_give(name: str) -> None:
    for names, other in NAMED.findall(text(name)):
        target = str(PurePosixPath(name).parent / other)
        taken = {each.split(" as ")[0].strip() for each in names.split(",")} - {""}
        if not target.startswith("vendor/"):
            assert taken <= {*GIVEN.findall(text(target))}, f"{name} from {other}"
        own = text(name).replace(names, "", 1)
        unused = [each for each in names.split(",") if each.strip() and not re.search(
            rf"\b{each.split(' as ')[-1].strip()}\b", own)]
        assert not unused, f"{name} does not use {unused}"


def test_little_is_loaded_before_the_page_can_be_used() -> None:
    assert sum(len(FILES[name].content) for name in loaded_at_once()) <= USABLE_BYTES_MAX


def test_no_file_is_without_use() -> None:
    used = loaded_at_once()
    waiting = [name for name in used if name in WRITTEN and name.endswith(".js")]
    while waiting:
        name = waiting.pop()
        new = {*imports(name, LATER), *imports(name, IMPORTED)} - used
        used |= new
        waiting += new
    assert {*FILES} - used == {"vendor/LICENSES.txt"}


@pytest.mark.parametrize("name", sorted(FILES))
def test_no_file_names_another_host(name: str) -> None:
    if name != "vendor/LICENSES.txt":
        named = [each for each in HOSTS.findall(text(name)) if not each.startswith(NAMESPACES)]
        assert not named


def test_nothing_is_written_into_the_page_that_its_policy_refuses() -> None:
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", text(INDEX))
    for name in WRITTEN:
        assert not UNSAFE.search(text(name)), name


@pytest.mark.parametrize("name", [name for name in WRITTEN if name.endswith((".js", ".css"))])
def test_the_page_is_written_as_the_rest_is(name: str) -> None:
    lines = text(name).splitlines()
    assert len(lines) <= FILE_LINES_MAX
    assert not [number for number, line in enumerate(lines, 1) if len(line) > WIDTH_MAX]
    assert lines[0].startswith(("//", "/*")), "a file begins with what it is for"
    begin = None
    for number, line in enumerate(lines, 1):
        if BEGINS.match(line):
            begin = number
        elif begin is not None and line.startswith("}"):
            assert number - begin < FUNCTION_LINES_MAX, f"{name}:{begin}"
            begin = None


def test_licences_of_others_are_with_their_files() -> None:
    told = text("vendor/LICENSES.txt")
    for name in FILES:
        if name.startswith("vendor/") and name.endswith(".js"):
            assert PurePosixPath(name).name in told
    assert FOLDER.is_dir()
