"""Models with layers or settings that are not computed are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_model import METADATA

from smalti.checkpoint import inspect, load
from smalti.checkpoint.uncomputed import NORMALLY, settings
from smalti.errors import CheckpointError

Weights = dict[str, np.ndarray]
UNET = "model.diffusion_model."


@pytest.mark.parametrize(("name", "said"), [
    ("class_embedding.linear_1.weight", "a class or a level of noise"),
    ("label_emb.weight", "a class or a level of noise"),
    ("input_blocks.1.0.motion_modules.0.weight", "AnimateDiff"),
    ("middle_block.1.transformer_blocks.0.attn2.to_k_ip.weight", "IP-Adapter"),
    ("middle_block.1.transformer_blocks.0.fuser.linear.weight", "GLIGEN"),
    ("middle_block.9.new.weight", "wrong; use another model"),
])
def test_layers_that_are_not_known_are_refused(tmp_path: Path, tiny_weights: Weights, name: str,
                                               said: str) -> None:
    path = tmp_path / "a.safetensors"
    save_file({**tiny_weights, UNET + name: np.ones((4, 4), np.float16)}, path, METADATA)
    with pytest.raises(CheckpointError, match="has what Smalti does not compute") as caught:
        load(path)
    assert name in str(caught.value) and said in str(caught.value)
    report = inspect(path)
    assert not report.loadable and name in report.uncomputed[0]
    assert f"unknown     {UNET}{name}" in str(report) and "loads       no" in str(report)


def test_a_coder_with_another_layer_is_refused(tmp_path: Path, tiny_weights: Weights) -> None:
    path, name = tmp_path / "a.safetensors", "first_stage_model.decoder.refine.weight"
    save_file({**tiny_weights, name: np.ones((4, 4), np.float16)}, path, METADATA)
    with pytest.raises(CheckpointError, match="first_stage_model.decoder.refine.weight"):
        load(path)


def test_marks_and_what_belongs_to_training_are_left_out(tmp_path: Path, tiny_weights: Weights
                                                         ) -> None:
    path = tmp_path / "a.safetensors"
    extra = {f"{UNET}mark": np.zeros(1, np.float16), f"{UNET}other_mark": np.zeros(0, np.float16),
             "first_stage_model.critic.weight": np.ones((4, 4), np.float16)}
    save_file({**tiny_weights, **extra}, path, METADATA)
    assert set(load(path).report.ignored) == set(extra)


@pytest.mark.parametrize(("component", "key", "value"), [
    ("unet", "act_fn", "gelu"), ("unet", "flip_sin_to_cos", False), ("unet", "freq_shift", 1),
    ("unet", "class_embed_type", "projection"),
    ("unet", "num_class_embeds", 1000), ("unet", "addition_embed_type", "image"),
    ("unet", "only_cross_attention", [True, False]), ("unet", "mid_block_scale_factor", 2.0),
    ("unet", "down_block_types", ["DownBlock2D", "SimpleCrossAttnDownBlock2D"]),
    ("unet", "encoder_hid_dim", 768), ("unet", "_class_name", "UNet3DConditionModel"),
    ("vae", "_class_name", "AsymmetricAutoencoderKL"), ("vae", "_class_name", ["Unknown"]),
    ("scheduler", "trained_betas", [0.1, 0.2])])
def test_settings_that_are_not_computed_are_named(component: str, key: str, value: object) -> None:
    (line,) = settings({component: {key: value}})
    assert line.startswith(component) and f"{key} is {json.dumps(value)}; expected" in line


def test_settings_that_mean_the_same_are_computed() -> None:
    assert not settings({component: {key: list(values) if key.endswith("types") else values[0]
                                     for key, values in keys.items()}
                         for component, keys in NORMALLY.items()})
    assert not settings({"unet": {"mid_block_scale_factor": 1.0, "freq_shift": 0.0,
                                  "only_cross_attention": [False, False]}, "vae": [], "other": 3})
