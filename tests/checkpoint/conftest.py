"""The tiny checkpoint of `samples` on disk, as a single file and as a diffusers folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint.samples import CONFIGS, SCHEDULER, TINY, folder_weights, random_weights
from safetensors.numpy import save_file


@pytest.fixture(scope="session")
def tiny_weights() -> dict[str, np.ndarray]:
    return random_weights(TINY)


@pytest.fixture()
def tiny_file(tmp_path: Path, tiny_weights) -> Path:
    path = tmp_path / "tiny.safetensors"
    save_file(tiny_weights, path)
    return path


@pytest.fixture()
def tiny_folder(tmp_path: Path, tiny_weights) -> Path:
    folder = tmp_path / "model"
    for component, config in CONFIGS.items():
        (folder / component).mkdir(parents=True)
        stem = "model" if component == "text_encoder" else "diffusion_pytorch_model"
        suffix = ".fp16" if component == "unet" else ""
        path = folder / component / f"{stem}{suffix}.safetensors"
        save_file(folder_weights(tiny_weights, component), path)
        (folder / component / "config.json").write_text(json.dumps(config))
    for place in ("scheduler", "tokenizer"):
        (folder / place).mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER))
    index = {"_class_name": "StableDiffusionPipeline"}
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder
