"""Attacks on a server: what is sent, and with which statuses it may be refused.

Known from facts about ComfyUI, A1111, Gradio and others that were attacked this way: pages of
other sites that reach a server on the same computer, paths that lead out of a folder, content that
grows when it is read, and requests that two readers understand differently.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from PIL import Image

HOST = "127.0.0.1"
PORT = b"PORT"
"""In what is sent, where the port of the server stands."""
BAD = frozenset((400, 401, 403, 404, 405, 413, 414, 415, 422, 431, 501, 505))
"""Statuses that refuse; the end of the connection does, too, which counts as 0."""
UNKNOWN = frozenset((401,))
HARMLESS = BAD | {200, 206, 416}
"""Of an attack that fails where the answer is what everybody gets."""


@dataclass(frozen=True)
class Attack:
    """Bytes to send, and the statuses that may be answered.

    `token` tells whether the server that is attacked asks for a token, `ends` whether the
    connection is to end after one answer, as what follows may be a second request that was hidden.
    """

    title: str
    sent: bytes
    expected: frozenset[int]
    token: bool = False
    ends: bool = False


def request(method: str, path: str, headers: list[tuple[str, str]] | None = None,
            body: bytes | None = None, host: bool = True) -> bytes:
    """A request as browsers send it, with other headers besides or instead."""
    given = list(headers or [])
    names = {name.lower() for name, _ in given}
    if host and "host" not in names:
        given.insert(0, ("Host", f"{HOST}:PORT"))
    if body is not None and not {"content-length", "transfer-encoding"} & names:
        given.append(("Content-Length", str(len(body))))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


def posted(path: str, body: bytes, *headers: tuple[str, str]) -> bytes:
    """JSON, or what says that it is."""
    kind = [] if any(name.lower() == "content-type" for name, _ in headers) else [
        ("Content-Type", "application/json")]
    return request("POST", path, [*kind, *headers], body)


def asked(**wanted: Any) -> bytes:
    """A picture is asked for."""
    return posted("/api/jobs", json.dumps({"prompt": "a", "model": "tiny", **wanted}).encode())


JOB = json.dumps({"prompt": "a", "model": "tiny", "steps": 1}).encode()
PATHS = {
    "traversal": "/../../etc/passwd", "traversal, slashes": "//../..//etc/passwd",
    "traversal, percent": "/%2e%2e/%2e%2e/etc/passwd",
    "traversal, percent twice": "/page/%252e%252e%252fetc%252fpasswd",
    "traversal, page": "/page/../../serve.py", "traversal, page, percent": "/page/..%2fserve.py",
    "traversal, backslash": "/page/..\\..\\serve.py",
    "traversal, backslash, percent": "/page/..%5c..%5cserve.py",
    "traversal, overlong UTF-8": "/page/%c0%ae%c0%ae%c0%afserve.py",
    "traversal, wide full stop": "/page/%ef%bc%8e%ef%bc%8e%ef%bc%8fserve.py",
    "traversal, semicolon": "/page/..;/serve.py", "absolute": "/page//etc/passwd",
    "null byte": "/page/index.html%00.png", "null byte, picture": "/api/pictures/1%00/file",
    "device of Windows": "/page/CON", "device of Windows, ending": "/page/aux.js",
    "stream of NTFS": "/page/index.html::$DATA", "path of Windows": "/page/C:%5cWindows%5cwin.ini",
    "share of Windows": "/page/%5c%5cevil.example%5cshare",
    "archive of the queue": "/api/pictures/..%2fsmalti.sqlite/file",
    "job as a path": "/api/jobs/..%2f..%2fetc%2fpasswd", "no number": "/api/pictures/1e3/file",
    "Arabic digits": "/api/pictures/%D9%A1/file", "negative": "/api/pictures/-1/file",
    "huge id": "/api/pictures/" + "9" * 400 + "/file",
    "preview as a path": "/api/models/preview?kind=..&name=..%2f..%2fetc%2fpasswd",
    "defaults as a path": "/api/models/defaults?name=..%2f..%2f..%2fetc%2fpasswd",
    "thumbnail as a path": "/api/pictures/..%2f..%2f1/thumbnail",
    "script in a path": "/%3Cscript%3Ealert(1)%3C/script%3E",
    "line break in a path": "/api/jobs/%0d%0aSet-Cookie:%20a=b%0d%0a",
    "limit": "/api/pictures?limit=999999999999", "limit, no number": "/api/jobs?limit=NaN",
    "before": "/api/pictures?before=" + "9" * 30, "state": "/api/jobs?state='%20OR%201=1",
    "unknown query": "/api/jobs?callback=alert", "words": "/api/pictures?search=" + "a+" * 5000,
    "many queries": "/api/jobs?" + "&".join(f"a{at}=1" for at in range(2000)),
}
HOSTS = ("evil.example", "evil.example:PORT", "127.0.0.1.evil.example", "localhost.evil.example",
         "localhost@evil.example", "127.0.0.1:PORT@evil.example", "127.0.0.1, evil.example",
         "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "192.168.0.7", "[::]", "",
         "localhost:PORT/evil", "localhost\tevil", "127.0.0.1#.evil.example")
ORIGINS = ("null", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:1",
           "http://127.0.0.1:PORT.evil.example", "http://127.0.0.1:PORT@evil.example",
           "http://evil.example/?http://127.0.0.1:PORT", "file://", "chrome-extension://abcd", "",
           "http://localhost:PORT")
KINDS = ("text/plain", "application/x-www-form-urlencoded", "",
         "multipart/form-data; boundary=application/json", "text/plain; application/json",
         "application/jsonp", "application/json\x0b")
CONTENTS: dict[str, bytes] = {
    "no JSON": b"{", "nothing but brackets": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000, "NaN": b'{"prompt": "a", "guidance_scale": NaN}',
    "Infinity": b'{"prompt": "a", "seed": -Infinity}',
    "1e400": b'{"prompt": "a", "guidance_scale": 1e400}',
    "a number of 5,000 digits": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "keys twice": b'{"prompt": "a", "model": "tiny", "steps": 1, "steps": 2}',
    "half a surrogate": b'{"prompt": "\\ud800"}', "no UTF-8": b'{"prompt": "\xff\xfe"}',
    "UTF-16": '{"prompt": "a", "model": 3}'.encode("utf-16"), "a list": b"[]", "null": b"null",
    "10,000 keys": json.dumps({f"a{at}": 1 for at in range(10_000)}).encode(),
    "a prototype": b'{"__proto__": {"admin": true}, "prompt": "a"}',
}
OPTIONS: dict[str, dict[str, Any]] = {
    "a huge side": {"width": 10**9}, "a negative side": {"height": -64}, "no side": {"width": 0},
    "half a pixel": {"width": 64.5}, "huge steps": {"steps": 10**9}, "no steps": {"steps": 0},
    "a huge batch": {"batch_size": 10**6}, "a negative batch": {"batch_size": -1},
    "much of all": {"width": 4096, "height": 4096, "steps": 1000, "batch_size": 64},
    "a huge seed": {"seed": 2**70}, "a boolean for a number": {"steps": True},
    "an object for a text": {"prompt": {"a": 1}}, "a long prompt": {"prompt": "a" * 40_000},
    "a path as model": {"model": "../../../../etc/passwd"}, "root": {"model": "/etc/passwd"},
    "a path of Windows": {"model": "..\\..\\Windows\\win.ini"}, "a device": {"model": "NUL"},
    "a null byte": {"model": "tiny\0.safetensors"}, "a share": {"vae": "\\\\evil.example\\a"},
    "a path as adapter": {"loras": [{"name": "../../etc/passwd"}]},
    "a path as upscaler": {"hires": 2.0, "hires_upscaler": "/etc/passwd"},
    "a script as model": {"model": "<script>alert(1)</script>"},
    "weights without end": {"loras": [{"name": "style", "weight": 1e308}]},
    "too many adapters": {"loras": [{"name": "style"}] * 100},
    "an address": {"image": "http://169.254.169.254/latest/meta-data"},
    "a file": {"image": "file:///etc/passwd"}, "a path as picture": {"image": "/etc/passwd"},
    "another device": {"device": "../cpu"}, "an unknown option": {"command": "id"},
}


READ = ("settings of a camera, damaged", "a GIF of 50,000 pictures")
"""Files with pixels that are read all the same."""
A1111: list[tuple[str, str, dict[str, Any]]] = [
    ("an address", "/sdapi/v1/img2img", {
        "prompt": "a", "init_images": ["http://127.0.0.1:PORT/internal/ping"]}),
    ("a path as model", "/sdapi/v1/options", {"sd_model_checkpoint": "../../etc/passwd"}),
    ("a script", "/sdapi/v1/txt2img", {"prompt": "a", "script_name": "../evil.py"}),
    ("a path as module", "/sdapi/v1/options", {"forge_additional_modules": ["/etc/passwd"]}),
    ("a path of Windows as module", "/sdapi/v1/options", {
        "forge_additional_modules": ["\\\\evil.example\\share\\ae.safetensors"]}),
    ("a path as adapter", "/sdapi/v1/txt2img", {
        "prompt": "a", "lora_paths": ["/etc/passwd"], "lora_alphas": [1]}),
    ("a path as ControlNet", "/sdapi/v1/txt2img", {"prompt": "a", "alwayson_scripts": {
        "ControlNet": {"args": [{"model": "/etc/passwd", "image": "AAAA"}]}}}),
    ("an address as picture of a ControlNet", "/sdapi/v1/txt2img", {
        "prompt": "a", "alwayson_scripts": {"ControlNet": {"args": [
            {"model": "a", "image": "http://169.254.169.254/latest/meta-data"}]}}}),
    ("an address to a preprocessor", "/controlnet/detect", {
        "controlnet_module": "canny", "controlnet_input_images": ["http://169.254.169.254/"]}),
    ("a thousand pictures to a preprocessor", "/controlnet/detect", {
        "controlnet_input_images": ["AAAA"] * 1000}),
    ("a path as upscaler", "/sdapi/v1/extra-single-image", {
        "image": "AAAA", "upscaler_1": "../../etc/passwd"}),
    ("a file that is enlarged", "/sdapi/v1/extra-single-image", {
        "image": "/etc/passwd", "upscaler_1": "Lanczos"}),
    ("a path as style", "/sdapi/v1/txt2img", {"prompt": "a", "styles": ["../../etc/passwd"]})]
OPENAI: list[tuple[str, dict[str, Any]]] = [
    ("an address", {"images": [{"image_url": "http://169.254.169.254/latest/meta-data"}]}),
    ("a file", {"images": [{"image_url": "file:///etc/passwd"}]}),
    ("a file by its id", {"images": [{"file_id": "../../etc/passwd"}]}),
    ("a path as model", {"model": "../../etc/passwd", "image": "AAAA"})]
FORM = (b"--x\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\r\n"
        b"--x\r\nContent-Disposition: form-data; name=\"image\"; filename=\"../../a.png\"\r\n\r\n")
"""The beginning of one that clients of OpenAI's API send."""
FORMS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "of a foreign page": (FORM + b"\r\n--x--\r\n", ()),
    "with a password": (FORM + b"\r\n--x--\r\n", ("Basic YTpi",)),
    "without end": (FORM, ("Bearer a",)),
    "without a picture": (FORM + b"/etc/passwd\r\n--x--\r\n", ("Bearer a",)),
    "of 100,000 parts": (FORM + b"\r\n--x" * 100_000, ("Bearer a",)),
    "of a long head": (b"--x\r\n" + b"a" * (1 << 20) + b"\r\n\r\n\r\n--x--", ("Bearer a",)),
}
"""What follows the head of a form, and who says to send it."""


def chunk(name: bytes, content: bytes) -> bytes:
    """A part of a PNG."""
    return (struct.pack(">I", len(content)) + name + content
            + struct.pack(">I", zlib.crc32(name + content)))


def png(*extra: bytes, width: int = 8, height: int = 8, data: bytes | None = None) -> bytes:
    """A PNG in grey with more chunks, or of a size that its data do not have."""
    rows = zlib.compress(bytes((width + 1) * height)) if data is None else data
    return b"".join((b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", struct.pack(
        ">IIBBBBB", width, height, 8, 0, 0, 0, 0)), *extra, chunk(b"IDAT", rows),
        chunk(b"IEND", b"")))


def zeros(size: int) -> bytes:
    """So many zeros, packed."""
    packer = zlib.compressobj(9)
    block = bytes(1 << 20)
    return b"".join(packer.compress(block) for _ in range(size >> 20)) + packer.flush()


def gif(frames: int) -> bytes:
    """Pictures in one file, each as small as can be."""
    one = io.BytesIO()
    Image.new("P", (1, 1)).save(one, "GIF")
    head, frame = one.getvalue()[:-1].split(b"\x2c", 1)
    return head + (b"\x2c" + frame) * frames + b";"


def pictures() -> Iterator[tuple[str, bytes]]:
    """Files that grow when they are read, or are no pictures."""
    packed = zeros(64 << 20)
    yield "a PNG of 2^62 pixels", png(width=2**31 - 1, height=2**31 - 1, data=packed[:1000])
    yield "a PNG of 10^9 pixels", png(width=31_000, height=31_000, data=packed)
    yield "a text that is packed", png(chunk(b"zTXt", b"parameters\0\0" + packed))
    yield "a text of its own language", png(chunk(
        b"iTXt", b"parameters\0\1\0\0\0" + packed))
    yield "a thousand texts", png(*(chunk(b"zTXt", b"a%d\0\0" % at + zeros(1 << 20))
                                    for at in range(100)))
    yield "a profile that is packed", png(chunk(b"iCCP", b"a\0\0" + packed))
    yield "no end", png()[:-30]
    yield "settings of a camera, damaged", png(chunk(
        b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\xff\xff\xff\xff\0\0\0\0"))
    yield "a GIF of a huge screen", b"GIF89a" + b"\xff" * 4 + gif(1)[10:]
    yield "a JPEG of a huge size", bytes.fromhex(
        "ffd8ffc0000b08fffffffF01011100ffda0008010100003f00") + bytes(100)
    yield "a BMP of a huge size", b"BM" + struct.pack(
        "<IIIIiiHHIIiiII", 100, 0, 54, 40, 2**31 - 1, -(2**31), 1, 1, 0, 0, 0, 0, 0, 0)
    yield "HTML", b"<html><script>alert(1)</script></html>"
    yield "SVG", b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    yield "EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9999 9999\n"
    yield "TIFF", b"II*\0" + bytes(100)
    yield "nothing", b""


def headers() -> Iterator[tuple[str, bytes, frozenset[int]]]:
    """What stands before the content."""
    jobs, ping = "/api/jobs", "/internal/ping"
    smuggled = b"0\r\n\r\nDELETE /api/pictures/1 HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n"
    chunked = ("Transfer-Encoding", "chunked")
    yield "two hosts", request("GET", ping, [
        ("Host", f"{HOST}:PORT"), ("Host", "evil.example")]), BAD
    yield "no host", request("GET", ping, host=False), BAD
    yield "no host, HTTP/1.0", b"GET /internal/ping HTTP/1.0\r\n\r\n", BAD
    yield "another host in the first line", request("GET", "http://evil.example/api/jobs"), BAD
    yield "a file in the first line", request("GET", "file:///etc/passwd"), BAD
    yield "X-Forwarded-Host", request("GET", "/api/jobs?limit=1", [
        ("X-Forwarded-Host", "evil.example"), ("X-Forwarded-For", "127.0.0.1")]), HARMLESS
    yield "two origins", posted(jobs, JOB, ("Origin", f"http://{HOST}:PORT"),
                                ("Origin", "http://evil.example")), BAD
    yield "another method", request("GET", "/api/jobs", [
        ("X-HTTP-Method-Override", "DELETE")]), HARMLESS
    for method in ("TRACE", "CONNECT", "OPTIONS", "PUT", "PATCH", "PROPFIND"):
        yield f"the method {method}", request(method, ping), BAD
    yield "two lengths", request("POST", jobs, [
        ("Content-Type", "application/json"), ("Content-Length", "5"),
        ("Content-Length", "6")], JOB), BAD
    for length in ("-1", "+5", "0x10", "1e3", "5, 6", "9" * 18, "9" * 400, ""):
        yield f"the length {length:.20}", request("POST", jobs, [
            ("Content-Type", "application/json"), ("Content-Length", length)], JOB), BAD
    yield "a length and chunks", posted(jobs, smuggled, ("Content-Length", "4"), chunked), BAD
    yield "chunks of another kind", posted(jobs, smuggled, ("Transfer-Encoding", "xchunked")), BAD
    yield "chunks twice", posted(jobs, smuggled, chunked, chunked), BAD
    yield "a huge chunk", posted(jobs, b"F" * 30 + b"\r\n", chunked), BAD
    yield "a negative chunk", posted(jobs, b"-1\r\n\r\n", chunked), BAD
    yield "a long header", request("GET", ping, [("X-A", "a" * 100_000)]), BAD
    yield "many headers", request("GET", ping, [(f"X-{at}", "a") for at in range(10_000)]), BAD
    yield "a long line", request("GET", "/" + "a" * 100_000), BAD
    yield "a line break in a header", request("GET", ping, [("X-A", "a\nHost: evil.example")]), BAD
    yield "a null byte in a header", request("GET", ping, [("X-A", "a\0b")]), BAD
    yield "a blank before the colon", request("GET", ping, [
        ("Host ", "127.0.0.1:PORT")], host=False), BAD
    yield "a folded header", request("GET", ping, [("X-A", "a\r\n Host: evil.example")]), HARMLESS
    yield "HTTP/9.9", b"GET /internal/ping HTTP/9.9\r\nHost: 127.0.0.1:PORT\r\n\r\n", HARMLESS
    yield "HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD
    yield "TLS", bytes.fromhex("16030100050100000100") + b"\r\n\r\n", BAD
    yield "HTTP/2 by an upgrade", request("GET", ping, [
        ("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"),
        ("HTTP2-Settings", "")]), HARMLESS
    yield "a WebSocket", request("GET", "/api/events/none", [
        ("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")]), BAD
    yield "ranges without end", request("GET", "/api/pictures/1/file", [
        ("Range", "bytes=" + ",".join(["0-"] * 3000))]), HARMLESS


def refused(title: str, sent: bytes) -> Attack:
    """An attack that is refused in any of the usual ways."""
    return Attack(title, sent, BAD)


def all_attacks() -> list[Attack]:
    """Every attack that is one exchange."""
    found = [refused(f"path: {title}", request("GET", path)) for title, path in PATHS.items()]
    found += [refused(f"host: {host}", request("GET", "/internal/ping", [("Host", host)]))
              for host in HOSTS]
    found += [refused(f"origin: {origin}", posted("/api/jobs", JOB, ("Origin", origin)))
              for origin in ORIGINS]
    found += [refused(f"page: {site}", posted("/api/jobs", JOB, ("Sec-Fetch-Site", site)))
              for site in ("cross-site", "same-site")]
    found += [refused(f"type: {kind!a}", posted("/api/jobs", JOB, ("Content-Type", kind)))
              for kind in KINDS]
    found += [refused(f"content: {title}", posted("/api/jobs", body))
              for title, body in CONTENTS.items()]
    found += [refused(f"option: {title}", asked(**said)) for title, said in OPTIONS.items()]
    for title, file in [*pictures(), ("a GIF of 50,000 pictures", gif(50_000))]:
        text = base64.b64encode(file).decode()
        if title not in READ:
            found.append(refused(f"picture: {title}", asked(image=text, strength=0.5)))
        found.append(refused(f"settings: {title}", posted(
            "/api/metadata", json.dumps({"picture": text}).encode())))
    found += [refused(f"A1111: {title}", posted(path, json.dumps(said).encode()))
              for title, path, said in A1111]
    found += [refused(f"OpenAI: {title}", posted(
        "/v1/images/edits", json.dumps({"prompt": "a", **said}).encode()))
        for title, said in OPENAI]
    found += [refused(f"form: {title}", posted(
        "/v1/images/edits", body, ("Content-Type", "multipart/form-data; boundary=x"),
        *(("Authorization", each) for each in tokens))) for title, (body, tokens) in FORMS.items()]
    found += [Attack(f"header: {title}", sent, expected, ends=b"DELETE /api/p" in sent)
              for title, sent, expected in headers()]
    return found + unknown()


def unknown() -> list[Attack]:
    """Requests without the token of a server that asks for it."""
    def basic(text: str) -> str:
        return "Basic " + base64.b64encode(text.encode()).decode()

    given = ("", "Bearer", "Bearer ", "Bearer wrong", "Basic", "Basic %%%", "Basic =", basic(""),
             basic("user:"), basic(":wrong"), basic("no colon"), "Digest username=a", "Bearer \xff",
             "Bearer " + "a" * 10_000, "bearer\twrong", "Negotiate YII=", "null", "undefined")
    found = [Attack(f"token: {value:.40}", request("GET", "/api/jobs", [("Authorization", value)]),
                    UNKNOWN, token=True) for value in given]
    found += [Attack(f"token: {path}", request("GET", path), UNKNOWN, token=True)
              for path in ("/", "/page/index.html", "/api/events", "/api/openapi.json",
                           "//internal/ping", "/internal/ping/", "/INTERNAL/PING",
                           "/api/jobs?token=wrong", "/sdapi/v1/options", "/v1/models")]
    found.append(Attack("token: two of them", request("GET", "/api/jobs", [
        ("Authorization", "Bearer wrong"), ("Authorization", "Bearer wronger")]), UNKNOWN, True))
    found.append(Attack("token: a cookie", request("GET", "/api/jobs", [
        ("Cookie", "token=wrong; session=wrong")]), UNKNOWN, True))
    return found
