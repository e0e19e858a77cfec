"""What is said before anything is fetched, and models that are had by name."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hub_server import COMMIT, HubServer, sha256
from safetensors.numpy import save
from tiny_model import METADATA, tiny_weights

import smalti
from smalti import fetch
from smalti.claim import claimed
from smalti.errors import FetchError
from smalti.fetch import ModelStore, download

MODEL = save(tiny_weights(), METADATA)


def silent(text: str) -> None:
    """Nobody listens."""


def test_family_precision_fit_and_licence_are_said_before(hub: HubServer) -> None:
    hub.repositories["org/tiny"] = {"tiny.safetensors": MODEL}
    hub.info = {"gated": "auto"}
    told = str(fetch.plan("hf:org/tiny", 10**6, ModelStore()))
    assert told == (
        "hf:org/tiny: 1 file, 2.2 MB; a Stable Diffusion 1.x checkpoint; F16; is streamed: more "
        "than the 1.0 MB of memory; it is the smallest, though larger than 1.0 MB of memory; "
        f"licence: openrail++; to be accepted at {hub.url}/org/tiny")
    assert len(hub.of("cdn")) == 1 and hub.of("cdn")[0][2]["Range"] == "bytes=0-262143"


def test_what_smalti_does_not_read_is_refused_before(hub: HubServer) -> None:
    hub.repositories["org/films"] = {"a.safetensors": save(
        {"head.modulation": np.zeros((64, 64), np.float32),
         "patch_embedding.weight": np.zeros((64, 64), np.float32)})}
    hub.repositories["org/other"] = {"b.safetensors": save({"x": np.zeros(9000, np.float32)})}
    with pytest.raises(FetchError, match=r"org/films is a Wan checkpoint, .*; nothing of it is"):
        fetch.kept("hf:org/films", None, silent)
    with pytest.raises(FetchError, match="org/other is of no known kind; nothing of it is fetched"):
        fetch.kept("hf:org/other", None, silent)


def test_the_hub_s_cache_is_laid_out_as_its_client_does(hub: HubServer, tmp_path: Path) -> None:
    import huggingface_hub

    hub.repositories["org/tiny"] = {"a/tiny.safetensors": MODEL}
    path = Path(fetch.kept("hf:org/tiny", None, silent).path)
    place = tmp_path / "hub/models--org--tiny"
    assert path == place / "snapshots" / COMMIT / "a/tiny.safetensors"
    assert path.resolve() == place / "blobs" / sha256(MODEL)
    assert (place / "refs/main").read_text() == COMMIT
    assert huggingface_hub.try_to_load_from_cache(
        "org/tiny", "a/tiny.safetensors", cache_dir=tmp_path / "hub") == str(path)


def test_without_a_network_what_is_in_the_hub_s_cache_is_used(
        hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    hub.repositories["org/tiny"] = {"tiny.safetensors": MODEL}
    huggingface_hub.hf_hub_download("org/tiny", "tiny.safetensors", endpoint=hub.url,
                                    cache_dir=tmp_path / "hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.asked.clear()
    assert Path(fetch.kept("hf:org/tiny", None, silent).path).read_bytes() == MODEL
    assert not hub.asked
    with pytest.raises(FetchError, match="org/none is not here, and HF_HUB_OFFLINE is set"):
        fetch.kept("hf:org/none", None, silent)
    with pytest.raises(FetchError, match="civitai:1 is not here, and HF_HUB_OFFLINE is set"):
        fetch.kept("civitai:1", None, silent)


def test_a_pipeline_is_loaded_by_name(hub: HubServer) -> None:
    hub.repositories["org/tiny"] = {"tiny.safetensors": MODEL}
    lines: list[str] = []
    pipe = smalti.Pipeline.load("hf:org/tiny", device="cpu", progress=lines.append)
    assert pipe.name == "tiny" and pipe.config.family == "sd1"
    assert [line for line in lines if line.endswith("\n")] == [
        line for line in lines if line.startswith("fetching hf:org/tiny: 1 file, 2.2 MB; a Stable")]
    asked = len(hub.asked)
    smalti.Pipeline.load("hf:org/tiny", device="cpu")
    assert len(hub.asked) == asked


def test_networks_beside_a_model_are_loaded_by_name(hub: HubServer) -> None:
    with pytest.raises(FetchError, match="there is no repository"):
        smalti.Upscaler.load("hf:org/esrgan", device="cpu")
    with pytest.raises(FetchError, match="there is no repository"):
        smalti.Preview.load("hf:org/taesd", device="cpu")
    with pytest.raises(FetchError, match="there is no repository"):
        smalti.Control.load("hf:org/canny", np.zeros((3, 8, 8), np.float32))


def test_without_the_hub_s_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FetchError, match=r"not installed: pip install smalti\[hub\]"):
        fetch.kept("hf:org/tiny", None, silent)


def test_a_file_of_the_same_name_is_what_is_meant(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sdxl").write_bytes(MODEL)
    assert smalti.Pipeline.load("sdxl", device="cpu").config.family == "sd1"


def test_one_process_fetches_and_others_wait(hub: HubServer, tmp_path: Path) -> None:
    hub.repositories["org/tiny"] = {"tiny.safetensors": MODEL}
    planned = fetch.plan("hf:org/tiny", None, ModelStore())
    told: list[str] = []
    claims = tmp_path / "models/claims"
    fetching = threading.Thread(target=planned.fetch, args=(told.append,))
    planned.fetch(silent)
    [claim] = claims.iterdir()
    ModelStore().remove(ModelStore().found("hf:org/tiny"))
    with claimed(claim, lambda: None):
        fetching.start()
        while not any("another process" in each for each in told):
            pass
    fetching.join()
    assert Path(ModelStore().found("hf:org/tiny").path).read_bytes() == MODEL


def test_models_are_removed_but_for_what_others_share(hub: HubServer) -> None:
    hub.repositories["org/tiny"] = {"tiny.safetensors": MODEL}
    first = fetch.kept("hf:org/tiny", None, silent)
    second = fetch.kept("hf:org/tiny:tiny.safetensors", None, silent)
    store = ModelStore()
    assert store.remove(first) == 0 and Path(second.path).exists()
    assert store.remove(second) == len(MODEL) and not Path(second.path).exists()
    assert [*store.all()] == []


def test_a_damaged_record_is_none(tmp_path: Path, hub: HubServer) -> None:
    hub.repositories["org/tiny"] = {"tiny.safetensors": MODEL}
    fetch.kept("hf:org/tiny", None, silent)
    [record] = (tmp_path / "models/fetched").iterdir()
    for text in ("", "[]", "{}", '{"files": 3}', '{"name": 1, "path": 2, "address": 3, "files": []}'
                 ):
        record.write_text(text)
        assert [*ModelStore().all()] == [] and ModelStore().found("hf:org/tiny") is None


def test_sizes_are_told_in_a_unit_that_fits() -> None:
    assert [download.shown_bytes(size) for size in (0, 999_999, 10**9)] == [
        "1 kB", "1000 kB", "1.00 GB"]
