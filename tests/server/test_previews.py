"""Previews: for those who look, at hardly any cost, and of no job but their own."""

from __future__ import annotations

import base64
import io
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image
from served import SECONDS, Client

from smalti.benchmark.weights import seeded
from smalti.diffusion.result import Step
from smalti.errors import NumericsError
from smalti.models import TaesdConfig, taesd_decoder_graph
from smalti.models.config import FLUX_VAE, SD_VAE, SDXL_VAE, VaeConfig
from smalti.server import previews as previews_module
from smalti.server.models import ModelFile
from smalti.server.previews import Previews, TinyDecoder, TinyDecoders, tiny_file

OWN = VaeConfig(8, (8, 8), 1, z_channels=4)
"""An autoencoder whose latents nobody has published anything about."""


def step(index: int, colour: float = 0.0) -> Step:
    latents = np.full((1, 4, 2, 3), colour, np.float32)
    return Step(index, 9, 1.0, 0.1, latents, latents)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews_module, "APART_SECONDS", 0.0)


def test_nothing_is_kept_while_nobody_looks() -> None:
    previews = Previews(lambda: False)
    how = previews.of(SD_VAE, Path("a"), None)
    assert previews.keep("a", how, step(0)) is None and previews.shown("a") is None
    previews.look()
    assert previews.keep("a", how, step(1)) == 2


def test_a_last_preview_stays_for_who_comes_for_it_a_moment_later() -> None:
    previews = Previews(lambda: True)
    for number in range(previews_module.ENDED_KEPT + 1):
        id = str(number)
        previews.keep(id, previews.of(SD_VAE, Path("a"), None), step(0))
        previews.end(id)
    assert previews.shown("0") is None and previews.shown("1") is not None


def test_a_preview_does_not_change_with_the_latents_that_it_was_made_of() -> None:
    previews = Previews(lambda: True)
    made = step(4, 0.5)
    assert previews.keep("a", previews.of(SD_VAE, Path("a"), None), made) == 5
    shown = previews.shown("a")
    assert shown is not None and shown.number == 5
    before = shown.paint().tobytes()
    made.denoised[:] = -1
    assert shown.paint().tobytes() == before
    with Image.open(io.BytesIO(shown.jpeg)) as picture:
        assert (picture.format, picture.size) == ("JPEG", (3, 2))


def test_previews_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    previews = Previews(lambda: True)
    how = previews.of(SD_VAE, Path("a"), None)
    assert previews.keep("a", how, step(0)) == 1
    monkeypatch.setattr(previews_module, "APART_SECONDS", 60.0)
    assert previews.keep("a", how, step(1)) is None


class Clock:
    """Seconds that pass only where `Tiny` decodes."""

    now = 0.0

    @classmethod
    def perf_counter(cls) -> float:
        return cls.now


class Tiny:
    """What decodes slowly, or not at all."""

    def __init__(self, seconds: float = 0.01, error: Exception | None = None) -> None:
        self.seconds, self.error, self.net = seconds, error, type("Net", (), {"path": "t"})

    def __call__(self, latents: np.ndarray) -> list[Image.Image]:
        Clock.now += self.seconds
        if self.error is not None:
            raise self.error
        return [Image.new("RGB", (24, 16), "red")]


def decoder(tiny: Any) -> TinyDecoder:
    return TinyDecoder(tiny)


def test_a_tiny_autoencoder_takes_a_hundredth_of_the_time(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.server.previews.time", Clock)
    tiny, latent = decoder(Tiny()), np.zeros((4, 2, 3), np.float32)
    assert tiny.decoded(latent, 99) is None, "compiling is taken to need a second"
    assert tiny.decoded(latent, 99) is not None
    times = [tiny.decoded(latent, 0.1) for _ in range(100)]
    assert len([each for each in times if each is not None]) <= 12, "0.1 s of 10 s, and the rest"


def test_a_tiny_autoencoder_takes_the_place_of_the_colours_and_errors_give_it_back() -> None:
    previews, tiny = Previews(lambda: True), decoder(Tiny())
    how = previews.of(SD_VAE, Path("a"), tiny)
    assert previews.keep("a", how, step(0)) == 1
    shown = previews.shown("a")
    assert shown is not None and shown.paint().size == (3, 2)
    tiny.credit, tiny.expected = 1.0, 0.01
    assert previews.keep("a", how, step(1)) == 2
    shown = previews.shown("a")
    assert shown is not None and shown.paint().size == (24, 16)
    tiny.credit, tiny.expected = 0.0, 1000.0
    assert previews.keep("a", how, step(2)) is None, "it does not change back and forth"
    broken = decoder(Tiny(error=NumericsError("NaN")))
    broken.credit, broken.expected = 1.0, 0.01
    how = previews.of(SD_VAE, Path("a"), broken)
    assert previews.keep("b", how, step(0)) == 1 and not broken.usable


def test_tiny_autoencoders_are_known_by_name() -> None:
    def files(*names: str) -> list[ModelFile]:
        return [ModelFile(each, Path(each), 1, "taesd", "", "", True, "", {}) for each in names]

    found = files("taesdxl_decoder.safetensors", "taef1.safetensors", "taesd_decoder.pth")
    assert tiny_file(SD_VAE, found) == Path("taesd_decoder.pth")
    assert tiny_file(SDXL_VAE, found) == Path("taesdxl_decoder.safetensors")
    assert tiny_file(FLUX_VAE, found) == Path("taef1.safetensors")
    assert tiny_file(OWN, found) is None and tiny_file(SD_VAE, files("other.pth")) is None


def test_a_file_of_taesd_is_opened_once_and_a_damaged_one_is_told(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = TaesdConfig(4, 8, (1, 1), (1, 1))
    graph = taesd_decoder_graph(config, 1, 1, 1)
    path = tmp_path / "taesd_decoder.safetensors"
    safetensors.numpy.save_file({name.removeprefix("taesd.decoder."): seeded(name, value.shape)
                                 for name, value in graph.parameters.items()}, path)
    file = ModelFile("t", path, 1, "taesd", "", "", True, "", {})
    decoders = TinyDecoders("cpu", 1)
    found = decoders.of(SD_VAE, [file])
    assert found is not None and found is decoders.of(SD_VAE, [file])
    found.credit = 1.0
    picture = found.decoded(np.zeros((4, 2, 3), np.float32), 99)
    assert picture is not None and picture.size == (6, 4)
    assert decoders.of(SDXL_VAE, [file]) is None
    path.write_bytes(b"nothing")
    assert TinyDecoders("cpu", 1).of(SD_VAE, [file]) is None
    assert "is not used for previews" in capsys.readouterr().err


def test_the_colours_of_an_unknown_autoencoder_are_seen_in_its_first_picture(client: Client
                                                                              ) -> None:
    previews = client.site.previews
    previews._fitted.clear()
    previews.look()
    job = client.post("/api/jobs", {"prompt": "a", "model": "tiny", "steps": 2}).json["id"]
    assert client.site.queue.wait(job, SECONDS).state == "done"
    (projection,) = previews._fitted.values()
    assert projection.factors.shape == (4, 3)


def test_a_job_that_runs_is_shown(client: Client) -> None:
    path = "emoji-256.safetensors"
    job = client.post("/api/jobs", {"prompt": "a", "model": path, "steps": 1000}).json["id"]
    address, until = f"/api/jobs/{job}/preview", time.monotonic() + SECONDS
    while (answer := client.get(f"{address}?n=1")).status == 404 and time.monotonic() < until:
        time.sleep(0.01)
    assert answer.headers["content-type"] == "image/jpeg"
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert picture.size == (16, 16)
    assert client.get(f"/api/jobs/{job}").json["progress"]["preview"] >= 1
    for _ in range(2):  # by a thread, which paints it, and at once
        told = client.get("/sdapi/v1/progress").json
        with Image.open(io.BytesIO(base64.b64decode(told["current_image"]))) as picture:
            assert picture.size == (16, 16)
    quiet = client.get("/sdapi/v1/progress?skip_current_image=true").json
    assert quiet["current_image"] is None and quiet["state"]["job"] == job
    client.ask("DELETE", f"/api/jobs/{job}")
    client.site.queue.wait(job, SECONDS)
    assert client.get(address).status == 200, "for those who come a moment later"
    client.site.previews._ended.clear()
    assert "no preview of this job" in client.get(address).json["message"]
    assert "there is no job" in client.get("/api/jobs/none/preview").json["message"]


@pytest.mark.parametrize(("prefix", "before"), [("", "data:image/jpeg;base64,"), ("/v1", "")])
def test_clients_of_the_web_ui_see_each_preview_once(client: Client, prefix: str, before: str
                                                     ) -> None:
    fields = {"prompt": "a", "steps": 150, "force_task_id": f"task{prefix}",
              "override_settings": {"sd_model_checkpoint": "emoji-256.safetensors"}}
    thread = threading.Thread(target=client.post, args=(f"{prefix}/sdapi/v1/txt2img", fields))
    thread.start()
    asked: dict[str, Any] = {"id_task": f"task{prefix}", "id_live_preview": -1}
    until = time.monotonic() + SECONDS
    while not (told := client.post(f"{prefix}/internal/progress", asked).json).get(
            "live_preview") and time.monotonic() < until:
        time.sleep(0.005)
    text = told["live_preview"].removeprefix(before)
    with Image.open(io.BytesIO(base64.b64decode(text, validate=True))) as picture:
        assert picture.size == (16, 16)
    shown = client.post(f"{prefix}/internal/progress",
                        {**asked, "id_live_preview": told["id_live_preview"]}).json
    assert shown["live_preview"] is None or shown["id_live_preview"] > told["id_live_preview"]
    client.post("/sdapi/v1/interrupt")
    thread.join(SECONDS)
