"""The tiny checkpoint of `samples` on disk, as a single file and as a diffusers folder."""

from pathlib import Path

import numpy as np
import pytest
from checkpoint.samples import TINY, random_weights, write_folder
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
    return write_folder(tmp_path / "model", tiny_weights)
