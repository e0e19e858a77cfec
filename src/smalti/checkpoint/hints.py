"""What shapes do not tell: heads, groups, activation, prediction type, schedule and defaults.

It comes from the `arch_config` and `modelspec.*` metadata of a single file, or from the
config.json files of a diffusers folder. Both are foreign text: every value is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, TypeVar, cast

from smalti.errors import CheckpointError
from smalti.families.distilled import words
from smalti.families.hints import Hints, TextHints
from smalti.models.config import Prediction

Tables = Mapping[str, object]

COUNT_MAX = 10_000_000
"""No number that a file states of a model is larger; a larger one is a mistake or an attack."""
ROTARY_MAX = 1e12
"""Nor is a base of rotary positions, which is 1e9 for Mistral Small."""
PREDICTIONS: Mapping[str, Prediction] = {
    "epsilon": "epsilon", "eps": "epsilon", "v_prediction": "v_prediction", "v": "v_prediction",
    "v-prediction": "v_prediction", "vpred": "v_prediction", "v_pred": "v_prediction",
    "sample": "sample", "flow_prediction": "flow", "edm": "edm", "edm_v": "edm_v"}
KOHYA_TRUE = "True"
"""How kohya's trainers write what is set, in metadata that begin with `ss_`."""
NAMED_V = re.compile(r"(?<![a-z])v ?pred(?:iction)?(?![a-z])")
NAMED_ZERO = re.compile(r"(?<![a-z])z(?:t|ero )?snr(?![a-z])")
NOISE = re.compile(r"[a-z_]{1,40}|\d[\d.e-]{0,20}(,\d[\d.e-]{0,20}){1,1000}", re.ASCII)
"""The name of a schedule, or noise levels."""
ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu"}
GATES = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_tanh": "gelu_tanh"}


# hint -> places to look, first found wins; a place is a section and a key of it
Places = Mapping[str, tuple[tuple[str, str], ...]]

TEXT: Places = {
    "heads": (("", "num_attention_heads"),),
    "activation": (("", "hidden_act"),),
    "eps": (("", "layer_norm_eps"),),
}
"""Places in the section of a text encoder."""

LANGUAGE: Places = {
    "heads": (("", "num_attention_heads"),),
    "eps": (("", "rms_norm_eps"),),
    "head_dim": (("", "head_dim"),),
    "rotary_base": (("", "rope_theta"), ("rope_parameters", "rope_theta")),
    "gate": (("", "hidden_activation"), ("", "hidden_act")),
    "softcap": (("", "attn_logit_softcapping"),),
    "query_size": (("", "query_pre_attn_scalar"),),
    "window": (("", "sliding_window"),),
    "stretched": (("", "stretched"), ("rope_parameters", "factor"), ("rope_scaling", "factor")),
    "stretched_from": (("", "stretched_from"),
                       ("rope_parameters", "original_max_position_embeddings"),
                       ("rope_scaling", "original_max_position_embeddings")),
    "vision_heads": (("", "vision_heads"), ("vision_config", "num_heads")),
    "vision_all": (("", "vision_all"), ("vision_config", "fullatt_block_indexes")),
}
"""Places in that of a language model, which is told by its `rms_norm_eps`."""

TEXT_SECTIONS = ("text", "text_2", "text_3")
TEXT_FOLDERS = ("text_encoder", "text_encoder_2", "text_encoder_3")

FLOW_LEVELS: Places = {
    "shift_low": (("scheduler", "base_shift"),),
    "shift_high": (("scheduler", "max_shift"),),
    "tokens_low": (("scheduler", "base_image_seq_len"),),
    "tokens_high": (("scheduler", "max_image_seq_len"),),
    "flow_terminal": (("scheduler", "shift_terminal"),),
}
"""Places of what else is stated of the levels of models that predict a flow."""
PIPELINE = "pipeline"
"""The section of what the index of a folder states."""
EVENLY = 1e-4
"""How far levels may be off those that are evenly spaced; files have them with some digits."""
FLOW_SCHEDULER = "FlowMatchEuler"
"""What begins the name of the scheduler that states it: without a last level, there is none."""

ARCH_CONFIG: Places = {
    "unet_heads": (("unet", "num_heads"),),
    "unet_head_dim": (("unet", "num_head_channels"),),
    "unet_groups": (("unet", "norm_num_groups"),),
    "unet_eps": (("unet", "norm_eps"),),
    "vae_groups": (("vae", "norm_num_groups"),),
    "vae_eps": (("vae", "norm_eps"),),
    "scaling_factor": (("vae", "scaling_factor"),),
    "shift_factor": (("vae", "shift_factor"),),
    "flow_shift": (("scheduler", "shift"),),
    "flow_shift_by_size": (("scheduler", "use_dynamic_shifting"),),
    **FLOW_LEVELS,
    "zero_terminal_snr": (("scheduler", "rescale_betas_zero_snr"),),
    "prediction": (("", "prediction_type"), ("scheduler", "prediction_type")),
    "beta_schedule": (("scheduler", "beta_schedule"),),
    "beta_start": (("scheduler", "beta_start"),),
    "beta_end": (("scheduler", "beta_end"),),
    "train_steps": (("scheduler", "num_train_timesteps"),),
    "width": (("default", "width"),),
    "height": (("default", "height"),),
    "steps": (("default", "steps"),),
    "guidance": (("default", "cfg_scale"),),
    "guidance_time": (("default", "cfg_interval"),),
    "distilled_guidance": (("default", "distilled_cfg_scale"),),
    "noise": (("default", "noise"),),
    "reference": (("transformer", "reference"),),
    "clean": (("transformer", "zero_cond_t"),),
    "latents_mean": (("vae", "latents_mean"),),
    "latents_std": (("vae", "latents_std"),),
    "statistics_eps": (("vae", "batch_norm_eps"),),
    "sigma_min": (("scheduler", "sigma_min"),),
    "sigma_max": (("scheduler", "sigma_max"),),
    "latent_size": (("default", "latent_size"),),
}
# In diffusers' UNet configs `attention_head_dim` is, by an old mistake, the number of heads.
FOLDER: Places = {
    "unet_heads": (("unet", "num_attention_heads"), ("unet", "attention_head_dim")),
    "unet_groups": (("unet", "norm_num_groups"),),
    "unet_eps": (("unet", "norm_eps"),),
    "vae_groups": (("vae", "norm_num_groups"),),
    "scaling_factor": (("vae", "scaling_factor"),),
    "shift_factor": (("vae", "shift_factor"),),
    "flow_shift": (("scheduler", "shift"),),
    "flow_shift_by_size": (("scheduler", "use_dynamic_shifting"),),
    **FLOW_LEVELS,
    "zero_terminal_snr": (("scheduler", "rescale_betas_zero_snr"),),
    "prediction": (("scheduler", "prediction_type"),),
    "beta_schedule": (("scheduler", "beta_schedule"),),
    "beta_start": (("scheduler", "beta_start"),),
    "beta_end": (("scheduler", "beta_end"),),
    "train_steps": (("scheduler", "num_train_timesteps"),),
    "latent_size": (("unet", "sample_size"),),
    "clean": (("transformer", "zero_cond_t"),),
    "latents_mean": (("vae", "latents_mean"),),
    "latents_std": (("vae", "latents_std"),),
    "statistics_eps": (("vae", "batch_norm_eps"),),
}
EDM: Places = {name: (("scheduler", name),) for name in ("sigma_min", "sigma_max")}
"""Noise levels of a scheduler that is called EDM..., those of Karras et al. 2022."""
EDM_PREDICTIONS: Mapping[tuple[str, float], Prediction] = {
    ("epsilon", 0.5): "edm", ("v_prediction", 1.0): "edm_v"}
"""Prediction and deviation of the data as such a scheduler states them -> what is predicted."""


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
        place = f"{where}: metadata `arch_config`"
        hints = replace(read_hints(Hints, place, tables, ARCH_CONFIG),
                        texts=_text_hints(place, tables, TEXT_SECTIONS))
    hints = first(hints, Hints(
        prediction=PREDICTIONS.get(metadata.get("modelspec.prediction_type", "").lower()),
        zero_terminal_snr=metadata.get("ss_zero_terminal_snr") == KOHYA_TRUE or None))
    if metadata.get("ss_v_parameterization") == KOHYA_TRUE:
        hints = first(hints, Hints(prediction="v_prediction"))
    size = re.fullmatch(r"(\d{2,4})x(\d{2,4})", metadata.get("modelspec.resolution", ""))
    if hints.width is None and hints.height is None and size:
        hints = replace(hints, width=int(size[1]), height=int(size[2]))
    return hints


def named_hints(*names: str) -> Hints:
    """What the names of a model say of its prediction and its noise; many of those who mix models
    lose the marks in files.

    >>> named_hints("noobaiXLNAIXL_vPred10Version").prediction, named_hints("vpredictor").prediction
    ('v_prediction', None)
    """
    text = words(*names)
    return Hints(prediction="v_prediction" if NAMED_V.search(text) else None,
                 zero_terminal_snr=bool(NAMED_ZERO.search(text)) or None)


def first(*stated: Hints) -> Hints:
    """Of each hint the first value that is stated.

    >>> first(Hints(steps=4), Hints(steps=20, guidance=7.0)).guidance
    7.0
    """
    found = Hints()
    for hints in stated:
        found = replace(found, **{
            each.name: getattr(hints, each.name) for each in fields(Hints)
            if getattr(found, each.name) in (None, ())})
    return found


def folder_hints(where: object, tables: Tables) -> Hints:
    """Hints of a diffusers folder: `tables` maps component names to their parsed config.json.

    Raises `CheckpointError` for a value of the wrong kind.
    """
    hints = replace(read_hints(Hints, where, tables, FOLDER),
                    texts=_text_hints(where, tables, TEXT_FOLDERS))
    scheduler = tables.get("scheduler")
    hints = first(hints, _sampled(where, tables))
    if not isinstance(scheduler, dict):
        return hints
    if str(scheduler.get("_class_name")).startswith(FLOW_SCHEDULER):
        return first(hints, Hints(flow_terminal=0.0))
    if not str(scheduler.get("_class_name")).startswith("EDM"):
        return hints
    stated = str(scheduler.get("prediction_type", "epsilon")), scheduler.get("sigma_data", 0.5)
    predicted = next((each for known, each in EDM_PREDICTIONS.items() if known == stated), None)
    if predicted is None:
        known = " or ".join(f"{name!r} with {data:g}" for name, data in EDM_PREDICTIONS)
        raise CheckpointError(f"{where}: scheduler.prediction_type is {stated[0]!r:.60} with "
                              f"sigma_data {stated[1]!r:.60}; Smalti knows {known} so far")
    return first(replace(hints, prediction=predicted), read_hints(Hints, where, tables, EDM))


def _sampled(where: object, tables: Tables) -> Hints:
    """The steps and noise levels of a pipeline that states its `sample_sigmas`, to which its
    scheduler's shift is still to be added; nothing of one that does not.

    Raises `CheckpointError` for what is no falling row, or not known without the size.

    >>> _sampled("x", {"pipeline": {"sample_sigmas": [1.0, 0.9]}, "scheduler": {"shift": 3}}).noise
    '1,0.964286,0'
    """
    pipeline, scheduler = (table if isinstance(table, dict) else {}
                           for table in map(tables.get, (PIPELINE, "scheduler")))
    label, stated = f"{where}: sample_sigmas", pipeline.get("sample_sigmas")
    if stated is None:
        return Hints()
    levels = _numbers(label, stated)
    count = len(levels)
    if not 1 >= levels[0] > 0 < levels[-1] or any(
            low >= high for high, low in pairwise(levels)):
        raise CheckpointError(f"{label} is {stated!r:.60}; expected falling numbers from 1 to 0")
    if all(abs(level - (1 - i / count)) < EVENLY for i, level in enumerate(levels)):
        return Hints(steps=count)
    if scheduler.get("use_dynamic_shifting") or scheduler.get("shift_terminal"):
        raise CheckpointError(f"{label} are not evenly spaced, and shifted by the size or to a "
                              f"last level, which is not computed; expected one of both")
    shift = scheduler.get("shift", 1.0)
    if type(shift) not in (int, float) or not 0 < shift <= COUNT_MAX:
        raise CheckpointError(f"{where}: scheduler.shift is {shift!r:.60}; expected a positive "
                              f"number")
    shifted = (shift * level / (1 + (shift - 1) * level) for level in levels)
    return Hints(steps=count, noise=",".join(f"{level:.6g}" for level in (*shifted, 0)))


def arch_config(hints: Hints) -> str:
    """The metadata `arch_config` that gives these hints again.

    >>> hints = Hints(unet_heads=(8,), prediction="epsilon")
    >>> metadata_hints("x", {"arch_config": arch_config(hints)}).unet_heads
    (8,)
    """
    tables: dict[str, Any] = {}

    def enter(found: Hints | TextHints, places: Places, within: str = "") -> None:
        for hint, ((section, key), *_) in places.items():
            value = getattr(found, hint)
            if value is not None:
                table = tables.setdefault(section or within, {}) if section or within else tables
                table[key] = list(value) if isinstance(value, tuple) else value

    enter(hints, ARCH_CONFIG)
    for section, text in zip(TEXT_SECTIONS, hints.texts, strict=False):
        enter(text, TEXT if text.rotary_base is None else LANGUAGE, section)
    return json.dumps(tables)


def _text_hints(where: object, tables: Tables, sections: tuple[str, ...]) -> tuple[TextHints, ...]:
    """What is stated about each text encoder; sections of T5, which shapes tell all of, are empty.
    """
    found = []
    for section in sections:
        table = language_table(tables.get(section))
        stated = isinstance(table, dict) and "num_heads" not in table
        places = LANGUAGE if isinstance(table, dict) and "rms_norm_eps" in table else TEXT
        found.append(read_hints(TextHints, f"{where}: {section}", table, places) if stated
                     else TextHints())
    return tuple(found)


def language_table(table: object) -> object:
    """The configuration of a text encoder; of models that read pictures, too, that of the texts.

    >>> language_table({"text_config": {"hidden_size": 8}, "vision_config": {}})["hidden_size"]
    8
    """
    inner = table.get("text_config") if isinstance(table, dict) else None
    return {**table, **inner} if isinstance(table, dict) and isinstance(inner, dict) else table


H = TypeVar("H", Hints, TextHints)


def read_hints(kind: type[H], where: object, tables: object, places: Places) -> H:
    """Look up all hints at their `places` in `tables` and check each."""
    if not isinstance(tables, dict):
        raise CheckpointError(f"{where} is a {type(tables).__name__}; expected an object")
    types = {field.name: str(field.type) for field in fields(kind)}
    found: dict[str, Any] = {}
    for hint, choices in places.items():
        for section, key in choices:
            table = tables.get(section) if section else tables
            value = table.get(key) if isinstance(table, dict) else None
            if value is not None:
                label = f"{where}: {section + '.' if section else ''}{key}"
                found[hint] = _checked(label, hint, types[hint], value)
                break
    return kind(**found)


def _checked(label: str, hint: str, kind: str, value: object) -> object:
    if kind.startswith("tuple[float"):
        numbers = _numbers(label, value)
        if hint == "guidance_time" and not (
                len(numbers) == 2 and 0 <= numbers[0] < numbers[1] <= 1):
            raise CheckpointError(f"{label} is {value!r:.60}; expected two rising numbers from 0 "
                                  f"to 1")
        return numbers
    if kind.startswith("tuple"):
        row = value if isinstance(value, list) else [value]
        return tuple(_checked(label, hint, "int", number) for number in row)
    if kind.startswith("bool"):
        if not isinstance(value, bool):
            raise CheckpointError(f"{label} is {value!r:.60}; expected true or false")
        return value
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]  # one value per level, all the same
    if hint == "prediction":
        return _choice(label, value, PREDICTIONS)
    if hint == "activation":
        return _choice(label, value, ACTIVATIONS)
    if hint == "gate":
        return _choice(label, value, GATES)
    if hint == "beta_schedule":
        return _choice(label, value, {"scaled_linear": "scaled_linear"})
    if hint == "noise":
        if not isinstance(value, str) or not NOISE.fullmatch(value):
            raise CheckpointError(f"{label} is {value!r:.60}; expected a noise schedule")
        return value
    if kind.startswith("int"):
        least = 0 if hint == "vision_all" else 1  # blocks count from 0
        if type(value) is not int or not least <= value <= COUNT_MAX:
            raise CheckpointError(f"{label} is {value!r:.60}; expected a whole number from {least}")
        return value
    if hint == "flow_terminal":
        if type(value) not in (int, float) or not 0 <= cast("float", value) < 1:
            raise CheckpointError(f"{label} is {value!r:.60}; expected a number from 0 to 1")
        return float(cast("float", value))
    if isinstance(value, bool) or not isinstance(value, int | float) \
            or not 0 < value <= (ROTARY_MAX if hint == "rotary_base" else COUNT_MAX):
        raise CheckpointError(f"{label} is {value!r:.60}; expected a positive number")
    return float(value)


def _numbers(label: str, value: object) -> tuple[float, ...]:
    """A row of finite numbers, of either sign."""
    row = value if isinstance(value, list) else []
    found = tuple(float(number) for number in row if type(number) in (int, float)
                  and abs(number) <= COUNT_MAX)
    if not row or len(found) != len(row):
        raise CheckpointError(f"{label} is {value!r:.60}; expected a row of numbers")
    return found


def _choice(label: str, value: object, choices: Mapping[str, str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise CheckpointError(f"{label} is {value!r:.60}; Smalti knows {', '.join(choices)} so far")
    return choices[value]
