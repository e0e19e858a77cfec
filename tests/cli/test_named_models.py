"""`smalti models`, and pictures of models that are given by name."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.test_commands import refused, run
from fetch.conftest import hub
from hub_server import Handler, HubServer, sha256
from PIL import Image
from safetensors.numpy import save
from tiny_model import METADATA, tiny_weights

from smalti.fetch.download import SPARE_BYTES
from smalti.server.models import ModelFolders

__all__ = ["hub"]  # a fixture
MODEL = save(tiny_weights(), METADATA)


@pytest.fixture
def named(hub: HubServer) -> Iterator[HubServer]:
    hub.repositories["org/tiny"] = {"tiny.safetensors": MODEL}
    yield hub


@pytest.mark.sweep  # compiles a model
def test_a_picture_of_a_model_by_name(named: HubServer, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    made = run("generate", "a cat", "-m", "hf:org/tiny", "--steps", "1", "-o", picture,
               "--device", "cpu", "--threads", "1")
    assert made.exit_code == 0, made.output
    assert "fetching hf:org/tiny: 1 file, 2.2 MB; a Stable Diffusion 1.x" in made.stderr
    assert Image.open(picture).size == (16, 16)


def test_a_model_is_fetched_listed_verified_and_removed(named: HubServer, tmp_path: Path) -> None:
    told = run("models", "get", "hf:org/tiny", "--dry-run", "--memory", "6GB")
    assert told.stdout == ("hf:org/tiny: 1 file, 2.2 MB; a Stable Diffusion 1.x checkpoint; F16; "
                           "fits in the 6.00 GB of memory; licence: openrail++\n")
    assert "nothing was fetched yet" in run("models", "list").stdout
    assert run("models", "get", "hf:org/tiny").exit_code == 0
    assert "1 models, 2.2 MB" in run("models", "list").stdout
    assert run("models", "verify").stdout == "hf:org/tiny: 1 files are right\n"
    assert "2.2 MB, all here" in run("models", "get", "hf:org/tiny").stdout
    listed = {each.name: each for each in ModelFolders([tmp_path / "hub"]).all()}
    assert [*listed] == ["emoji-256.safetensors", "hf:org/tiny"] and listed["hf:org/tiny"].usable
    assert "2.2 MB are free" in run("models", "remove", "hf:org/tiny").stdout
    refused(run("models", "remove", "hf:org/tiny"), "was not fetched; what was: none")


def test_room_is_looked_for_for_all_that_is_fetched(
        named: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    named.repositories["org/two"] = {"two.safetensors": MODEL}
    usage = shutil.disk_usage(".")._replace(free=SPARE_BYTES + 3 * len(MODEL) // 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    names = ("hf:org/tiny", "hf:org/two")
    told = run("models", "get", *names, "--dry-run")
    assert told.stdout.splitlines()[2] == "2 models, 4.5 MB, 4.5 MB to fetch", told.output
    told = run("models", "get", *names, names[0])  # which is fetched once
    assert told.exit_code == 2 and "hf:org/tiny and hf:org/two needs 4.5 MB" in told.stderr
    assert "nothing was fetched yet" in run("models", "list").stdout
    assert run("models", "get", names[0]).exit_code == 0  # there is room for one


def test_a_model_is_looked_at_by_name_and_not_fetched(named: HubServer) -> None:
    told = run("inspect", "hf:org/tiny")
    assert "file        hf:org/tiny\nformat      safetensors, 2.2 MB\n" in told.stdout, told.output
    told = run("inspect", "hf:org/tiny", "--device", "rtx_3060", "--memory", "16GB")
    assert "model       tiny\ndevice      GeForce RTX 3060 12 GB, discrete\nruns        yes\n" \
        in told.stdout, told.output
    assert "nothing was fetched yet" in run("models", "list").stdout
    refused(run("inspect", "hf:org/none", "--device", "rtx_3060"), "org/none")


def test_verify_names_what_was_changed(named: HubServer) -> None:
    path = run("models", "get", "hf:org/tiny").stdout.split()[-1]
    Path(path).resolve().write_bytes(b"x" * len(MODEL))
    result = run("models", "verify")
    assert result.exit_code == 2 and "has another sha256 than" in result.stdout
    assert "smalti models get hf:org/tiny" in result.stderr


@pytest.mark.parametrize(("arguments", "said"), [
    (("get", "no-such-name"), "is no name of a model"), (("get", "hf:x"), "hf:OWNER/NAME"),
    (("verify", "sdxl"), "was not fetched"), (("search", "--hub"), "needs words")])
def test_what_is_refused(hub: HubServer, arguments: tuple[str, ...], said: str) -> None:
    refused(run("models", *arguments), said)


def test_a_search_lists_the_catalogue_and_the_hub(named: HubServer) -> None:
    assert run("models", "search", "xl", "turbo").stdout.startswith("sdxl-turbo ")
    assert "nothing in the catalogue has 'zebra'" in run("models", "search", "zebra").stdout
    assert "hf:org/tiny                  7 downloads a month" in run(
        "models", "search", "--hub", "tiny").stdout


@pytest.mark.sweep  # starts processes, and slows the server
def test_a_download_that_is_killed_goes_on(named: HubServer, tmp_path: Path,
                                           environment: dict[str, str]) -> None:
    def slowly(handler: Handler) -> bool:
        """A tenth of the content, then nothing for long."""
        asked = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        handler.send_response(206 if asked else 200)
        handler.send_header("Content-Length", str(len(MODEL) - start))
        if asked:
            handler.send_header("Content-Range", f"bytes {start}-{len(MODEL) - 1}/{len(MODEL)}")
        handler.end_headers()
        handler.wfile.write(MODEL[start:start + len(MODEL) // 10])
        handler.wfile.flush()
        handler.rfile.read(1)  # until the client has gone
        handler.close_connection = True
        return True

    asked = [sys.executable, "-m", "smalti", "models", "get", "hf:org/tiny"]
    where = {**environment, "HF_ENDPOINT": named.url, "HF_HUB_CACHE": str(tmp_path / "hub"),
             "SMALTI_MODELS": str(tmp_path / "models"), "HF_TOKEN": "hf_secret"}
    part = tmp_path / "hub/models--org--tiny/blobs" / (sha256(MODEL) + ".incomplete")
    sizes = []
    for _ in range(2):
        named.faults["cdn"] = [lambda handler: False, slowly]
        process = subprocess.Popen(asked, env=where, stdout=subprocess.DEVNULL)
        before = sizes[-1] if sizes else 0
        while not part.exists() or part.stat().st_size <= before:
            assert process.poll() is None
            time.sleep(.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        sizes.append(part.stat().st_size)
    named.faults.clear()
    told = subprocess.run(asked, env=where, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "to fetch" in told and not part.exists()
    assert Path(told.split()[-1]).read_bytes() == MODEL
    assert named.of("cdn")[-1][2]["Range"] == f"bytes={sizes[-1]}-"
