"""`smalti models`, and pictures of models that are given by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.test_commands import refused, run
from fetch.conftest import hub
from hub_server import HubServer
from PIL import Image
from safetensors.numpy import save
from tiny_model import METADATA, tiny_weights

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
    assert [*listed] == ["emoji-128.safetensors", "hf:org/tiny"] and listed["hf:org/tiny"].usable
    assert "2.2 MB are free" in run("models", "remove", "hf:org/tiny").stdout
    refused(run("models", "remove", "hf:org/tiny"), "was not fetched; what was: none")


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
