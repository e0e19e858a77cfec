"""Adapters of several spellings against diffusers, which loads them with peft: the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_model import TINY, write_model

from smalti import checkpoint
from smalti.benchmark import peers
from smalti.checkpoint.adapters import AdapterFile, WeightedAdapter
from smalti.diffusion.submodels import Submodels
from smalti.families.expected import expected_tensors
from smalti.families.prefixes import TEXT, UNET
from smalti.families.unet import diffusers_unet_path

pytestmark = pytest.mark.peers

BLOCKS_A_LEVEL, RANK = 2, 4
KINDS = ("kohya", "kohya with alpha", "kohya, convolutions too", "diffusers",
         "diffusers, decomposed", "old diffusers")
RNG = np.random.default_rng(0)
TOKENS = (np.arange(77) + 320)[None]
LATENT = RNG.standard_normal((1, 4, 4, 4), np.float32)
CONTEXT = RNG.standard_normal((1, 77, 16), np.float32)


def layers(kind: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Path of diffusers -> its part and the shape of its weight, for layers that are changed.

    diffusers 0.42 takes no norms for a text encoder: there it stays as it is.
    """
    found = {}
    for name, shape in expected_tensors(TINY).items():
        path = name.removesuffix(".weight")
        attention = any(f".{part}." in name for part in ("attn1", "attn2", "self_attn"))
        if "decomposed" in kind and name.startswith(TEXT):
            continue
        wanted = attention or "old" not in kind and (".ff." in name or ".mlp." in name) or (
            "convolutions" in kind and (".in_layers.2" in name or "proj_in" in name))
        if len(shape) < 2 or not wanted:
            continue
        if name.startswith(UNET):
            place = diffusers_unet_path(path.removeprefix(UNET), BLOCKS_A_LEVEL)
            found[place] = ("unet", shape)
        elif name.startswith(TEXT):
            found[f"text_model.{path.removeprefix(TEXT)}"] = ("text_encoder", shape)
    return found


def tensors(kind: str) -> dict[str, np.ndarray]:
    """An adapter of random numbers in one spelling."""
    rng, made = np.random.default_rng(1), {}
    for path, (part, shape) in layers(kind).items():
        ones = (1,) * (len(shape) - 2)
        down = rng.standard_normal((RANK, *shape[1:]), np.float32) / 4
        up = rng.standard_normal((shape[0], RANK, *ones), np.float32) / 4
        if kind.startswith("diffusers"):
            made |= {f"{part}.{path}.lora_A.weight": down, f"{part}.{path}.lora_B.weight": up}
            if "decomposed" in kind:
                norms = rng.uniform(1, 2, shape[0]).astype(np.float32)
                made[f"{part}.{path}.lora_magnitude_vector"] = norms
        elif kind == "old diffusers":
            stem, _, leaf = path.removesuffix(".0").rpartition(".")
            leaf = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v",
                    "out_proj": "to_out"}.get(leaf, leaf)
            stem = f"{part}.{stem}.processor" if part == "unet" else f"{part}.{stem}"
            made |= {f"{stem}.{leaf}_lora.down.weight": down, f"{stem}.{leaf}_lora.up.weight": up}
        else:
            prefix = {"unet": "lora_unet_", "text_encoder": "lora_te_"}[part]
            module = prefix + path.replace(".", "_")
            made |= {f"{module}.lora_down.weight": down, f"{module}.lora_up.weight": up}
            if "alpha" in kind:
                made[f"{module}.alpha"] = np.array(2, np.float32)
    return made


def of_diffusers(model: checkpoint.Checkpoint, adapter: Path, weight: float) -> list[np.ndarray]:
    """What text encoder and UNet give when diffusers has put the adapter into their weights."""
    import torch
    from diffusers import DDIMScheduler, StableDiffusionPipeline

    parts = peers.peer_sd1(model.config)
    for part in parts:
        part.fill(model.read)
    text, unet, vae = (part.module for part in parts)
    pipe = StableDiffusionPipeline(
        vae=vae, text_encoder=text, tokenizer=None, unet=unet,
        scheduler=DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    pipe.load_lora_weights(str(adapter.parent), weight_name=adapter.name, adapter_name="a")
    pipe.set_adapters("a", weight)

    def found(*arrays: Any) -> np.ndarray:
        return arrays[0].detach().numpy()

    with torch.inference_mode():
        return [found(pipe.text_encoder(torch.tensor(TOKENS))[0]),
                found(pipe.unet(torch.tensor(LATENT), 500, torch.tensor(CONTEXT))[0])]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_diffusers(tmp_path: Path, weights: dict[str, np.ndarray],
                                        kind: str) -> None:
    wide = {name: array.astype(np.float32) for name, array in weights.items()}
    model_path = write_model(tmp_path / "model.safetensors", wide)
    save_file(tensors(kind), tmp_path / "a.safetensors")
    weight = 1.0 if "decomposed" in kind else 0.7
    parts = Submodels(checkpoint.load(model_path), precision="f32", threads=1)
    unet = {"latent": LATENT, "timesteps": np.full(1, 500, np.float32), "context": CONTEXT}

    def results() -> list[np.ndarray]:
        runs = parts.run("text", (1, 1), tokens=TOKENS.astype(np.int32)), parts.run(
            "unet", (1, 4, 4, 77), **unet)
        return [next(iter(outputs.values())) for outputs in runs]

    before = results()
    use = WeightedAdapter(AdapterFile.open(tmp_path / "a.safetensors"), weight)
    parts = parts.using(parts.adapted([use]))
    assert not parts.weights.fits[0].unused
    expected = of_diffusers(parts.checkpoint, tmp_path / "a.safetensors", weight)
    changed = [any(part == which for part, _ in layers(kind).values())
               for which in ("text_encoder", "unet")]
    for found, base, wanted, is_changed in zip(results(), before, expected, changed, strict=True):
        size = np.linalg.norm(base)
        assert (np.linalg.norm(wanted - base) > 0.05 * size) == is_changed
        assert np.linalg.norm(found - wanted) < 1e-4 * size
