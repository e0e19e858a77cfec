"""What makes pictures: errors are those of one job, a cancelled job stops, the next one runs."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from served import LONG, SECONDS, full_once, opened
from tiny_model import tiny_weights

from smalti.diffusion import made_picture
from smalti.diffusion.job import PictureJob
from smalti.errors import DeviceLostError, DeviceMemoryError, NumericsError, OutputError
from smalti.server import worker as worker_module
from smalti.server.archive import CANCELLED, DONE, FAILED, QUEUED, JobRecord
from smalti.server.models import ModelFile, ModelFolders
from smalti.server.site import ARCHIVE, Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Site]:
    found = opened(tmp_path_factory.mktemp("pictures"), models)
    found.start()
    yield found
    found.stop()


def made(site: Site, **request: Any) -> JobRecord:
    return site.queue.wait(site.queue.submit({
        "prompt": "a red apple", "model": "tiny", "steps": 2, **request}).id, SECONDS)


def test_pictures_lie_by_date_with_their_settings(site: Site) -> None:
    job = made(site, batch_size=2, seed=2**64 - 2)
    assert (job.state, job.message) == (DONE, None)
    found = site.archive.pictures(job=job.id)[::-1]
    assert [each.seed for each in found] == [2**64 - 2, 2**64 - 1]
    for each in found:
        path = site.gallery.file(each)
        assert path is not None and path.name.endswith(f"{job.id}-{each.path[-5]}.png")
        assert path.parent.parent == site.gallery.root.resolve()
        with Image.open(path) as picture:
            assert picture.info["parameters"] == each.text and f"Seed: {each.seed}" in each.text
    assert job.timings["denoise"] > 0


def test_adapters_are_those_of_one_job(site: Site) -> None:
    plain, named, given, again = (
        made(site), made(site, prompt="a red apple <lora:style:0.9>"),
        made(site, loras=[{"name": "style", "weight": 0.9}]), made(site))
    files = [site.archive.pictures(job=job.id)[0] for job in (plain, named, given, again)]
    pixels = [Image.open(site.gallery.root / each.path).tobytes() for each in files]
    assert pixels[0] == pixels[3] != pixels[1] == pixels[2]


def test_embeddings_of_another_family_do_no_harm(models: Path, tmp_path: Path) -> None:
    words = tmp_path / "embeddings"
    words.mkdir()
    save_file({"emb_params": np.ones((2, 4096), np.float32)}, words / "other.safetensors")
    site = Site(tmp_path / "pictures", [models, words], ["cpu"], threads=1)
    site.start()
    plain, named = made(site), made(site, prompt="a red apple, other")
    site.stop()
    assert (plain.state, plain.warnings) == (DONE, []) and named.state == DONE
    assert "'other' has vectors of width 4096" in named.warnings[0]


def test_embeddings_that_come_and_change_load_no_model_anew(models: Path, tmp_path: Path) -> None:
    words = tmp_path / "embeddings"
    words.mkdir()
    site = Site(tmp_path / "pictures", [models, words], ["cpu"], threads=1)
    site.start()
    width = next(value.shape[1] for name, value in tiny_weights().items()
                 if name.endswith("token_embedding.weight"))

    def pixels() -> bytes:
        site.folders().all()  # without waiting until what was seen is old
        job = made(site, prompt="zqpet")
        assert (job.state, job.warnings) == (DONE, [])
        (picture,) = site.archive.pictures(job=job.id)
        with Image.open(site.gallery.root / picture.path) as shown:
            return shown.tobytes()

    def write(vectors: int) -> None:
        save_file({"emb_params": np.ones((vectors, width), np.float32)},
                  words / "zqpet.safetensors")

    seen, models_of = [pixels()], site.workers[0]._pipelines
    (pipe,) = models_of.values()
    for change in (lambda: write(1), lambda: write(3), (words / "zqpet.safetensors").unlink):
        change()
        seen.append(pixels())
    site.stop()
    assert seen[0] == seen[3] and len(set(seen)) == 3
    assert [*models_of.values()] == [pipe]


@pytest.mark.parametrize(("raised", "name", "said"), [
    (NumericsError("NaN in conv_1"), "NumericsError", "NaN in conv_1"),
    (DeviceLostError("vulkan:0 was lost; open it anew"), "DeviceLostError", "was lost"),
    (DeviceMemoryError("1 GB asked, 2 MB free"), "DeviceMemoryError", "2 MB free"),
    (MemoryError("8 GB"), "DeviceMemoryError", "choose a smaller size"),
    (OSError(errno.EIO, "the file went"), "OSError", "the file went"),
])
def test_errors_are_those_of_the_job_and_the_next_one_runs(
        site: Site, monkeypatch: pytest.MonkeyPatch, raised: Exception, name: str,
        said: str) -> None:
    def fails(self: PictureJob, *given: Any) -> None:
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(PictureJob, "_walk", fails)
        job = made(site)
    assert (job.state, job.error) == (FAILED, name) and said in (job.message or "")
    assert made(site).state == DONE


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_ends_its_job_and_not_the_server(site: Site, monkeypatch: pytest.MonkeyPatch
                                                  ) -> None:
    def fails(self: PictureJob, *given: Any) -> None:
        raise AssertionError("no such thing")

    monkeypatch.setattr(threading, "excepthook", lambda given: None)
    with monkeypatch.context() as patch:
        patch.setattr(PictureJob, "_walk", fails)
        job = made(site)
    assert job.error == "Defect" and "AssertionError: no such thing" in (job.message or "")
    assert made(site).state == DONE


def test_a_disk_that_is_full_fails_the_job_and_leaves_no_file(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, before = made_picture.save_whole, [*site.gallery.root.rglob("*.png")]

    def refuses(picture: Image.Image, path: Path) -> None:
        if path.stem.endswith("-2"):
            raise OutputError(f"cannot write {path}: no space left on device")
        whole(picture, path)

    with monkeypatch.context() as patch:
        patch.setattr(made_picture, "save_whole", refuses)
        job = made(site, batch_size=2)
    assert job.state == FAILED and "no space left" in (job.message or "")
    assert [*site.gallery.root.rglob("*.png")] == before
    assert made(site).state == DONE


def test_a_folder_that_cannot_be_made_fails_the_job(site: Site) -> None:
    """A file stands where the folder of the day would."""
    before = {path: path.rename(path.with_name("aside")) for path in site.gallery.root.iterdir()
              if path.is_dir() and path.name[0] != "."}
    in_the_way = site.gallery.root / time.strftime("%Y-%m-%d")
    in_the_way.touch()
    try:
        job = made(site)
        assert job.error == "OutputError" and "cannot make the folder" in (job.message or "")
    finally:
        in_the_way.unlink()
        for path, aside in before.items():
            aside.rename(path)
    assert made(site).state == DONE


@pytest.mark.parametrize("kind", ["output", "archive"])
def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path, kind: str) -> None:
    if kind == "output":
        (tmp_path / "pictures").touch()
    else:
        (tmp_path / "pictures" / ARCHIVE).mkdir(parents=True)
    with pytest.raises(OutputError, match="cannot"):
        Site(tmp_path / "pictures")


def test_an_archive_that_cannot_be_written_is_tried_again(
        site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = full_once(monkeypatch)
    assert made(site).state == DONE and len(refused) == 1


def test_what_only_the_model_refuses_is_an_error_of_the_job(site: Site) -> None:
    job = made(site, width=17)
    assert job.error == "InputError" and "17" in (job.message or "")


def test_of_quick_steps_not_each_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "TOLD_SECONDS", 10 * SECONDS)
    seen = []

    def watch(id: str) -> None:
        progress = site.queue.progress(id) if id else None
        if progress is not None and progress.step:
            seen.append((progress.step, progress.steps, progress.seconds_left))

    with site.queue.watching(watch):
        assert made(site, steps=4).state == DONE
    assert [*dict.fromkeys(each[:2] for each in seen)] == [(1, 4), (4, 4)] and seen[-1][2] == 0


def test_a_cancelled_job_stops_within_a_step(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "TOLD_SECONDS", 0.0)
    seen, reached = [], threading.Event()

    def watch(id: str) -> None:
        progress = site.queue.progress(id) if id else None
        if progress is not None and progress.step:
            seen.append(progress)
            if progress.step == 2 and not reached.is_set():
                reached.set()
                site.queue.cancel(id)

    with site.queue.watching(watch):
        job = made(site, steps=400)
    assert reached.is_set() and job.state == CANCELLED
    assert [each.step for each in seen if each.step > 2] == [] and seen[0].steps == 400
    assert (seen[0].seconds_left or 0) > 0
    assert made(site).state == DONE


def test_models_share_the_memory_of_their_device(site: Site) -> None:
    """Weights of one model are evicted for those of another, not kept beside them for ever."""
    made(site)
    job = made(site, vae="emoji-256.safetensors")
    assert "no vae is named" in (job.message or "")
    (worker,) = site.workers
    first = next(reversed(worker._pipelines.values()))
    site.queue.wait(site.queue.submit({"prompt": "a", "steps": 1, "width": 64, "height": 64}).id,
                    SECONDS)
    second = next(reversed(worker._pipelines.values()))
    assert second is not first and second.residents is first.residents


def test_a_step_that_takes_longer_than_a_server_waits_is_made_again(
        tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, begun, end = opened(tmp_path, models), threading.Event(), threading.Event()

    def waits(self: PictureJob, *given: Any) -> Any:
        begun.set()
        assert end.wait(SECONDS)
        raise NumericsError("too late to be told")

    monkeypatch.setattr(PictureJob, "_walk", waits)
    monkeypatch.setattr("smalti.server.site.STOP_SECONDS", 0.01)
    site.start()
    id = site.queue.submit({"prompt": "a", "model": "tiny"}).id
    assert begun.wait(SECONDS)
    site.stop()
    end.set()
    assert site.workers[0].join(SECONDS)
    found = site.queue.job(id)
    assert (found.state, found.attempts, found.error) == (QUEUED, 0, None)
    site.archive.close()


def test_a_server_that_stops_gives_its_job_back(tmp_path: Path, models: Path) -> None:
    site, begun = opened(tmp_path, models), threading.Event()
    site.start()
    with site.queue.watching(lambda id: begun.set() if (
            progress := site.queue.progress(id)) and progress.step else None):
        id = site.queue.submit({"prompt": "a", "model": "tiny", **LONG}).id
        assert begun.wait(SECONDS)
        site.stop()
    again = opened(tmp_path, models)
    assert (again.queue.job(id).state, again.queue.job(id).attempts) == (QUEUED, 0)
    again.stop()


def test_folders_that_cannot_be_read_fail_jobs_and_not_the_worker(
        models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a worker lists them first; each one that ended there was followed by another.
    """
    def refuses(self: ModelFolders) -> list[ModelFile]:
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(ModelFolders, "all", refuses)
    site = opened(tmp_path, models)
    site.start()
    try:
        job = made(site)
        assert (job.state, job.error) == (FAILED, "OSError")
    finally:
        site.stop()
