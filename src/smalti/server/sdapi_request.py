"""Requests of AUTOMATIC1111's API as requests of ours: what each field means here.

A field is either a part of the picture, or it is idle: it may say what changes nothing. Whatever
else a field says is refused by name, so that no picture is silently another one than was asked for.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image, ImageOps

from smalti.diffusion.options import BATCH_MAX
from smalti.diffusion.samplers import SAMPLERS, split_label
from smalti.errors import InputError
from smalti.server.asked import picture

Request = dict[str, Any]
EMPTY: tuple[Any, ...] = (None, False, 0, -1, "", [], {})
"""What says nothing, of fields that are not known."""
SAME = (None, "", "Use same checkpoint", "Use same sampler", "Use same scheduler",
        "Use same choices")
RNGS = {"CPU": "cpu", "NV": "cuda", "GPU": "cuda"}
"""Of the option `randn_source`: A1111's own default is what a GPU of NVIDIA draws."""

SAID: Mapping[str, str] = {
    "prompt": "prompt", "negative_prompt": "negative_prompt", "seed": "seed", "steps": "steps",
    "cfg_scale": "guidance_scale", "width": "width", "height": "height",
    "distilled_cfg_scale": "distilled_guidance", "clip_skip": "clip_skip",
}
"""Fields that are options of ours under another name; null is the model's own default."""
WHOLE = ("seed", "steps", "width", "height", "clip_skip")
"""Whole numbers, which clients also send as 20.0."""
READ = ("sampler_name", "sampler_index", "scheduler", "batch_size", "n_iter", "tiling", "subseed",
        "subseed_strength", "override_settings", "denoising_strength", "enable_hr", "hr_scale",
        "hr_upscaler", "hr_second_pass_steps", "init_images", "mask", "mask_blur",
        "inpainting_fill", "inpaint_full_res", "inpaint_full_res_padding",
        "inpainting_mask_invert", "resize_mode", "force_task_id")
"""Fields that the functions below read."""
ANY = ("send_images", "save_images", "do_not_save_samples", "do_not_save_grid", "eta",
       "override_settings_restore_afterwards", "include_init_images", "infotext", "s_tmax",
       "hr_resize_x", "hr_resize_y", "hr_prompt", "hr_negative_prompt", "script_args")
"""Fields that change no picture here, or that are looked at beside another one."""
IDLE: Mapping[str, tuple[Any, ...]] = {
    "s_churn": (0, None), "s_tmin": (0, None), "s_noise": (1, None), "image_cfg_scale": (1.5, None),
    "initial_noise_multiplier": (1, None, 0), "hr_checkpoint_name": SAME, "hr_sampler_name": SAME,
    "hr_scheduler": SAME, "mask_blur_x": (4, None), "mask_blur_y": (4, None),
    "seed_resize_from_h": (0, -1, None), "seed_resize_from_w": (0, -1, None),
}
"""Fields that may say these, which is what they are where nothing is said."""


def translated(fields: Request, settings: Mapping[str, Any]) -> Request:
    """The request of ours that fields of txt2img or img2img mean, with the options that are set.

    Raises InputError for what is not understood.
    """
    _check_idle(fields)
    found: Request = {}
    for name, own in SAID.items():
        value = fields.get(name)
        if value is not None:
            found[own] = int(value) if name in WHOLE and isinstance(value, float) and (
                value.is_integer()) else value
    found.setdefault("prompt", "")
    found.setdefault("seed", -1)
    found |= {name: value for name, value in _walk(fields).items() if value is not None}
    found["batch_size"] = _count(fields, "batch_size") * _count(fields, "n_iter")
    if found["batch_size"] > BATCH_MAX:
        raise InputError(f"batch_size times n_iter is {found['batch_size']}; expected at most "
                         f"{BATCH_MAX}")
    if fields.get("tiling"):
        found["tiling"] = "xy"
    if fields.get("subseed_strength"):
        found |= {"variation_strength": fields["subseed_strength"],
                  "variation_seed": fields.get("subseed", -1)}
    if fields.get("enable_hr"):
        found |= _hires(fields)
    if fields.get("init_images"):
        found |= _init_image(fields)
    override = fields.get("override_settings") or {}
    if not isinstance(override, dict):
        raise InputError(f"override_settings is {override!r:.80}; expected an object")
    return {**found, **_settings({**settings, **override}, found)}


def _check_idle(fields: Request) -> None:
    """Raise InputError for a field that asks for what is not done here."""
    for name, value in fields.items():
        if name in SAID or name in READ or name in ANY:
            continue
        if name == "alwayson_scripts":
            _check_scripts(value)
        elif value not in IDLE.get(name, EMPTY):
            raise InputError(f"{name} is {value!r:.80}, which is not understood here; leave it out")
    if fields.get("enable_hr"):
        for name in ("hr_resize_x", "hr_resize_y", "hr_prompt", "hr_negative_prompt"):
            if fields.get(name) not in EMPTY:
                raise InputError(f"{name} is {fields[name]!r:.80}, which is not understood here; "
                                 f"give hr_scale, and one prompt")


def _check_scripts(scripts: object) -> None:
    """Raise InputError for a script that is to run; those that are switched off are not."""
    if not isinstance(scripts, dict | None):
        raise InputError(f"alwayson_scripts is {scripts!r:.80}; expected an object")
    for name, script in (scripts or {}).items():
        given = script.get("args") if isinstance(script, dict) else script
        first = given[0] if isinstance(given, list) and given else given
        if first not in EMPTY:
            raise InputError(f"the script {name!r:.80} is not understood here; leave it out of "
                             f"alwayson_scripts")


def _walk(fields: Request) -> Request:
    """Sampler and noise schedule. Raises InputError for an unknown one."""
    sampler = fields.get("sampler_name") or fields.get("sampler_index") or None
    scheduler = fields.get("scheduler") or None
    for what, value in (("sampler_name", sampler), ("scheduler", scheduler)):
        if not isinstance(value, str | None):
            raise InputError(f"{what} is {value!r:.80}; expected a name")
    if sampler is not None and split_label(sampler)[0] not in SAMPLERS:
        raise InputError(f"Sampler not found: {sampler!r:.80}; known: {', '.join(SAMPLERS)}")
    automatic = scheduler is not None and scheduler.lower() == "automatic"
    return {"sampler": sampler, "noise": "automatic" if automatic else scheduler}


def _count(fields: Request, name: str) -> int:
    value = fields.get(name, 1)
    if isinstance(value, bool) or not isinstance(value, int | None) or not (
            1 <= (value or 1) <= BATCH_MAX):
        raise InputError(f"{name} is {value!r:.80}; expected a whole number from 1 to {BATCH_MAX}")
    return value or 1


def _hires(fields: Request) -> Request:
    """The second pass; 0 steps are those of the first, as in A1111."""
    found = {"hires": fields.get("hr_scale", 2.0), "hires_strength":
             fields.get("denoising_strength", 0.75)}
    steps = fields.get("hr_second_pass_steps") or fields.get("steps")
    if steps is not None:
        found["hires_steps"] = steps
    upscaler = fields.get("hr_upscaler") or "Latent"
    if not isinstance(upscaler, str):
        raise InputError(f"hr_upscaler is {upscaler!r:.80}; expected a name")
    if not upscaler.startswith("Latent"):
        found["hires_upscaler"] = upscaler
    return found


def _init_image(fields: Request) -> Request:
    """What img2img begins with, and what of it is made anew."""
    images = fields["init_images"]
    if not isinstance(images, list) or len(images) != 1:
        raise InputError("init_images holds several pictures; expected one")
    mode = fields.get("resize_mode", 0)
    if mode not in (0, 1):
        raise InputError(f"resize_mode is {mode!r:.80}; expected 0, resize, or 1, crop and resize")
    fit = _cropped(fields) if mode == 1 else None
    found = {"image": _fitted(images[0], "init_images", fit),
             "strength": fields.get("denoising_strength", 0.75)}
    if fields.get("mask") is None:
        return found
    fill = fields.get("inpainting_fill", 1)
    if fill not in (0, 1, None):
        raise InputError(f"inpainting_fill is {fill!r:.80}; expected 1: what is under the mask is "
                         f"where the new picture begins, and 0 is taken for it")
    invert = ImageOps.invert if fields.get("inpainting_mask_invert") else None
    found |= {"mask": _fitted(fields["mask"], "mask", fit, invert),
              "mask_blur": fields.get("mask_blur", 4)}
    if fields.get("inpaint_full_res", True):
        found |= {"only_masked": True, "padding": fields.get("inpaint_full_res_padding", 0)}
    return found


Change = Callable[[Image.Image], Image.Image]


def _cropped(fields: Request) -> Change:
    """A picture cut to the sides that are asked for, and resized."""
    width, height = (fields.get(side, 512) for side in ("width", "height"))
    if not all(isinstance(side, int) and 1 <= side <= 4096 for side in (width, height)):
        raise InputError(f"width and height are {width!r:.40} and {height!r:.40}; expected whole "
                         f"numbers")
    return lambda shown: ImageOps.fit(shown, (width, height), Image.Resampling.LANCZOS)


def _fitted(text: object, what: str, fit: Change | None, then: Change | None = None) -> Any:
    """A picture in base64, changed where it has to be."""
    if fit is None and then is None:
        return text
    shown = picture(text, what)
    if then is not None:
        shown = then(shown.convert("L"))
    stream = io.BytesIO()
    (shown if fit is None else fit(shown)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def _settings(settings: Mapping[str, Any], found: Request) -> Request:
    """What options of the server mean for a picture."""
    own: Request = {}
    if model := settings.get("sd_model_checkpoint"):
        own["model"] = model
    if settings.get("sd_vae") not in (None, "", "Automatic", "None"):
        own["vae"] = settings["sd_vae"]
    skip = settings.get("CLIP_stop_at_last_layers", 1)
    if "clip_skip" not in found and skip != 1:
        own["clip_skip"] = skip
    source = settings.get("randn_source", "NV")
    if source not in RNGS:
        raise InputError(f"randn_source is {source!r:.80}; expected one of {', '.join(RNGS)}")
    return {**own, "rng": RNGS[source]}
