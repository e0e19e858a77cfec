"""What shapes do not tell: heads, groups, activation, prediction type, schedule and defaults.

It comes from the `arch_config` and `modelspec.*` metadata of a single file, or from the
config.json files of a diffusers folder. Both are foreign text: every value is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from smalti.errors import CheckpointError

Tables = Mapping[str, object]

COUNT_MAX = 1_000_000
PREDICTIONS = {"epsilon": "epsilon", "eps": "epsilon", "v_prediction": "v_prediction"}
PREDICTIONS["v"] = "v_prediction"
ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu"}


@dataclass(frozen=True)
class Hints:
    """Values that a file states about its model; None where it says nothing.

    Sizes `width`, `height` are in pixels, `latent_size` in latent pixels (for both sides).
    """

    text_heads: int | None = None
    text_activation: str | None = None
    text_eps: float | None = None
    unet_heads: int | None = None
    unet_groups: int | None = None
    unet_eps: float | None = None
    vae_groups: int | None = None
    vae_eps: float | None = None
    scaling_factor: float | None = None
    prediction: str | None = None
    beta_schedule: str | None = None
    beta_start: float | None = None
    beta_end: float | None = None
    train_steps: int | None = None
    width: int | None = None
    height: int | None = None
    latent_size: int | None = None
    steps: int | None = None
    guidance: float | None = None


# hint -> places to look, first found wins; a place is a section and a key of it
Places = Mapping[str, tuple[tuple[str, str], ...]]

ARCH_CONFIG: Places = {
    "text_heads": (("text", "num_attention_heads"),),
    "text_activation": (("text", "hidden_act"),),
    "text_eps": (("text", "layer_norm_eps"),),
    "unet_heads": (("unet", "num_heads"),),
    "unet_groups": (("unet", "norm_num_groups"),),
    "unet_eps": (("unet", "norm_eps"),),
    "vae_groups": (("vae", "norm_num_groups"),),
    "vae_eps": (("vae", "norm_eps"),),
    "scaling_factor": (("vae", "scaling_factor"),),
    "prediction": (("", "prediction_type"), ("scheduler", "prediction_type")),
    "beta_schedule": (("scheduler", "beta_schedule"),),
    "beta_start": (("scheduler", "beta_start"),),
    "beta_end": (("scheduler", "beta_end"),),
    "train_steps": (("scheduler", "num_train_timesteps"),),
    "width": (("default", "width"),),
    "height": (("default", "height"),),
    "steps": (("default", "steps"),),
    "guidance": (("default", "cfg_scale"),),
}
# In diffusers' UNet configs `attention_head_dim` is, by an old mistake, the number of heads.
FOLDER: Places = {
    "text_heads": (("text_encoder", "num_attention_heads"),),
    "text_activation": (("text_encoder", "hidden_act"),),
    "text_eps": (("text_encoder", "layer_norm_eps"),),
    "unet_heads": (("unet", "num_attention_heads"), ("unet", "attention_head_dim")),
    "unet_groups": (("unet", "norm_num_groups"),),
    "unet_eps": (("unet", "norm_eps"),),
    "vae_groups": (("vae", "norm_num_groups"),),
    "scaling_factor": (("vae", "scaling_factor"),),
    "prediction": (("scheduler", "prediction_type"),),
    "beta_schedule": (("scheduler", "beta_schedule"),),
    "beta_start": (("scheduler", "beta_start"),),
    "beta_end": (("scheduler", "beta_end"),),
    "train_steps": (("scheduler", "num_train_timesteps"),),
    "latent_size": (("unet", "sample_size"),),
}


def metadata_hints(where: object, metadata: Mapping[str, str]) -> Hints:
    """Hints of a single file's metadata; `where` names the file in messages.

    Raises `CheckpointError` for a value of the wrong kind.

    >>> hints = metadata_hints("x", {"modelspec.prediction_type": "v"})
    >>> hints.prediction, hints.unet_heads
    ('v_prediction', None)
    """
    hints = Hints()
    if "arch_config" in metadata:
        try:
            tables = json.loads(metadata["arch_config"])
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{where}: metadata `arch_config` is no JSON ({error}); expected an object"
            ) from error
        hints = read_hints(f"{where}: metadata `arch_config`", tables, ARCH_CONFIG)
    if hints.prediction is None:
        stated = metadata.get("modelspec.prediction_type", "")
        hints = replace(hints, prediction=PREDICTIONS.get(stated))
    size = re.fullmatch(r"(\d{2,4})x(\d{2,4})", metadata.get("modelspec.resolution", ""))
    if hints.width is None and hints.height is None and size:
        hints = replace(hints, width=int(size[1]), height=int(size[2]))
    return hints


def folder_hints(where: object, tables: Tables) -> Hints:
    """Hints of a diffusers folder: `tables` maps component names to their parsed config.json.

    Raises `CheckpointError` for a value of the wrong kind.
    """
    return read_hints(where, tables, FOLDER)


def read_hints(where: object, tables: object, places: Places) -> Hints:
    """Look up all hints at their `places` in `tables` and check each."""
    if not isinstance(tables, dict):
        raise CheckpointError(f"{where} is a {type(tables).__name__}; expected an object")
    types = {field.name: str(field.type) for field in fields(Hints)}
    found = {}
    for hint, choices in places.items():
        for section, key in choices:
            table = tables.get(section) if section else tables
            value = table.get(key) if isinstance(table, dict) else None
            if value is not None:
                label = f"{where}: {section + '.' if section else ''}{key}"
                found[hint] = _checked(label, hint, types[hint], value)
                break
    return Hints(**found)


def _checked(label: str, hint: str, kind: str, value: object) -> object:
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]  # one value per level, all the same
    if hint == "prediction":
        return _choice(label, value, PREDICTIONS)
    if hint == "text_activation":
        return _choice(label, value, ACTIVATIONS)
    if hint == "beta_schedule":
        return _choice(label, value, {"scaled_linear": "scaled_linear"})
    if kind.startswith("int"):
        if type(value) is not int or not 1 <= value <= COUNT_MAX:
            raise CheckpointError(f"{label} is {value!r:.60}; expected a whole number from 1")
        return value
    if type(value) not in (int, float) or not 0 < value <= COUNT_MAX:
        raise CheckpointError(f"{label} is {value!r:.60}; expected a positive number")
    return float(value)


def _choice(label: str, value: object, choices: Mapping[str, str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise CheckpointError(f"{label} is {value!r:.60}; Smalti knows {', '.join(choices)} so far")
    return choices[value]
