"""What a picture would take: the plan by which it is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_adapters import write_adapter
from tiny_model import TINY, tiny_weights, write_model

from smalti import Pipeline, machine
from smalti.diffusion import decoding, forecast, residents
from smalti.diffusion.options import PictureOptions
from smalti.errors import InputError, UnknownDeviceError
from smalti.machine.uncertainty import CALIBRATED, GUESSED_CPU, LIBRARY_GPU, uncertainty
from smalti.models.unet import unet_graph
from smalti.runtime.choice import foreseen
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu import streaming

PROMPT = "a red apple"
PLENTY = 10**9


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forecast")
    return write_model(folder / "tiny.safetensors", tiny_weights())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what parts are known to take counts, and every weight is large."""
    monkeypatch.setattr(residents, "resident_bytes", lambda: None)
    for each in (residents, forecast):
        monkeypatch.setattr(each, "BASE_BYTES", 0)
    monkeypatch.setattr(residents, "STAGED", 0)
    monkeypatch.setattr(streaming, "LARGE_BYTES", 1)
    monkeypatch.setattr(decoding, "SIDES", (6, 4))


@pytest.mark.parametrize("what, keep", [
    ("all resident", True), pytest.param("text evicted", True, marks=pytest.mark.sweep),
    ("UNet streamed", False), ("tiles", False)])
def test_what_is_foretold_is_what_is_done(path: Path, measured: None, what: str, keep: bool,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipeline.load(path, device="cpu", threads=1, keep=keep)
    pipe.residents.budget_bytes = PLENTY
    needs = {part.part: part.memory for part in pipe.forecast(PROMPT).parts}
    assert [*needs] == ["text", "unet", "vae"] and not any(
        each.streamed_bytes for each in needs.values())
    text, unet, vae = (each.weights_bytes + each.working_bytes for each in needs.values())
    pipe.residents.budget_bytes = {
        "text evicted": max(text, unet, vae) + 1,
        "UNet streamed": max(text, unet - needs["unet"].weights_bytes // 4)}.get(what, PLENTY)
    if what == "tiles":
        monkeypatch.setattr(decoding, "working_bytes", lambda config, width, height: (
            0 if width * height <= 12 * 12 else 2 * PLENTY))
    foretold = pipe.forecast(PROMPT)
    job = pipe.job(PictureOptions(PROMPT, seed=3))
    result = list(job.steps())[-1].result
    assert foretold.runs
    assert {(part.part, part.shape): part.memory for part in foretold.parts} == job.models.placed
    assert {(part.part, part.shape): part.runs for part in foretold.parts} == {
        key: runs.count for key, runs in job.models.runs.items()}
    assert set(foretold.warnings) == {text for text in result.warnings if "memory was" in text}
    assert [part.part for part in foretold.parts if part.memory.streamed_bytes] == (
        ["unet"] if what == "UNet streamed" else [])
    if what == "tiles":
        assert foretold.tile == 12 and "\ndecoding    in tiles of 12 pixels" in str(foretold)
    assert foretold.peak_bytes <= pipe.residents.budget_bytes


@pytest.mark.parametrize("options", [
    {"batch_size": 2}, {"token_downsampling": 2}, {"guidance_time": (0, 0.5), "batch_size": 2},
    {"guidance_time": (0.3, 0.8), "steps": 5, "sampler": "heun"},
    {"guidance_time": (0, 0.5), "sampler": "euler_cfg++"}, {"guidance_time": (0.6, 0.7)}])
def test_what_a_picture_with_options_takes_is_foretold(path: Path, options: dict) -> None:
    pipe = Pipeline.load(path, device="cpu", threads=1, keep=False)
    asked = {"seed": 3, "steps": 2, **options}
    job = pipe.job(PictureOptions(PROMPT, **asked))
    assert [step.index for step in job.steps()] == list(range(asked["steps"]))
    foretold = pipe.forecast(PROMPT, **asked).parts
    assert {(part.part, part.shape) for part in foretold} == job.models.placed.keys()
    assert {(part.part, part.shape): part.runs for part in foretold} == {
        key: runs.count for key, runs in job.models.runs.items()}


def test_an_adapter_of_few_steps_is_foretold_with_them(tmp_path: Path, path: Path) -> None:
    pipe = Pipeline.load(path, device="cpu", threads=1)
    pipe.load_lora(write_adapter(tmp_path / "sd15_turbo_lora.safetensors", TINY))
    found, job = pipe.forecast(PROMPT), pipe.job(PictureOptions(PROMPT))
    assert found.steps == job.asked.steps == 4 != pipe.config.default_steps
    assert [each.shape[0] for each in found.parts if each.part == "unet"] == [1]  # no guidance


@pytest.mark.parametrize("options, what", [
    ({"hires": 2}, "hires would take is not foretold; leave it out"),
    ({"cache": 0.1, "hires": 2}, "hires and cache .* leave them out")])
def test_options_whose_part_is_not_known_are_refused(path: Path, options: dict,
                                                     what: str) -> None:
    with pytest.raises(InputError, match=what):
        Pipeline.load(path, device="cpu", threads=1).forecast(PROMPT, **options)


def test_too_little_memory_is_foretold_as_it_is_refused(path: Path, measured: None) -> None:
    pipe = Pipeline.load(path, device="cpu", threads=1)
    pipe.residents.budget_bytes = 50_000
    found = pipe.forecast(PROMPT)
    assert not found.runs and "\nruns        no: " in f"\n{found}"
    with pytest.raises(InputError) as refused:
        pipe(PROMPT)
    assert str(refused.value) == found.refusal


def test_on_a_gpu_weights_that_do_not_fit_come_from_main_memory(path: Path) -> None:
    device = foreseen("rtx_3060")
    plenty = Pipeline.load(path, device=device, memory="1GB").forecast(PROMPT)
    assert plenty.runs and plenty.uncertainty == LIBRARY_GPU
    assert plenty.peak_bytes < plenty.main_bytes  # the process itself
    assert plenty.step_seconds is not None and plenty.seconds > 3 * plenty.step_seconds
    pipe = Pipeline.load(path, device=device, memory="1GB")
    unet = next(each.memory for each in plenty.parts if each.part == "unet")
    pipe.residents.budget_bytes = unet.working_bytes + unet.staged_bytes + unet.weights_bytes // 2
    short = pipe.forecast(PROMPT)
    streamed = sum(each.memory.streamed_bytes for each in short.parts if each.part == "unet")
    assert streamed == unet.weights_bytes - unet.weights_bytes // 2
    assert "the rest streamed" in str(short) and short.main_bytes > plenty.main_bytes
    assert short.step_seconds >= streamed / machine.device("rtx_3060").link
    pipe.residents.outside_bytes = streamed - 1
    assert "main memory may take 0.0 GB; give more memory" in pipe.forecast(PROMPT).refusal


def test_nothing_runs_on_a_device_of_the_library(path: Path) -> None:
    pipe = Pipeline.load(path, device=foreseen("raspberry_pi_5"), memory="2GB")
    assert pipe.forecast(PROMPT).uncertainty == GUESSED_CPU
    with pytest.raises(InputError, match="Raspberry Pi 5 is a device of the library, and nothing"):
        pipe(PROMPT)


@pytest.mark.parametrize("device, memory, why", [
    ("m1", {}, "how much memory Apple M1 has is not known"),
    ("raspberry_pi_5", {"gpu_memory": "2GB"}, "computes in main memory; give memory"),
    ("rtx_3060", {"gpu_memory": "much"}, "memory is 'much'"),
    ("rtx_3060", {"memory": "1"}, "memory is '1'")])
def test_memory_that_cannot_be_is_refused(path: Path, device: str, memory: dict[str, str],
                                          why: str) -> None:
    with pytest.raises(InputError, match=why):
        Pipeline.load(path, device=foreseen(device), **memory)


def test_unknown_devices_are_refused_with_near_ones() -> None:
    with pytest.raises(UnknownDeviceError, match="near names: rtx_3060"):
        foreseen("rtx_3061")
    with pytest.raises(InputError, match="no device is named 'vulkan:99'; known: auto, cpu"):
        foreseen("vulkan:99")


def test_a_forecast_is_json(path: Path) -> None:
    found = Pipeline.load(path, device="cpu", memory="2GB", threads=1).forecast(PROMPT)
    document = json.loads(json.dumps(found.document()))
    assert document["runs"] is True and document["budget_bytes"] == 2 * 10**9
    assert [part["part"] for part in document["parts"]] == ["text", "unet", "vae"]


def test_a_program_is_weighed_without_being_compiled() -> None:
    graph = unet_graph(TINY.denoiser, 1, 16, 16)
    weighed = compile_graph(graph, device="library:core_i5_12400", precision="f32")
    assert weighed.weights_bytes == sum(v.type.size * 4 for v in graph.parameters.values())
    assert weighed.expected_seconds() > 0 and 0 < weighed.arena_bytes < weighed.weights_bytes
    halves = compile_graph(graph, device="library:rtx_3060", precision="auto")
    assert (halves.precision, halves.weights_bytes) == ("f16", weighed.weights_bytes // 2)
    assert 0 < halves.arena_bytes <= weighed.arena_bytes


def test_a_cpu_that_was_measured_is_known_better() -> None:
    from dataclasses import replace

    guessed = machine.device("epyc_9654")
    assert uncertainty(guessed)[0] == GUESSED_CPU
    assert uncertainty(replace(guessed, origin={"clock": "measured"}))[0] == CALIBRATED
