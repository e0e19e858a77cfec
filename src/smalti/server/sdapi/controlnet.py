"""Units of ControlNet's extension, as A1111 and Forge take them in `alwayson_scripts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from smalti.diffusion.images import opaque
from smalti.diffusion.options import SIDE_MAX
from smalti.errors import InputError
from smalti.server.asked import CONTROLS_MAX, as_base64, picture
from smalti.server.models import ModelFile, ModelFolders
from smalti.server.sdapi.detect import detected, preprocessor
from smalti.server.sdapi.files import found_file

Request = dict[str, Any]
SCRIPTS = ("controlnet", "sd_forge_controlnet", "controlnet for forge")
"""What the script is called, in small letters."""
EMPTY: tuple[Any, ...] = (None, False, 0, -1, "", [], {})
"""What says nothing."""
READ = ("image", "input_image", "mask", "mask_image", "module", "model", "weight", "resize_mode",
        "processor_res", "threshold_a", "threshold_b", "guidance_start", "guidance_end",
        "control_mode", "pixel_perfect", "hr_option", "enabled")
ANY = ("low_vram", "lowvram", "save_detected_map", "is_ui", "use_preview_as_input",
       "inpaint_crop_input_image")
"""Keys that change no picture here."""
IDLE: Mapping[str, tuple[Any, ...]] = {
    "union_control_type": (*EMPTY, "Unknown"), "input_mode": (*EMPTY, "simple", "Simple"),
    "pulid_mode": (*EMPTY, "Fidelity")}
"""Keys that may say these, which is what they are where nothing is said."""
STRETCH, CROP, FILL = "Just Resize", "Crop and Resize", "Resize and Fill"
RESIZE = {
    0: STRETCH, 1: CROP, 2: FILL, 3: STRETCH, None: CROP, STRETCH: STRETCH, CROP: CROP, FILL: FILL,
    "Scale to Fit (Inner Fit)": CROP, "Inner Fit (Scale to Fit)": CROP,
    "Envelope (Outer Fit)": FILL, "Outer Fit (Shrink to Fit)": FILL}
"""How a picture of other proportions is fitted, by the names of several versions."""
FILLING = ("none", "inpaint_global_harmonious")
"""Modules with which a picture may have parts that are to be filled."""
BALANCED = (None, 0, "Balanced")
BOTH = (None, 0, "Both")


def split_scripts(scripts: object) -> list[Request]:
    """The units that are switched on. Raises InputError for other scripts that are to run."""
    if not isinstance(scripts, dict | None):
        raise InputError(f"alwayson_scripts is {scripts!r:.80}; expected an object")
    units: list[Request] = []
    for name, script in (scripts or {}).items():
        given = script.get("args") if isinstance(script, dict) else script
        if name.lower() in SCRIPTS:
            units += _units(given)
            continue
        first = given[0] if isinstance(given, list) and given else given
        if first not in EMPTY:
            raise InputError(f"the script {name!r:.80} is not understood here; leave it out of "
                             f"alwayson_scripts")
    if len(units) > CONTROLS_MAX:
        raise InputError(f"{len(units)} units of ControlNet are switched on; expected at most "
                         f"{CONTROLS_MAX}")
    return units


def _units(given: object) -> list[Request]:
    """Those of a list of units that are switched on."""
    found = []
    for unit in given if isinstance(given, list) else [given]:
        if unit in EMPTY:
            continue
        if not isinstance(unit, dict):
            raise InputError(f"a unit of ControlNet is {unit!r:.80}; expected an object such as "
                             f'{{"model": ..., "image": ...}}')
        if unit.get("enabled", True):
            found.append(unit)
    return found


def control(unit: Request, folders: ModelFolders, size: tuple[int, int],
            init_image: object = None, masked: bool = False) -> Request:
    """The ControlNet of a request that a unit means, for a picture of this size.

    Without an image of its own it reads the `init_image`; one that fills parts of pictures reads
    that as it is changed where it is `masked`. Raises InputError for what is not understood.
    """
    _check(unit)
    model = unit.get("model")
    if model in EMPTY or str(model).lower() == "none":
        raise InputError("a unit of ControlNet has no model; give the name of one, or switch the "
                         "unit off")
    file, module = found_file(folders, model, "controlnet"), preprocessor(unit.get("module"))
    given, mask = _image(unit)
    filling = file.fills and module in FILLING
    if not given and masked and filling and mask is None:
        return {"model": file.name, **_numbers(unit)}
    given = given or init_image
    if not given:
        raise InputError("a unit of ControlNet has no image; give one in base64")
    shown = picture(given, "the image of a unit of ControlNet")
    if mask is not None and module not in FILLING:
        raise InputError(f"a unit of ControlNet has a mask and the module {module}; with a mask "
                         f"there are {' and '.join(FILLING)}")
    shown = _holed(shown, mask, file) if filling or mask is not None else opaque(shown)
    how = RESIZE[unit.get("resize_mode")]
    resolution = unit.get("processor_res", -1)
    if unit.get("pixel_perfect"):
        resolution = perfect_resolution(shown.size, size, how)
    made = detected(shown, module, resolution, unit.get("threshold_a", -1),
                    unit.get("threshold_b", -1))
    if shown.mode == "RGBA":
        made.putalpha(shown.getchannel("A").resize(made.size))
    return {"model": file.name, "picture": as_base64(fitted(made, how, size)), **_numbers(unit)}


def _numbers(unit: Request) -> Request:
    """How much a unit counts, and when."""
    found: Request = {}
    for name, own in (("weight", "strength"), ("guidance_start", "start"),
                      ("guidance_end", "end")):
        if unit.get(name) is not None:
            found[own] = unit[name]
    return found


def _check(unit: Request) -> None:
    """Raise InputError for a key that asks for what is not done here."""
    for name, value in unit.items():
        if name not in READ and name not in ANY and value not in IDLE.get(name, EMPTY):
            raise InputError(f"{name} of a unit of ControlNet is {value!r:.80}, which is not "
                             f"understood here; leave it out")
    for name, known in (("resize_mode", RESIZE), ("control_mode", BALANCED), ("hr_option", BOTH)):
        value = unit.get(name)
        if not isinstance(value, int | str | None) or value not in known:
            raise InputError(f"{name} of a unit of ControlNet is {value!r:.80}; expected one of "
                             f"{', '.join(str(each) for each in known if each is not None)}")


def _image(unit: Request) -> tuple[object, Image.Image | None]:
    """The image of a unit, which may have a mask beside it, and that. Raises InputError for two."""
    given = unit.get("image") or unit.get("input_image")
    beside = given.get("mask") if isinstance(given, dict) else None
    masks = [each for each in (beside, unit.get("mask"), unit.get("mask_image"))
             if each not in EMPTY]
    if len(masks) > 1:
        raise InputError("a unit of ControlNet has two masks; expected one")
    mask = picture(masks[0], "the mask of a unit of ControlNet").convert("L") if masks else None
    if mask is not None and mask.getbbox() is None:  # as programs send one that nobody has drawn
        mask = None
    return given.get("image") if isinstance(given, dict) else given, mask


def _holed(shown: Image.Image, mask: Image.Image | None, file: ModelFile) -> Image.Image:
    """An image that is transparent where its mask is white, or as it is without one. Raises
    InputError for a ControlNet that fills nothing."""
    if not file.fills:
        raise InputError(f"a unit of ControlNet has a mask, and {file.name} fills no parts of "
                         f"pictures; leave the mask out, or take one that does, such as one with "
                         f"inpaint in its name")
    if mask is None:
        return shown.convert("RGBA") if shown.has_transparency_data else opaque(shown)
    found = opaque(shown)
    found.putalpha(ImageOps.invert(mask.resize(found.size)))
    return found


def perfect_resolution(picture: tuple[int, int], size: tuple[int, int], how: str) -> int:
    """The pixels of the shorter side at which a picture has those of the one that is made.

    >>> perfect_resolution((100, 50), (512, 512), CROP), perfect_resolution(
    ...     (100, 50), (512, 512), FILL)
    (512, 256)
    """
    shares = [wanted / given for wanted, given in zip(size, picture, strict=True)]
    share = min(shares) if how == FILL else max(shares)
    return max(64, min(2048, round(share * min(picture))))


def fitted(shown: Image.Image, how: str, size: tuple[int, int]) -> Image.Image:
    """A picture in the proportions of a size: cut, or filled with the colour of its border; how
    many pixels it has is another matter.

    >>> shown = Image.new("RGB", (8, 4))
    >>> [fitted(shown, how, (16, 16)).size for how in (STRETCH, CROP, FILL)]
    [(8, 4), (4, 4), (8, 8)]
    """
    width, height = shown.size
    ratio = size[0] / size[1]
    if how == CROP:
        cut = (min(width, max(1, round(height * ratio))), min(height, max(1, round(width / ratio))))
        return ImageOps.fit(shown, cut)
    if how == FILL:
        pixels = np.asarray(shown.convert("RGB"))
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        red, green, blue = (int(each) for each in np.median(border, axis=0))
        padded = (max(width, height * ratio), max(height, width / ratio))
        share = min(1.0, SIDE_MAX / max(padded))
        color = (red, green, blue, 255)[:len(shown.getbands())]
        return ImageOps.pad(shown, (max(1, round(padded[0] * share)),
                                    max(1, round(padded[1] * share))), color=color)
    return shown
