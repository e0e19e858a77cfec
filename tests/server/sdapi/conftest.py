"""A server with a ControlNet, an upscaler and styles beside the tiny model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import webuiapi
from safetensors.numpy import save_file
from served import HOST, Client, opened, served
from tiny_controlnet import write_controlnet
from tiny_model import tiny_weights

from smalti.benchmark.weights import seeded
from smalti.models import SrvggConfig, upscaler_graph


@pytest.fixture(scope="module")
def equipped(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """The folder of models with a ControlNet for the tiny one, an upscaler, and styles."""
    root = tmp_path_factory.mktemp("equipped")
    shutil.copytree(models, root, dirs_exist_ok=True)
    write_controlnet(root / "models" / "ControlNet" / "edges")
    (root / "models" / "ESRGAN").mkdir()
    graph = upscaler_graph(SrvggConfig(4, 1, 2), 1, 8, 8)
    save_file({name: seeded(name, value.shape) for name, value in graph.parameters.items()},
              root / "models" / "ESRGAN" / "RealESRGAN_x4plus.safetensors")
    (root / "models" / "VAE").mkdir()
    save_file({name.removeprefix("first_stage_model."): value
               for name, value in tiny_weights().items() if name.startswith("first_stage_model.")},
              root / "models" / "VAE" / "own.vae.safetensors")
    (root / "styles.csv").write_text(
        'name,prompt,negative_prompt\noil,"oil on canvas",blurry\nphoto,a photo of {prompt},\n')
    return root


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, equipped: Path) -> Iterator[Client]:
    with served(opened(tmp_path_factory.mktemp("pictures"), equipped)) as found:
        found.post("/sdapi/v1/options", {"sd_model_checkpoint": "tiny"})
        yield found


@pytest.fixture
def api(client: Client) -> webuiapi.WebUIApi:
    return webuiapi.WebUIApi(host=HOST, port=client.port, sampler="Euler a", steps=2)
