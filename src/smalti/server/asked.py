"""What a request asks for: the options of a picture, by their record, and files by their names.

A request is an object of JSON: any field of `PictureOptions`, with pictures in base64 and networks
by the names that `ModelFolders` knows them by, and what is loaded for it (`LOADED`). Whatever else
it says is refused by name.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from smalti.dataclass import dataclass
from smalti.diffusion.control import Control
from smalti.diffusion.edges import HIGH, LOW
from smalti.diffusion.guidance import Projected
from smalti.diffusion.keywords import check_known
from smalti.diffusion.kinds import NumberKind, WholeKind
from smalti.diffusion.made_picture import PNG_PACKING
from smalti.diffusion.options import (
    ALIASES,
    KIN,
    OPTIONS,
    PICTURE_NAMES,
    PICTURES_MAX,
    SEVERAL_PICTURES,
    SIDE_MAX,
    PictureOptions,
)
from smalti.errors import InputError
from smalti.families.controls import misfit
from smalti.models.denoiser_config import DenoiserConfig
from smalti.server.models import MODEL, TEXT_ENCODER, VAE, ModelFile, ModelFolders

PROMPT_CHARACTERS_MAX = 32_000
"""What OpenAI's API takes; a prompt of a thousand words has 6,000."""
INPUT_PIXELS_MAX = SIDE_MAX * SIDE_MAX
"""Of a picture that is given: as large as the largest that is made."""
INPUT_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Of pictures that are given. Others have decoders that few use, and so fewer have looked at."""
WORK_MAX = 1 << 36
"""Pixels times steps times pictures of a job: 64 pictures of 1024 x 1024 in 1000 steps, or a day's
work. None are taken as they usually are."""
USUAL_SIDE, USUAL_STEPS = 1024, 50  # what counts where the model's own are meant
LORAS_MAX = 32
"""Adapters of a picture: each is read into memory."""
CONTROLS_MAX = 10
"""ControlNets of a picture: the most that A1111's extension may be set to."""
WEIGHT = NumberKind(-100, 100)
SHARE = NumberKind(0, 1)

NAME = {"type": "string"}
LOADED: Mapping[str, dict[str, Any]] = {
    "model": {**NAME, "description": "The name of a model; default: the one that ships."},
    "vae": {**NAME, "description": "The name of an autoencoder, instead of the model's own, or of "
                                   "the one in the folders that fits a model without."},
    "text_encoders": {"type": "array", "items": NAME, "maxItems": 4, "description":
                      "Names of text encoders, instead of the model's own, or of those in the "
                      "folders that fit a model without."},
    "refiner": {**NAME, "description": "The name of a model that takes over the last steps, such "
                                       "as the refiner of SDXL; refiner_switch says when."},
    "loras": {"type": "array", "maxItems": LORAS_MAX, "description": "Adapters.", "items": {
        "type": "object", "required": ["name"], "additionalProperties": False, "properties": {
            "name": NAME, "weight": {**WEIGHT.schema(), "default": 1.0},
            "text_weight": WEIGHT.schema()}}},
    "device": {**NAME, "description": "The id of a device that this server works on; default: any "
                                      "of them."},
}
"""What a request says beside the options of the picture, as JSON Schema."""
CONTROL: dict[str, Any] = {
    "type": "object", "required": ["model"], "additionalProperties": False,
    "properties": {
        "model": {**NAME, "description": "The name of a ControlNet."},
        "picture": {"type": "string", "contentEncoding": "base64", "description":
                    "What it reads; default: the picture that is changed. What is transparent in "
                    "it, or masked in that, is filled by a ControlNet that does so."},
        "strength": {**NumberKind(0, 100).schema(), "default": 1.0},
        "start": {**SHARE.schema(), "default": 0.0}, "end": {**SHARE.schema(), "default": 1.0},
        "edges": {"type": "boolean", "default": False,
                  "description": "Read the edges of the picture, not the picture."}}}


@dataclass(frozen=True)
class Asked:
    """A request with everything that it names: options, and the files to load."""

    options: PictureOptions
    model: ModelFile
    vae: ModelFile | None
    text_encoders: tuple[ModelFile, ...]
    refiner: ModelFile | None
    loras: tuple[tuple[ModelFile, float, float | None], ...]
    device: str | None

    @property
    def loading(self) -> tuple[Path | None, ...]:
        """The files of the model and its parts."""
        return (self.model.path, *(None if each is None else each.path for each in (
            self.vae, self.refiner, *self.text_encoders)))


def request_schema() -> dict[str, Any]:
    """All that a request may say, as JSON Schema, made of the record of options."""
    found = PictureOptions.schema()
    properties = {**found["properties"], **LOADED}
    properties["prompt"] = {**properties["prompt"], "maxLength": PROMPT_CHARACTERS_MAX}
    properties["refiner_switch"] = {**properties["refiner_switch"], "needs": ["refiner"]}
    properties["controls"] = {**properties["controls"], "items": CONTROL, "maxItems": CONTROLS_MAX}
    return {**found, "title": "Request", "properties": properties}


def opened(request: Mapping[str, Any], folders: ModelFolders) -> Asked:
    """What a request asks for. Raises InputError for whatever it says that cannot be."""
    own = {name: value for name, value in request.items() if name not in LOADED}
    for name in own:
        check_known([name], [*OPTIONS, *ALIASES, *LOADED], KIN)
    options = {ALIASES.get(name, name): value for name, value in own.items()}
    if len(options) < len(own):
        raise InputError("an option is given twice, by two of its names")
    options = {name: value for name, value in options.items()
               if value is not None or OPTIONS[name].default is None}
    _check_types(options)
    for name in PICTURE_NAMES:
        value = options.get(name)
        if isinstance(value, list) and name in SEVERAL_PICTURES:
            options[name] = [picture(each, name) for each in _list(name, value, PICTURES_MAX)]
        elif value is not None:
            options[name] = picture(value, name)
    if options.get("hires_upscaler") is not None:
        options["hires_upscaler"] = folders.named(options["hires_upscaler"], "esrgan").path
    if options.get("controls"):
        options["controls"] = _controls(options["controls"], folders)
    made = PictureOptions.of(**options)
    _check_work(made)
    vae, device = request.get("vae"), request.get("device")
    if device is not None and not isinstance(device, str):
        raise InputError(f"device is {device!r:.80}; expected the id of a device")
    named = request.get("model")
    model = folders.recent()[0] if named is None else folders.named(named, MODEL)
    encoders = _list("text_encoders", request.get("text_encoders"), 4)
    if not model.usable and vae is None and not encoders:
        raise InputError(f"{model.name} cannot be used as it is: {model.problem}")
    _check_controls(made, model)
    if vae is None and model.vae:
        vae = model.vae
    refiner = request.get("refiner")
    return Asked(
        made, model, None if vae is None else folders.named(vae, VAE),
        tuple(folders.named(each, TEXT_ENCODER) for each in [*model.text_encoders, *encoders]),
        None if refiner is None else folders.named(refiner, MODEL),
        tuple(_lora(each, folders) for each in _list("loras", request.get("loras"), LORAS_MAX)),
        device)


def _check_types(options: Mapping[str, Any]) -> None:
    """Raise InputError for values of another kind, those too that a model decides about later."""
    for name, value in options.items():
        if OPTIONS[name].later and value is not None:
            OPTIONS[name].checked(value)
    for name in ("prompt", "negative_prompt"):
        if isinstance(text := options.get(name), str) and len(text) > PROMPT_CHARACTERS_MAX:
            raise InputError(f"{name} has {len(text)} characters; expected at most "
                             f"{PROMPT_CHARACTERS_MAX}")


def _check_work(options: PictureOptions) -> None:
    """Raise InputError for more work than one job may be."""
    pixels = (options.width or USUAL_SIDE) * (options.height or USUAL_SIDE)
    work = pixels * (options.steps or USUAL_STEPS) * options.batch_size
    passes = 1.0 if options.hires is None else 1 + options.hires ** 2
    if work * passes > WORK_MAX:
        raise InputError(f"{pixels} pixels, {options.steps or USUAL_STEPS} steps and a batch of "
                         f"{options.batch_size} are {work * passes / WORK_MAX:.1f} times what one "
                         f"job may be; ask for several jobs")


def picture(text: object, what: str) -> Image.Image:
    """A picture of base64, with or without `data:image/png;base64,` before it.

    What it is, is seen before it is decoded. Raises InputError.
    """
    shown = read_picture(text, what)
    if shown.width * shown.height > INPUT_PIXELS_MAX:
        raise InputError(f"{what} has {shown.width} x {shown.height} pixels; expected at most "
                         f"{INPUT_PIXELS_MAX} of them")
    try:
        shown.load()
        return ImageOps.exif_transpose(shown)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{what} cannot be read as a picture: {error}") from None


def read_picture(text: object, what: str) -> Image.Image:
    """A picture of base64 whose pixels are not decoded yet. Raises InputError."""
    if not isinstance(text, str):
        raise InputError(f"{what} is {text!r:.40}; expected a picture in base64")
    if text[:5].lower() == "data:":
        text = text.partition(",")[2]
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        raise InputError(f"{what} is {text!r:.40}; expected a picture in base64; addresses and "
                         f"paths are not read") from None
    try:
        return Image.open(io.BytesIO(content), formats=INPUT_FORMATS)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise InputError(f"{what} is no picture that is read; expected one of "
                         f"{', '.join(INPUT_FORMATS)}") from None


def as_base64(shown: Image.Image) -> str:
    """A picture as a request gives it: PNG in base64."""
    stream = io.BytesIO()
    shown.save(stream, "PNG", **PNG_PACKING)
    return base64.b64encode(stream.getvalue()).decode()


def _list(what: str, given: object, most: int) -> list[Any]:
    """A list of JSON, empty where nothing is given."""
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > most:
        raise InputError(f"{what} is {given!r:.80}; expected a list of at most {most}")
    return given


def _fields(what: str, given: object, schema: Mapping[str, Any]) -> dict[str, Any]:
    """An object of JSON that has the fields of a schema, and no other."""
    if not isinstance(given, dict):
        raise InputError(f"{what} holds {given!r:.80}; expected an object with "
                         f"{', '.join(schema['properties'])}")
    check_known(given, list(schema["properties"]))
    for name in schema["required"]:
        if name not in given:
            raise InputError(f"{what} has no {name}")
    return given


def _lora(given: object, folders: ModelFolders) -> tuple[ModelFile, float, float | None]:
    found = _fields("loras", given, LOADED["loras"]["items"])
    text_weight = found.get("text_weight")
    return (folders.named(found["name"], "lora"),
            WEIGHT.checked("the weight of an adapter", found.get("weight", 1.0)),
            None if text_weight is None else WEIGHT.checked("its text_weight", text_weight))


def _controls(given: object, folders: ModelFolders) -> list[Control]:
    """The ControlNets of a request, opened."""
    found = []
    for each in _list("controls", given, CONTROLS_MAX):
        said = _fields("controls", each, CONTROL)
        numbers = {name: SHARE.checked(f"{name} of a ControlNet", said[name])
                   for name in ("start", "end") if name in said}
        strength = NumberKind(0, 100).checked("its strength", said.get("strength", 1.0))
        edges = said.get("edges", False)
        if not isinstance(edges, bool):
            raise InputError(f"edges is {edges!r:.80}; expected true or false")
        found.append(Control.load(
            folders.named(said["model"], "controlnet").path,
            picture(said["picture"], "the picture of a ControlNet") if "picture" in said else None,
            strength=strength,
            edges=(LOW, HIGH) if edges else None, **numbers))
    return found


def _check_controls(options: PictureOptions, model: ModelFile) -> None:
    """Raise InputError for a ControlNet that is for another model, or that has no picture, before
    the job is queued."""
    for use in options.controls:
        if options.image is None:
            use.shown(None)
        if isinstance(model.network, DenoiserConfig) \
                and (why := misfit(use.net.config, model.network)):
            raise InputError(f"{Path(use.net.path).name} {why}; the ControlNets that fit "
                             f"{model.name}: {', '.join(model.controls) or 'none'}")


def whole(what: str, text: str, low: int, high: int) -> int:
    """A whole number that stands in an address, such as a place or an id. Raises InputError."""
    digits = len(str(high))
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= digits else text
    return WholeKind(low, high).checked(what, number)


def as_json(value: Any) -> Any:
    """A value of an option as JSON has it.

    >>> as_json((0.0, 0.8)), as_json(Projected(0.0, 2.5, -0.5))
    ([0.0, 0.8], [0.0, 2.5, -0.5])
    """
    if isinstance(value, Projected):
        return [value.along, value.norm_max, value.momentum]
    return list(value) if isinstance(value, tuple) else value
