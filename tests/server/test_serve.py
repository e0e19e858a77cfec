"""The process: it starts at once, goes on after it was killed, and ends when it is told to."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from served import LONG, SECONDS, opened

from smalti.cli.main import root
from smalti.cli.serve import asked_token, check_loading
from smalti.errors import InputError
from smalti.server.archive import ATTEMPTS_MAX, Archive
from smalti.server.serve import FOR_EACH_PICTURE, POLLED, application, listening
from smalti.server.site import ARCHIVE

LATE = ("numpy", "PIL", "onnx", "smalti.runtime", "smalti.diffusion")
"""What takes long to load, and the first answer needs nothing of."""


@contextmanager
def started(environment: dict[str, str], *arguments: str,
            program: tuple[str, ...] = ("-m", "smalti")) -> Iterator[tuple[Any, str]]:
    """A server as a process, and its address."""
    process = subprocess.Popen(
        [sys.executable, *program, "serve", "--port", "0", "--device", "cpu", "--threads", "1",
         *arguments], stdout=subprocess.PIPE, env=environment, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield process, line.split()[2]
    finally:
        process.kill()
        process.wait()


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.loads(answer.read())


def until_it_runs(events: Iterable[bytes]) -> None:
    """Read events until a step is done; they need not tell of each one."""
    assert any(re.search(rb'"step": [1-9]', line) for line in events), "it ended before"


def until_ended(address: str, id: str) -> dict[str, Any]:
    """The job of the last event, which comes when it has ended."""
    with urllib.request.urlopen(f"{address}/api/jobs/{id}/events", timeout=SECONDS) as events:
        *_, last = [line for line in events.read().decode().split("\n") if line.startswith("data")]
    return json.loads(last.removeprefix("data: "))


@pytest.mark.sweep
def test_a_server_that_was_killed_goes_on_and_every_job_ends_once(
        environment: dict[str, str], models: Path, tmp_path: Path) -> None:
    places = ("--models", str(models), "--output", str(tmp_path))
    with started(environment, *places) as (process, address):
        long = ask(f"{address}/api/jobs", {"prompt": "a", "model": "tiny", **LONG})["id"]
        ids = [ask(f"{address}/api/jobs", {"prompt": "a", "model": "tiny", "steps": 1})["id"]
               for _ in range(3)]
        with urllib.request.urlopen(f"{address}/api/jobs/{long}/events", timeout=SECONDS) as events:
            until_it_runs(events)
        process.kill()
        process.wait()
    with started(environment, *places) as (process, address):
        assert ask(f"{address}/api/jobs")["jobs"][0]["id"] == long
        request = urllib.request.Request(f"{address}/api/jobs/{long}", method="DELETE")
        urllib.request.urlopen(request, timeout=SECONDS).close()
        assert until_ended(address, long)["state"] == "cancelled"
        assert [until_ended(address, id)["state"] for id in ids] == ["done"] * 3
        pictures = ask(f"{address}/api/pictures")["pictures"]
        assert [each["job"] for each in pictures] == ids[::-1]
        assert len([*tmp_path.rglob("*.png")]) == 3 and not [*tmp_path.rglob("*.part")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == -signal.SIGTERM


@pytest.mark.sweep
def test_the_first_requests_may_come_at_once(
        environment: dict[str, str], models: Path, tmp_path: Path) -> None:
    paths = ("options", "models", "pictures", "devices", "jobs", "openapi.json") * 2
    with started(environment, "--models", str(models), "--output", str(tmp_path)) as (_, address):
        with ThreadPoolExecutor(len(paths)) as threads:
            assert all(threads.map(lambda path: ask(f"{address}/api/{path}"), paths))


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("sent", "code"), [
    (signal.SIGINT, 130),
    pytest.param(signal.SIGTERM, -signal.SIGTERM, marks=pytest.mark.sweep)])
def test_it_ends_within_a_step_and_goes_on_at_the_next_start(
        environment: dict[str, str], models: Path, tmp_path: Path, sent: int, code: int) -> None:
    with started(environment, "--models", str(models), "--output", str(tmp_path)) as (
            process, address):
        id = ask(f"{address}/api/jobs", {"prompt": "a", "model": "tiny", **LONG})["id"]
        with urllib.request.urlopen(f"{address}/api/jobs/{id}/events", timeout=SECONDS) as events:
            until_it_runs(events)
            process.send_signal(sent)
            assert process.wait(SECONDS) == code
    archive = Archive(tmp_path / ARCHIVE)
    assert (archive.order(), archive.jobs()[0].attempts) == ([id], 0)
    archive.close()
    assert not [*tmp_path.rglob("*.part"), *tmp_path.rglob("*.png")]


SLOW = """
import time
import smalti.server.site
from smalti.diffusion.job import PictureJob
smalti.server.site.STOP_SECONDS = 0.1
def slow(self, asked, begun):
    print("it runs", flush=True)
    time.sleep(600)
PictureJob._walk = slow
from smalti.__main__ import main
main()
"""


@pytest.mark.sweep
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_step_that_takes_longer_than_the_end_is_no_attempt(
        environment: dict[str, str], models: Path, tmp_path: Path, sent: int) -> None:
    """Servers that are stopped three times in a step of a large model are no crashes of it."""
    with started(environment, "--models", str(models), "--output", str(tmp_path),
                 program=("-c", SLOW)) as (process, address):
        id = ask(f"{address}/api/jobs", {"prompt": "a", "model": "tiny", "steps": 1})["id"]
        assert process.stdout.readline() == "it runs\n"
        process.send_signal(sent)
        process.wait(SECONDS)
    archive = Archive(tmp_path / ARCHIVE)
    assert (archive.order(), archive.jobs()[0].attempts) == ([id], 0)
    archive.close()


DEADLY = """
import os, sys
from smalti.diffusion.job import PictureJob
walk = PictureJob._walk
def deadly(self, asked, begun):
    if asked.prompt == "deadly":
        os._exit(9)
    return walk(self, asked, begun)
PictureJob._walk = deadly
from smalti.__main__ import main
main()
"""


@pytest.mark.sweep
def test_a_job_that_ends_the_process_is_given_up_and_the_others_are_made(
        environment: dict[str, str], models: Path, tmp_path: Path) -> None:
    site = opened(tmp_path, models)
    deadly, other = (site.queue.submit({"prompt": prompt, "model": "tiny", "steps": 1}).id
                     for prompt in ("deadly", "a"))
    site.stop()
    for _ in range(ATTEMPTS_MAX):
        with started(environment, "--models", str(models), "--output", str(tmp_path),
                     program=("-c", DEADLY)) as (process, _):
            assert process.wait(SECONDS) == 9
    with started(environment, "--models", str(models), "--output", str(tmp_path)) as (
            process, address):
        assert until_ended(address, other)["state"] == "done"
        error = ask(f"{address}/api/jobs/{deadly}")["error"]
        assert error["name"] == "DeviceError" and "ended 3 times" in error["message"]


@pytest.mark.parametrize("code", [
    "import smalti.server.serve, smalti.server.site, smalti.cli.main",
    "import smalti.cli.serve as serve; serve.check_loading(('auto', 'cpu'), 1)"])
def test_what_takes_long_is_loaded_when_a_picture_is_asked_for(
        environment: dict[str, str], code: str) -> None:
    code = f"{code}; import sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, check=True,
                            capture_output=True, text=True).stdout.split()
    assert not {*LATE} & {*loaded}


@pytest.mark.parametrize(("given", "said"), [
    ({"precision": "int9"}, "precision is 'int9'; known: auto, f32, bf16, int8"),
    ({"gpu_memory": "4GB"}, "cpu computes in main memory; give memory"),
    ({"threads": 0}, "threads is 0"), ({"memory": "many"}, "memory is 'many'"),
    ({"devices": ("cpu", "cpu")}, "given twice"),
    ({"devices": ("text=cpu,denoiser=none:0",)}, "no device is named 'none:0'")])
def test_what_no_picture_could_be_made_with_is_refused_at_the_start(given: dict[str, Any],
                                                                    said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        check_loading(**{"devices": ("cpu",), **given})


def test_a_token_need_not_be_in_the_list_of_processes(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of the file\r\nnot this\n")
    monkeypatch.setenv("SMALTI_TOKEN", "of the environment")
    assert [asked_token("given", None), asked_token(None, file), asked_token(None, None)] == [
        "given", "of the file", "of the environment"]
    monkeypatch.setenv("SMALTI_TOKEN", "")
    assert asked_token(None, None) is None
    file.write_text("\n")
    with pytest.raises(InputError, match="has no token in its first line"):
        asked_token(None, file)


@pytest.mark.parametrize(("arguments", "said"), [
    (["--models", "none"], "--models none is no folder"),
    (["--models", "none.yaml"], "none.yaml cannot be read"),
    (["--token", "a", "--token-file", "b"], "both given"),
    (["--token-file", "b"], "--token-file b cannot be read"),
    (["--host", "0.0.0.0"], "give a token of at least 8 characters"),
    (["--device", "vulkan:99"], "no device is named 'vulkan:99'"),
    (["--device", "cpu", "--device", "cpu"], "given twice"),
    (["--device", "denoiser=cpu,unet=cpu"], "device is given for 'unet'; known parts: text,"),
    (["--device", "text=vulkan:99"], "no device is named 'vulkan:99'"),
    (["--threads", "0"], "threads"), (["--memory", "6XB"], "memory")])
def test_what_cannot_be_served_is_refused_at_once(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(root, ["serve", "--port", "0", *arguments])
    assert done.exit_code == 2 and said in done.stderr
    assert not [*tmp_path.iterdir()]


def test_addresses_that_are_polled_are_looked_for_first(tmp_path: Path, models: Path) -> None:
    site = opened(tmp_path, models)
    routes = [getattr(each, "path", "") for each in application(site).routes]
    assert {*routes[:len(POLLED)]} <= {*POLLED} <= {*routes}
    often = len([path for path in routes if path in (*POLLED, *FOR_EACH_PICTURE)])
    assert {*routes[:often]} == {*POLLED, *FOR_EACH_PICTURE}
    site.stop()


def test_answers_are_sent_without_delay() -> None:
    """An answer is sent in two parts; TCP would hold the second one back for 40 ms."""
    with listening("127.0.0.1", 0, None) as bound:
        assert bound.proto == socket.IPPROTO_TCP, "by which asyncio knows what to switch off"


def test_a_port_of_windows_is_taken_by_one_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """There SO_REUSEADDR lets a second server take the port of the first one."""
    said: list[int] = []

    class Socket(socket.socket):
        def setsockopt(self, level: int, name: int, value: int) -> None:  # type: ignore[override]
            said.append(name)

    monkeypatch.setattr(socket, "socket", Socket)
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", ~socket.SO_REUSEADDR, raising=False)
    listening("127.0.0.1", 0, None).close()
    assert said == [socket.SO_EXCLUSIVEADDRUSE]  # type: ignore[attr-defined]
