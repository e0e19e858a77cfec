"""A server with the tiny model, for all tests of a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Client, opened, served
from tiny_adapters import write_adapter
from tiny_model import TINY


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Path:
    """A folder as A1111 has it, with the tiny model and an adapter of it."""
    root = tmp_path_factory.mktemp("webui")
    home = root / "models" / "Stable-diffusion" / "small"
    home.mkdir(parents=True)
    shutil.copy(model_path, home / "tiny.safetensors")
    (root / "models" / "Lora").mkdir()
    write_adapter(root / "models" / "Lora" / "style.safetensors", TINY)
    (root / "models" / "Lora" / "broken.safetensors").write_bytes(b"\xff" * 40)
    return root


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Client]:
    """A client of a server that runs."""
    with served(opened(tmp_path_factory.mktemp("pictures"), models)) as found:
        yield found
