"""A tiny model of the family that a module tests: the one that it calls `CONFIG`, and its file."""

from __future__ import annotations

import pytest
import tiny_families as tiny

from smalti.checkpoint import Checkpoint, load


@pytest.fixture(scope="module")
def weights(request: pytest.FixtureRequest) -> tiny.Weights:
    return tiny.random_weights(request.module.CONFIG)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
          weights: tiny.Weights) -> Checkpoint:
    """Of one file, which is called what the module says, as names tell of models."""
    path = tmp_path_factory.mktemp("model") / f"{request.module.NAME}.safetensors"
    return load(tiny.write_whole(path, request.module.CONFIG, weights))
