"""Diffusers folders that lie: configurations, names and weights made to harm."""

from __future__ import annotations

import json
import random
from functools import lru_cache

from checkpoint.samples import CONFIGS, SCHEDULER, TINY, folder_weights, random_weights
from fuzz.engine_files import changed_json
from safetensors.numpy import save

INDEX = "model_index.json"
STEMS = {"unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model",
         "text_encoder": "model"}


@lru_cache(maxsize=1)
def sound() -> dict[str, bytes]:
    """A folder that loads: names of files, and what is in them."""
    weights = random_weights(TINY)
    found = {INDEX: json.dumps({"_class_name": "StableDiffusionPipeline"}).encode(),
             "scheduler/scheduler_config.json": json.dumps(SCHEDULER).encode()}
    for component, stem in STEMS.items():
        found[f"{component}/config.json"] = json.dumps(CONFIGS[component]).encode()
        found[f"{component}/{stem}.safetensors"] = save(folder_weights(weights, component))
    return found


def folders(pickle: bytes) -> dict[str, dict[str, bytes]]:
    """Name of each case, and its files; `pickle` is one that would be noticed if it were run."""
    unet, text = "unet/diffusion_pytorch_model", "text_encoder/model"
    configs = [name for name in sound() if name.endswith(".json")]
    found = {f"{name} {what}": {**sound(), name: data} for name in configs for what, data in (
        ("bomb", b"[" * 400_000), ("cut", sound()[name][:-1]), ("list", b"[1]"), ("empty", b""),
        ("binary", b"\xff\xfe\x00"))}
    found["long"] = {**sound(), INDEX: b" " * 11_000_000}

    def without(name: str, **others: bytes) -> dict[str, bytes]:
        kept = {key: data for key, data in sound().items() if key != name}
        return {**kept, **{f"{name.rpartition('/')[0]}/{key}": data
                           for key, data in others.items()}}

    for number, value in enumerate((10**400, -1, 0, 1e999, "9" * 5000, [[[]]], {"a": {}}, True)):
        for key in ("num_attention_heads", "attention_head_dim", "norm_num_groups"):
            table = json.dumps({**CONFIGS["unet"], key: value}).encode()
            found[f"unet {key} {number}"] = {**sound(), "unet/config.json": table}
    for number, name in enumerate(("../../x.safetensors", "/x.safetensors", "\x1b[2J", "x.bin")):
        table = json.dumps({"weight_map": {"a": name}}).encode()
        found[f"shard {number}"] = without(f"{unet}.safetensors", **{
            "diffusion_pytorch_model.safetensors.index.json": table, "x.bin": pickle})
    found["pickled weights"] = without(f"{text}.safetensors", **{"pytorch_model.bin": pickle})
    found["no weights"] = without(f"{unet}.safetensors")
    found["weights of another part"] = {**sound(), f"{unet}.safetensors":
                                        sound()["vae/diffusion_pytorch_model.safetensors"]}
    found["cut weights"] = {**sound(), f"{unet}.safetensors":
                            sound()[f"{unet}.safetensors"][:5000]}
    found["class of control characters"] = {**sound(), INDEX: b'{"_class_name": "\\u001b[2J"}'}
    found["paths as components"] = {**sound(), INDEX: json.dumps(
        {"_class_name": "StableDiffusionPipeline", "../../x": ["a", "b"], "/": [1]}).encode()}
    return found


def changed_folder(draw: random.Random) -> dict[str, bytes]:
    """The sound folder with values of its JSON files changed."""
    found = dict(sound())
    for name in draw.sample([name for name in found if name.endswith(".json")],
                            draw.choice([1, 1, 2])):
        found[name] = changed_json(found[name], draw)
    return found
