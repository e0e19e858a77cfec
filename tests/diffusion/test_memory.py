"""Pictures in less memory than a model takes: the same bytes, and what was done is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_adapters import write_adapter
from tiny_model import TINY, tiny_weights, write_model

from smalti import Pipeline, checkpoint
from smalti.checkpoint.adapters import AdapterFile, WeightedAdapter
from smalti.diffusion import decoding, residents, submodels
from smalti.diffusion.decoding import decoded, in_tiles
from smalti.diffusion.residents import Resident, Residents
from smalti.diffusion.tiles import tiles
from smalti.errors import InputError
from smalti.runtime.cpu import streaming

PROMPT = "a red apple"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    return write_model(folder / "tiny.safetensors", tiny_weights())


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what parts are known to take counts, and every weight is large."""
    monkeypatch.setattr(residents, "resident_bytes", lambda: None)
    monkeypatch.setattr(residents, "BASE_BYTES", 0)
    monkeypatch.setattr(residents, "STAGED", 0)
    monkeypatch.setattr(streaming, "LARGE_BYTES", 1)


def picture(pipe: Pipeline, **options: object) -> bytes:
    return pipe(PROMPT, seed=3, **options).images[0].tobytes()


def needs(pipe: Pipeline) -> dict[str, int]:
    """Bytes that each part takes."""
    return {part: pipe._residents.get((of, part)).bytes for of, part in pipe._residents}


def test_parts_that_are_not_in_use_are_let_go(path: Path, measured: None) -> None:
    pipe = Pipeline.load(path, threads=1)
    expected, taken = picture(pipe), needs(pipe)
    assert set(taken) == {"text", "unet", "vae"}
    tight = Pipeline.load(path, threads=1)
    tight._residents.budget_bytes = max(taken.values()) + min(taken.values()) // 2
    assert picture(tight) == expected
    assert set(needs(tight)) < set(taken)


def test_weights_of_a_denoiser_come_and_go(path: Path, measured: None) -> None:
    opened, shape = checkpoint.load(path), (2, 8, 8, 77)
    random = np.random.default_rng(0)
    inputs = {"latent": random.standard_normal((2, 4, 8, 8)).astype(np.float32),
              "timesteps": np.full(2, 500, np.float32),
              "context": random.standard_normal((2, 77, 16)).astype(np.float32)}
    plenty = submodels.Submodels(opened, threads=1)
    expected = plenty.run("unet", shape, **inputs)
    unet = plenty.bound("unet", shape)
    short = submodels.Submodels(opened, threads=1, residents=Residents(
        unet.arena_bytes + int(0.8 * unet.weights_bytes)))
    for _ in range(2):
        found = short.run("unet", shape, **inputs)
        assert all(found[name].tobytes() == array.tobytes() for name, array in expected.items())
    assert short.bound("unet", shape).streamed
    (said,) = short.said
    assert said.startswith("memory was short for the UNet: 0.0 of 0.0 GB")
    assert said.endswith("the rest was read while it ran")


def test_adapters_change_weights_that_come_and_go(path: Path, measured: None,
                                                  tmp_path: Path) -> None:
    opened, shape = checkpoint.load(path), (2, 8, 8, 77)
    adapter = AdapterFile.open(write_adapter(tmp_path / "style.safetensors", TINY))
    random = np.random.default_rng(0)
    inputs = {"latent": random.standard_normal((2, 4, 8, 8)).astype(np.float32),
              "timesteps": np.full(2, 500, np.float32),
              "context": random.standard_normal((2, 77, 16)).astype(np.float32)}
    plenty = submodels.Submodels(opened, threads=1)
    unet = plenty.bound("unet", shape)
    short = submodels.Submodels(opened, threads=1, residents=Residents(
        unet.arena_bytes + int(0.8 * unet.weights_bytes)))
    short.bound("unet", shape)
    results = []
    for uses in ([WeightedAdapter(adapter, 0.5)], [WeightedAdapter(adapter, 1.0)], []):
        plenty = plenty.using(plenty.adapted(uses))
        short = short.using(short.adapted(uses))
        results.append([next(iter(parts.run("unet", shape, **inputs).values())).tobytes()
                        for parts in (plenty, short)])
    assert all(first == second for first, second in results)
    assert len({first for first, _ in results}) == 3
    assert short.bound("unet", shape).streamed


def test_a_picture_is_decoded_in_tiles_and_says_so(path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipeline.load(path, threads=1)
    assert picture(pipe, width=32, height=64)
    monkeypatch.setattr(decoding, "SIDES", (12,))
    monkeypatch.setattr(Residents, "free_bytes", lambda self, held=0: 1 - held)
    monkeypatch.setattr(Residents, "_budget_for", lambda *given: None)
    result = pipe(PROMPT, seed=3, width=32, height=64)
    assert result.images[0].size == (32, 64)
    assert result.warnings[1:] == [
        "memory was short for the picture at once: it was decoded in 8 tiles of 24 pixels"]


@pytest.mark.sweep
def test_tiles_of_the_shipped_decoder_leave_no_seam() -> None:
    """The model that ships, at twice its size: tiles differ from the whole by what norms see of
    the picture, and not more at their borders than elsewhere."""
    pipe = Pipeline.load(threads=1)
    step = list(pipe.steps(PROMPT, width=512, height=512, steps=2, seed=5))[-1]
    whole = decoded(pipe._submodels, step.latents, side=64)
    tiled = decoded(pipe._submodels, step.latents, side=24)
    difference = np.abs(whole - tiled)[0].mean(0)
    assert whole.shape == tiled.shape == (1, 3, 512, 512)
    assert difference.mean() < 0.1 * np.abs(whole).mean()
    jumps = np.abs(np.diff(tiled - whole, axis=-1)).mean((0, 1, 2))
    own = np.abs(np.diff(whole, axis=-1)).mean((0, 1, 2))
    assert jumps.max() < 0.25 * own.max()
    # two tiles of 384 pixels share 256, and fade over the 48 in the middle of the picture
    faded = slice(256 - 24 - 1, 256 + 24)
    assert jumps[faded].max() < np.delete(jumps, faded).max()
    assert jumps[faded].max() < 12 * np.median(jumps)


def test_tiles_fade_pixel_by_pixel() -> None:
    """Weights grow by as much from each pixel of a picture to the next, not from each latent's."""
    for scale, overlap in ((1, 8), (4, 8), (8, 6)):
        (_, _, first), (_, end, second) = tiles(32, 24, overlap, scale=scale)
        assert len(first) == len(second) == 24 * scale and end == 32
        steps = np.diff(second)
        growing = steps[steps > 0]
        assert len(growing) == pytest.approx(scale * overlap / 2, abs=1)
        assert growing.max() == pytest.approx(2 / (scale * overlap), rel=1e-4)


def test_tiles_of_something_local_are_the_whole() -> None:
    random = np.random.default_rng(0)
    latent = random.standard_normal((1, 2, 41, 23)).astype(np.float32)

    def decode(part: np.ndarray) -> np.ndarray:
        return part.repeat(2, axis=2).repeat(2, axis=3)[:, :1]

    for side in (8, 16, 40, 64):
        np.testing.assert_allclose(in_tiles(decode, latent, side, 2), decode(latent), atol=1e-6)


@pytest.mark.parametrize("memory", ["many", "-1GB", "3", "1e9 parsecs", "", 0, True, 2**60])
def test_what_is_no_size_is_refused(path: Path, memory: object) -> None:
    with pytest.raises(InputError, match="memory is"):
        Pipeline.load(path, memory=memory)


def test_a_size_that_is_enough_changes_nothing(path: Path) -> None:
    assert picture(Pipeline.load(path, threads=1, memory="4 GB")) == picture(
        Pipeline.load(path, threads=1))


def test_programs_of_a_lost_device_are_made_anew() -> None:
    class Gone:
        lost, weights_bytes, arena_bytes, streamed = False, 5, 7, False

    residents = Residents()
    for name in ("one", "two"):
        residents.put(name, Resident(Gone(), ()))
    assert residents.get("one") is not None
    Gone.lost = True
    assert residents.get("one") is None and list(residents) == []
