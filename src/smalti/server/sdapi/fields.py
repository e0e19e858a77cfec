"""Requests of AUTOMATIC1111's API as requests of ours: what each field means here.

A field is either a part of the picture, or it is idle: it may say what changes nothing. Whatever
else a field says is refused by name, so that no picture is silently another one than was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smalti.diffusion.kinds import WholeKind
from smalti.diffusion.options import BATCH_MAX, SIDE_MAX
from smalti.diffusion.purpose import EDIT, REFERRING
from smalti.diffusion.samplers import SAMPLERS, split_label
from smalti.errors import InputError
from smalti.server.models import MODEL, ModelFile, ModelFolders
from smalti.server.sdapi.controlnet import EMPTY, Request, control, split_scripts
from smalti.server.sdapi.files import found_file
from smalti.server.sdapi.formats import check_format
from smalti.server.sdapi.initial import init_image
from smalti.server.sdapi.styles import chosen_styles, styled, styles

SAME = (None, "", "Use same checkpoint", "Use same sampler", "Use same scheduler",
        "Use same choices")
LATENT = (None, "", "Latent")
"""Of `hr_upscaler`: latents are enlarged, bilinearly."""
RNGS = {"CPU": "cpu", "NV": "cuda", "GPU": "cuda"}
"""Of the option `randn_source`: A1111's own default is what a GPU of NVIDIA draws."""
EMPHASES = {"Original": "original", "No norm": "no norm"}
"""Of the option `emphasis`."""
CLIP_STOPS = WholeKind(1, 12)
"""Of the option `CLIP_stop_at_last_layers`, as there: the CLIP of SD 1.5 and SDXL has 12 layers."""
IDLE_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "eta_noise_seed_delta": (0, None), "token_merging_ratio": (0, None),
    "token_merging_ratio_img2img": (0, None), "token_merging_ratio_hr": (0, None),
    "img2img_color_correction": (False, None), "initial_noise_multiplier": (1, 0, None),
    "img2img_extra_noise": (0, None), "use_old_emphasis_implementation": (False, None),
    "use_old_karras_scheduler_sigmas": (False, None), "always_discard_next_to_last_sigma":
    (False, None), "skip_early_cond": (0, None), "s_min_uncond": (0, None)}
"""Options that would make other pictures, and may say these, which is that they do not."""
USUAL_IMAGE_GUIDANCE = (1.5, None)
"""Of `image_cfg_scale`, which is also what it is here where nothing is said."""
NO_MODEL = (None, "", "None", "none")
"""Of `refiner_checkpoint`, as there."""
NO_VAE = (None, "", "Automatic", "None", "Built in")
"""Of the option `sd_vae`: the model's own."""

SAID: Mapping[str, str] = {
    "prompt": "prompt", "negative_prompt": "negative_prompt", "seed": "seed", "steps": "steps",
    "cfg_scale": "guidance_scale", "width": "width", "height": "height",
    "distilled_cfg_scale": "distilled_guidance", "clip_skip": "clip_skip",
}
"""Fields that are options of ours under another name; null is the model's own default."""
WHOLE = ("seed", "steps", "width", "height", "clip_skip", "batch_size", "n_iter", "subseed",
         "hr_second_pass_steps", "hr_resize_x", "hr_resize_y", "mask_blur", "inpainting_fill",
         "inpaint_full_res_padding", "inpainting_mask_invert", "resize_mode")
"""Whole numbers, which clients also send as 20.0."""
READ = ("sampler_name", "sampler_index", "scheduler", "batch_size", "n_iter", "tiling", "subseed",
        "subseed_strength", "override_settings", "denoising_strength", "enable_hr", "hr_scale",
        "hr_upscaler", "hr_second_pass_steps", "init_images", "mask", "mask_blur",
        "inpainting_fill", "inpaint_full_res", "inpaint_full_res_padding",
        "inpainting_mask_invert", "resize_mode", "force_task_id", "styles", "alwayson_scripts",
        "lora_paths", "lora_alphas", "ref_images", "image_cfg_scale", "refiner_checkpoint",
        "refiner_switch_at")
"""Fields that the functions below read."""
ANY = ("send_images", "save_images", "do_not_save_samples", "do_not_save_grid",
       "override_settings_restore_afterwards", "include_init_images", "s_tmax", "hr_resize_x",
       "hr_resize_y", "hr_prompt", "hr_negative_prompt", "hr_sampler_name", "hr_scheduler",
       "script_args")
"""Fields that change no picture here, or that are looked at beside another one."""
IDLE: Mapping[str, tuple[Any, ...]] = {
    "eta": (0, 1, None), "s_churn": (0, None), "s_tmin": (0, None), "s_noise": (1, None),
    "initial_noise_multiplier": (1, None, 0), "hr_checkpoint_name": SAME,
    "mask_blur_x": (4, None), "mask_blur_y": (4, None),
    "seed_resize_from_h": (0, -1, None), "seed_resize_from_w": (0, -1, None),
}
"""Fields that may say these, which is what they are where nothing is said."""


def translated(fields: Request, settings: Mapping[str, Any], folders: ModelFolders) -> Request:
    """The request of ours that fields of txt2img or img2img mean, with the options that are set and
    the models that are there.

    Raises InputError for what is not understood.
    """
    _check_idle(fields)
    fields = {name: int(value) if name in WHOLE and isinstance(value, float) and (
        value.is_integer()) else value for name, value in fields.items()}
    found: Request = {own: fields[name] for name, own in SAID.items()
                      if fields.get(name) is not None}
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
        found |= _hires(fields, folders)
    found |= _refiner(fields, folders)
    if fields.get("init_images"):
        found |= init_image(fields)
    if fields.get("image_cfg_scale") not in USUAL_IMAGE_GUIDANCE:
        found["image_guidance"] = fields["image_cfg_scale"]
    override = fields.get("override_settings") or {}
    if not isinstance(override, dict):
        raise InputError(f"override_settings is {override!r:.80}; expected an object")
    found |= _settings({**settings, **override}, found, folders)
    model = _model(found, folders)
    if not model.guided:  # programs for Forge say it to all models
        found.pop("distilled_guidance", None)
    for name in ("clip_skip", "emphasis"):  # options of the server, which are for models with CLIP
        if name in model.untaken and fields.get(name) is None:
            found.pop(name, None)
    if fields.get("ref_images"):
        found |= _read(fields, model)
    found |= _styled(fields.get("styles"), found, folders)
    if loras := _loras(fields, folders):
        found["loras"] = loras
    if units := split_scripts(fields.get("alwayson_scripts")):
        size = _size(found, folders)
        found["controls"] = [control(unit, folders, size, found.get("image"), "mask" in found)
                             for unit in units]
    return found


def _check_idle(fields: Request) -> None:
    """Raise InputError for a field that asks for what is not done here."""
    for name, value in fields.items():
        if name in SAID or name in READ or name in ANY:
            continue
        if value not in IDLE.get(name, EMPTY):
            raise InputError(f"{name} is {value!r:.80}, which is not understood here; leave it out")


def _walk(fields: Request) -> Request:
    """Sampler and noise schedule. Raises InputError for an unknown one."""
    sampler = fields.get("sampler_name") or fields.get("sampler_index") or None
    scheduler = fields.get("scheduler") or None
    for what, value in (("sampler_name", sampler), ("scheduler", scheduler)):
        if not isinstance(value, str | None):
            raise InputError(f"{what} is {value!r:.80}; expected a name")
    if sampler is not None and split_label(sampler)[0] not in SAMPLERS:
        raise InputError(f"Sampler not found: {sampler!r:.80}; known: {', '.join(SAMPLERS)}")
    if scheduler is not None and scheduler.lower() == "automatic":
        named = sampler is not None and split_label(sampler)[1]  # by the sampler's old label
        scheduler = None if named else "automatic"
    return {"sampler": sampler, "noise": scheduler}


def _count(fields: Request, name: str) -> int:
    value = fields.get(name, 1)
    if isinstance(value, bool) or not isinstance(value, int | None) or not (
            1 <= (value or 1) <= BATCH_MAX):
        raise InputError(f"{name} is {value!r:.80}; expected a whole number from 1 to {BATCH_MAX}")
    return value or 1


def _hires(fields: Request, folders: ModelFolders) -> Request:
    """The second pass; 0 steps are those of the first, as in A1111."""
    for name in ("hr_prompt", "hr_negative_prompt"):
        if fields.get(name) not in (*EMPTY, fields.get(name.removeprefix("hr_"))):
            raise InputError(f"{name} is {fields[name]!r:.80}, which is not understood here; give "
                             f"one prompt for both passes")
    for name in ("hr_sampler_name", "hr_scheduler"):
        first = fields.get("sampler_name" if name == "hr_sampler_name" else "scheduler")
        if fields.get(name) not in (*SAME, first):
            raise InputError(f"{name} is {fields[name]!r:.80}, which is not understood here; both "
                             f"passes have the same one")
    found = {"hires": _factor(fields), "hires_strength": fields.get("denoising_strength", 0.75)}
    steps = fields.get("hr_second_pass_steps") or fields.get("steps")
    if steps is not None:
        found["hires_steps"] = steps
    upscaler = fields.get("hr_upscaler")
    if upscaler not in LATENT:
        found["hires_upscaler"] = found_file(folders, upscaler, "esrgan").name
    return found


def _factor(fields: Request) -> object:
    """How many times as large the second pass is: `hr_scale`, or by the size that it is to have."""
    wanted = [fields.get(name) or 0 for name in ("hr_resize_x", "hr_resize_y")]
    if wanted == [0, 0]:
        return fields.get("hr_scale", 2.0)
    given = [fields.get(name) for name in ("width", "height")]
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in wanted + given):
        raise InputError(f"hr_resize_x and hr_resize_y are {wanted[0]!r:.40} and {wanted[1]!r:.40};"
                         f" expected whole numbers, with width and height")
    factors = {large / small for large, small in zip(wanted, given, strict=True) if large and small}
    if len(factors) != 1:
        raise InputError(f"hr_resize_x is {wanted[0]} and hr_resize_y {wanted[1]}, of a picture of "
                         f"{given[0]} x {given[1]}; expected the same proportions, or hr_scale")
    return factors.pop()


def _styled(names: object, found: Request, folders: ModelFolders) -> Request:
    """Both prompts with styles."""
    if names in EMPTY:
        return {}
    added = chosen_styles(names, styles(folders.given))
    prompts = {name: styled(str(found.get(name) or ""), [getattr(each, name) for each in added])
               for name in ("prompt", "negative_prompt")}
    return {name: text for name, text in prompts.items() if text}


def _loras(fields: Request, folders: ModelFolders) -> list[Request]:
    """Adapters by their paths, as Easy Diffusion gives them beside the prompt."""
    paths, weights = fields.get("lora_paths") or [], fields.get("lora_alphas") or []
    if not isinstance(paths, list) or not isinstance(weights, list):
        raise InputError("lora_paths and lora_alphas are no lists")
    if len(weights) != len(paths):
        raise InputError(f"lora_paths holds {len(paths)} and lora_alphas {len(weights)}; expected "
                         f"a number for each")
    return [{"name": found_file(folders, path, "lora").name, "weight": weight}
            for path, weight in zip(paths, weights, strict=True)]


def _read(fields: Request, model: ModelFile) -> Request:
    """The pictures that a model for edits reads, as Easy Diffusion gives them."""
    given = fields["ref_images"]
    if model.purpose not in (EDIT, REFERRING):
        raise InputError(f"ref_images is for models that read pictures, such as FLUX.2 and FLUX.1 "
                         f"Kontext; {model.name} does not")
    if not isinstance(given, list) or len(given) > model.pictures or fields.get("init_images"):
        raise InputError(f"ref_images is {given!r:.80}; expected a list of pictures, of which "
                         f"{model.name} reads up to {model.pictures}, without init_images")
    return {"image": given if len(given) > 1 else given[0]}


def _refiner(fields: Request, folders: ModelFolders) -> Request:
    """The model that takes over the last steps, and from which share of them on."""
    name, share = fields.get("refiner_checkpoint"), fields.get("refiner_switch_at")
    if name in NO_MODEL or share == 1:
        return {}
    found = {"refiner": found_file(folders, name, MODEL).name}
    return found if share in (None, 0) else {**found, "refiner_switch": share}


def _model(found: Request, folders: ModelFolders) -> ModelFile:
    """The model that a request asks for."""
    name = found.get("model")
    return folders.recent()[0] if name is None else folders.named(name, MODEL)


def _size(found: Request, folders: ModelFolders) -> tuple[int, int]:
    """The size of the picture, as far as it is known before the model is loaded."""
    chosen = _model(found, folders)
    sides = [found.get(side) or chosen.defaults.get(side) or 0 for side in ("width", "height")]
    if not all(isinstance(side, int) and 1 <= side <= SIDE_MAX for side in sides):
        raise InputError(f"width and height are {sides[0]!r:.40} and {sides[1]!r:.40}; expected "
                         f"whole numbers from 1 to {SIDE_MAX}")
    return int(sides[0]), int(sides[1])


def check_settings(settings: Mapping[str, Any], folders: ModelFolders) -> None:
    """Raise InputError for options of the server with which no picture could be made."""
    _settings(settings, {}, folders)


def _settings(settings: Mapping[str, Any], found: Request, folders: ModelFolders) -> Request:
    """What options of the server mean for a picture. Raises InputError for what is not done here.
    """
    own: Request = {}
    for name, idle in IDLE_SETTINGS.items():
        if settings.get(name) not in idle:
            raise InputError(f"the option {name} is {settings[name]!r:.80}, which is not "
                             f"understood here; set it to {idle[0]!r}")
    check_format(settings)
    emphasis = settings.get("emphasis")
    if emphasis not in (None, "", *EMPHASES):
        raise InputError(f"the option emphasis is {emphasis!r:.80}; expected one of "
                         f"{', '.join(EMPHASES)}")
    if emphasis:
        own["emphasis"] = EMPHASES[emphasis]
    if model := settings.get("sd_model_checkpoint"):
        own["model"] = found_file(folders, model, MODEL).name
    if settings.get("sd_vae") not in NO_VAE:
        own["vae"] = found_file(folders, settings["sd_vae"], "vae").name
    for each in modules(settings.get("forge_additional_modules"), folders):
        if each.kind == "vae":
            own["vae"] = each.name
        else:
            own.setdefault("text_encoders", []).append(each.name)
    skip = settings.get("CLIP_stop_at_last_layers")
    skip = 1 if skip is None else skip
    if isinstance(skip, float) and skip.is_integer():
        skip = int(skip)
    CLIP_STOPS.checked("the option CLIP_stop_at_last_layers", skip)
    if "clip_skip" not in found and skip != 1:
        own["clip_skip"] = skip
    source = settings.get("randn_source", "NV")
    if not isinstance(source, str) or source not in RNGS:
        raise InputError(f"randn_source is {source!r:.80}; expected one of {', '.join(RNGS)}")
    return {**own, "rng": RNGS[source]}


def modules(given: object, folders: ModelFolders) -> list[ModelFile]:
    """Parts of a model that Forge calls modules: an autoencoder and text encoders, by names or by
    paths. Raises InputError for one that is not in the folders that are served."""
    if given in (None, ""):
        return []
    if not isinstance(given, list):
        raise InputError(f"forge_additional_modules is {given!r:.80}; expected a list of names or "
                         f"paths")
    return [found_file(folders, each, "vae", "text-encoder") for each in given
            if each not in NO_VAE]
