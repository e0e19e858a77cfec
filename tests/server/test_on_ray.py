"""The server on Ray Serve: what it is asked for, and, where Ray Serve is here, all of it on
loopback. `pip install 'smalti[serve]'`; without it there is one line."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from clusters import need_ray
from served import SECONDS, Client

from smalti.errors import InputError
from smalti.server import on_ray
from smalti.server.on_ray import Front, check_token, checked, folders_of


def test_options_have_types_and_names() -> None:
    found = checked({"models": "/a:/b", "replicas_max": "4", "gpus": 1})
    assert found["replicas_max"] == 4 and found["gpus"] == 1.0 and found["replicas_min"] == 0
    assert folders_of(found) == [Path("/a"), Path("/b")]


@pytest.mark.parametrize(("given", "said"), [
    ({"replica": 3}, "replica"), ({"cores": "many"}, "cores is 'many'; expected a float"),
    ({"replicas_min": 2}, "replicas_min is 2, and replicas_max 1"),
    ({"replicas_min": -1}, "expected 0 <= replicas_min"),
    ({"port": 70000}, "port is 70000; expected 1 to 65535")])
def test_what_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        checked(given)


def test_others_are_let_in_with_a_token_only() -> None:
    for token in (None, "short"):
        with pytest.raises(InputError, match="set SMALTI_TOKEN to a token of at least 8"):
            check_token("smalti.example", token)
    check_token("smalti.example", "12345678")
    check_token("127.0.0.1", None)


def test_a_front_on_a_node_without_the_token_does_not_begin(monkeypatch: pytest.MonkeyPatch,
                                                            tmp_path: Path) -> None:
    monkeypatch.delenv("SMALTI_TOKEN", raising=False)
    with pytest.raises(InputError, match="to a token of at least 8 characters, on all nodes"):
        Front(None, checked({"host": "smalti.example", "output": tmp_path / "pictures"}))
    assert not [*tmp_path.iterdir()]


def test_a_front_answers_at_a_port_of_its_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        replicas = SimpleNamespace(options=lambda stream: SimpleNamespace(make=None))
        asked = checked({"port": port, "output": tmp_path, "precision": "bf16", "threads": 0})
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1, port {port}"):
            Front(replicas, asked)
    front = Front(replicas, asked)
    assert front._site.loading == {"precision": "bf16", "threads": None, "memory": None}
    client, until = Client(port, front._site), time.monotonic() + SECONDS
    while True:
        try:
            assert client.get("/internal/ping").status == 200
            break
        except ConnectionRefusedError:
            assert time.monotonic() < until
    front.__del__()  # as Serve calls it
    while True:
        try:
            client.get("/internal/ping")
            assert time.monotonic() < until
        except (ConnectionError, http.client.HTTPException):
            break


@pytest.mark.parametrize(("device", "alike", "gpus", "own"), [
    ("auto", ("vulkan:0", "vulkan:2"), ["1"], "vulkan:2"),
    ("auto", ("vulkan:0", "vulkan:2"), ["3"], "vulkan:2"),
    ("auto", ("vulkan:0", "vulkan:2"), ["GPU-1a"], "vulkan:0"),  # of an UUID
    ("auto", ("vulkan:0", "vulkan:2"), [], "vulkan:0"), ("auto", ("auto",), ["7"], "auto"),
    ("vulkan:2", ("vulkan:2",), ["0"], "vulkan:2"), ("auto", ("cpu",), [], "cpu")])
def test_replicas_on_one_computer_have_another_gpu_each(
        device: str, alike: tuple[str, ...], gpus: list[str], own: str,
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(on_ray, "every", lambda asked: alike if asked == device else ())
    assert on_ray.own_device(device, gpus) == own
    assert not capsys.readouterr().err


def test_a_gpu_that_is_not_used_is_told(monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(on_ray, "every", lambda asked: ("cpu",))
    assert on_ray.own_device("auto", ["0"]) == "cpu"
    assert "finds none that it uses there: pictures are made on the CPU" in capsys.readouterr().err


def test_only_the_thread_that_makes_pictures_yields() -> None:
    found: list[int] = []

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) \
            if sys.platform == "linux" else 0

    def work() -> None:
        on_ray.yield_to_others()
        found.append(niceness())

    before = niceness()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [max(before, on_ray.NICENESS) if sys.platform == "linux" else 0]
    assert niceness() == before


def test_the_module_has_no_other_names() -> None:
    assert not hasattr(on_ray, "Router")


@pytest.mark.sweep
def test_models_are_loaded_once_a_replica_and_the_front_answers(models: Path, tmp_path: Path
                                                                ) -> None:
    need_ray("ray.serve", "serve")
    run = subprocess.run(
        [sys.executable, "bench/serve_ray.py", "--models", str(models), "--clients", "4",
         "--jobs", "8", "--json"], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", *sys.path]),
             "SMALTI_CACHE": str(tmp_path)}, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout.strip().splitlines()[-1])
    assert found["states"] == {"done": 8} and found["pings"] > 0
    loads = Counter(map(tuple, found["loads"]))
    assert loads and set(loads.values()) == {1}


WAITS = """
import sys
import time
import ray
from ray import serve
import serve_ray
from serve_ray import ask
from smalti.server.on_ray import app

serve_ray.PORT = int(sys.argv[1])
ray.init("local", num_cpus=0, include_dashboard=False, log_to_driver=False,
         object_store_memory=serve_ray.OBJECT_STORE_BYTES)
serve.start(http_options={"host": serve_ray.HOST, "port": serve_ray.PORT})
serve.run(app({"output": sys.argv[2], "device": "cpu"}))
job = ask("POST", "/api/jobs", {"prompt": "a", "steps": 1})["id"]
until = time.monotonic() + float(sys.argv[3])
for state in ("running", "cancelled"):
    while (found := ask("GET", f"/api/jobs/{job}")["state"]) != state:
        assert time.monotonic() < until, found
        time.sleep(0.1)
    if state == "running":
        ask("DELETE", f"/api/jobs/{job}")
print("ENDED")
serve.shutdown()
"""


@pytest.mark.sweep
def test_a_job_that_waits_for_a_replica_can_be_cancelled(tmp_path: Path) -> None:
    """No node has a core for one."""
    need_ray("ray.serve", "serve")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = subprocess.run(
        [sys.executable, "-c", WAITS, str(port), str(tmp_path / "pictures"), str(SECONDS)],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "bench", *sys.path]),
             "SMALTI_CACHE": str(tmp_path)})
    assert "ENDED" in run.stdout, run.stderr[-2000:]
