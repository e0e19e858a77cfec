"""Adapters of every family: the weights that diffusers saves when it has merged them with peft."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import diffusers_families as theirs
import numpy as np
import pytest
import tiny_families as tiny
from checkpoint.adapters.samples import off
from safetensors.numpy import save_file

from smalti import checkpoint
from smalti.checkpoint.adapters import Adapted, AdapterFile, WeightedAdapter

pytestmark = pytest.mark.peers

RANK, STRENGTH = 2, 0.7
TEXTS = {"sdxl": ("text_encoder", "text_encoder_2"), "sd3": ("text_encoder", "text_encoder_2"),
         "flux": ("text_encoder",), "anima": ("text_conditioner",)}
"""What reads texts and diffusers takes adapters for."""


def layers(pipe: Any, part: str) -> dict[str, tuple[int, ...]]:
    """Path -> shape of the weight of each linear layer of a part."""
    import torch

    return {path: tuple(module.weight.shape)
            for path, module in getattr(pipe, part).named_modules()
            if isinstance(module, torch.nn.Linear)}


def tensors(pipe: Any, family: str) -> dict[str, np.ndarray]:
    """An adapter of random numbers for all linear layers, as diffusers calls them."""
    rng, found = np.random.default_rng(0), {}
    denoiser = "unet" if hasattr(pipe, "unet") else "transformer"
    for part in (denoiser, *TEXTS.get(family, ())):
        for path, shape in layers(pipe, part).items():
            if part != denoiser and not re.search(r"self_attn|mlp", path):
                continue
            found[f"{part}.{path}.lora_A.weight"] = rng.standard_normal(
                (RANK, shape[1]), np.float32) / 4
            found[f"{part}.{path}.lora_B.weight"] = rng.standard_normal(
                (shape[0], RANK), np.float32) / 4
    return found


@pytest.mark.parametrize("family", [
    "sd1", "sd2", "sdxl", "sd3", "flux", "chroma", "z-image", "anima", "qwen-image",
    "flux2", "krea2", "lumina2", "ernie-image", "flux3"])
def test_merged_weights_are_those_of_diffusers(tmp_path: Path, family: str,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    for config in (tiny.LUMINA2, tiny.ERNIE_IMAGE, tiny.FLUX3):
        monkeypatch.setitem(tiny.FAMILIES, config.family, config)
    pipe = theirs.pipeline(family)
    theirs.save(pipe, tmp_path / "base")
    save_file(tensors(pipe, family), tmp_path / "a.safetensors")
    pipe.load_lora_weights(str(tmp_path), weight_name="a.safetensors", adapter_name="a")
    pipe.set_adapters("a", STRENGTH)
    pipe.fuse_lora(components=[part for part in pipe._lora_loadable_modules if hasattr(pipe, part)])
    pipe.unload_lora_weights()
    theirs.save(pipe, tmp_path / "merged")
    base, merged = (checkpoint.load(tmp_path / which) for which in ("base", "merged"))
    adapted = Adapted(base, [
        WeightedAdapter(AdapterFile.open(tmp_path / "a.safetensors"), STRENGTH)])
    assert not adapted.fits[0].unused, str(adapted.fits[0])
    differing = {name for name in merged.names() if off(merged.read(name), base.read(name)) > 1e-3}
    assert differing == adapted.changed
    for name in differing:
        assert off(adapted.floats(name), merged.read(name)) < 1e-5, name
