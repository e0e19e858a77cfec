"""Previews by a tiny autoencoder, step by step and in the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner
from PIL import Image

from smalti import Pipeline, Preview
from smalti.benchmark.weights import seeded
from smalti.cli import generate
from smalti.cli.main import root
from smalti.diffusion.result import to_image
from smalti.errors import CheckpointError, InputError
from smalti.graph import Graph, evaluate
from smalti.models import TaesdConfig, taesd_decoder_graph, taesd_encoder_graph

CONFIG = TaesdConfig(z_channels=4, channels=8, decoder_blocks=(1, 1), encoder_blocks=(1, 1))


def weights_of(graph: Graph) -> dict[str, np.ndarray]:
    return {name: seeded(name, value.shape) for name, value in graph.parameters.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    weights = weights_of(taesd_decoder_graph(CONFIG, 1, 1, 1))
    path = tmp_path / "taesd.safetensors"
    safetensors.numpy.save_file({name.removeprefix("taesd.decoder."): array
                                 for name, array in weights.items()}, path)
    return path


def test_the_estimate_of_every_step_becomes_a_picture(model_path: Path, path: Path) -> None:
    pipe, preview = Pipeline.load(model_path, threads=1), Preview.load(path, threads=1)
    steps = list(pipe.steps("a red apple", width=24, batch_size=2, sampler="euler"))
    for step in steps:
        assert step.denoised.shape == step.latents.shape == (2, 4, 8, 12)
        pictures = preview(step.denoised)
        assert [picture.size for picture in pictures] == [(24, 16)] * 2
        graph = taesd_decoder_graph(CONFIG, 2, 8, 12)
        expected = evaluate(graph, {"latent": step.denoised}, weights_of(graph))["image"]
        for picture, pixels in zip(pictures, expected, strict=True):
            away = np.abs(np.asarray(picture, int) - np.asarray(to_image(pixels), int))
            assert away.max() <= 1
    assert np.abs(steps[0].denoised - steps[0].latents).max() > 0.1, "noise is left"
    np.testing.assert_allclose(steps[-1].denoised, steps[-1].latents, atol=1e-5)


def test_the_command(model_path: Path, path: Path, tmp_path: Path,
                     monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def write(image: Image.Image, path: Path, text: str) -> None:
        written.append(path)
        image.save(path)

    monkeypatch.setattr(generate, "write_png", write)
    target = tmp_path / "made.png"
    result = CliRunner().invoke(root, ["generate", "a red apple", "-m", str(model_path), "-o",
                                       str(target), "--preview", str(path), "--threads", "1"])
    assert result.exit_code == 0, result.output
    between = tmp_path / "made.preview.png"
    assert written == [between, between, target] and target.exists() and not between.exists()


def test_what_is_no_decoder_is_refused(path: Path, model_path: Path, tmp_path: Path) -> None:
    encoder = tmp_path / "encoder.safetensors"
    safetensors.numpy.save_file(
        {name.removeprefix("taesd."): array for name, array in
         weights_of(taesd_encoder_graph(CONFIG, 1, 2, 2)).items()}, encoder)
    with pytest.raises(InputError, match="holds no decoder of a tiny autoencoder"):
        Preview.load(encoder)
    with pytest.raises(CheckpointError, match="a Stable Diffusion 1.x checkpoint; expected"):
        Preview.load(model_path)
    with pytest.raises(InputError, match=r"latents of 4 channels; these are f32\[1, 16, 2, 2\]"):
        Preview.load(path)(np.zeros((1, 16, 2, 2), np.float32))
