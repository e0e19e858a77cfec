"""Requests of OpenAI's API as requests of ours."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from PIL import Image, ImageChops

from smalti.dataclass import dataclass
from smalti.diffusion.options import ALIASES, OPTIONS, PICTURES_MAX, SIDE_MAX
from smalti.errors import InputError
from smalti.server.asked import LOADED, as_base64, picture
from smalti.server.models import MODEL, ModelFile, ModelFolders
from smalti.server.openai.multipart import FormField
from smalti.server.openai.problems import RefusedError

COUNT_MAX = 10
PARTIAL_MAX = 3
"""Pictures of one request, and what is shown of one before it is done, as OpenAI has it."""
SIZE = re.compile(r"(\d{1,5})x(\d{1,5})", re.ASCII)
FORMATS = ("png", "webp", "jpeg")
QUALITIES = {"auto": 1.0, "low": 0.5, "medium": 1.0, "standard": 1.0, "high": 1.5, "hd": 1.5,
             "xhigh": 2.0, "max": 2.0}
"""How many steps are done, in times of the model's own."""
SHOWN_QUALITIES = {"auto": "medium", "standard": "medium", "hd": "high"}
"""What is answered for names that answers do not know."""
CHOICES: Mapping[str, Sequence[str]] = {
    "quality": tuple(QUALITIES), "output_format": FORMATS, "response_format": ("b64_json", "url"),
    "background": ("auto", "opaque"), "moderation": ("auto", "low")}
USUAL = {"quality": "auto", "output_format": "png", "response_format": "b64_json",
         "background": "auto", "moderation": "auto"}
WHOLE = {"n": (1, COUNT_MAX), "partial_images": (0, PARTIAL_MAX), "output_compression": (0, 100)}
NAMES = {"cfg_scale": "guidance_scale", "scheduler": "noise", "lora": "loras",
         "sampler_name": "sampler"}
"""Options of ours by names that other servers of this API know."""
OWN = ({*OPTIONS, *ALIASES, *LOADED, *NAMES} - {
    "prompt", "model", "batch_size", "num_images_per_prompt", "image", "mask", "mask_image"})
"""Options of ours that a request may say besides."""
ANY = ("user", "safety_identifier")
"""Fields that tell who asks, which nothing is done with."""
EDITED = ("image", "images", "mask")


@dataclass(frozen=True)
class AskedPictures:
    """What a request asks for: a `request` of ours, and how it is to be answered."""

    request: dict[str, Any]
    model: ModelFile
    edits: bool = False
    stream: bool = False
    numbers: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int] | None:
        """The size of the picture, where it is known before it is made."""
        own = {} if self.edits else self.model.defaults
        width, height = (self.request.get(side) or own.get(side) for side in ("width", "height"))
        return (int(width), int(height)) if width and height else None


def wanted(fields: Mapping[str, Any], folders: ModelFolders, edits: bool) -> AskedPictures:
    """What fields ask for. Raises RefusedError for what is not understood, by its name."""
    said = {name: value for name, value in fields.items() if value is not None}
    known = {"prompt", "model", "size", "stream", *CHOICES, *WHOLE, *OWN, *ANY}
    for name in said:
        if name not in known and not (edits and name in EDITED):
            raise RefusedError(f"Unknown parameter: {name!r:.80}.", name, "unknown_parameter")
    if not isinstance(said.get("prompt"), str):
        raise RefusedError("Missing required parameter: 'prompt'." if "prompt" not in said else
                           "prompt is no text", "prompt", "missing_required_parameter"
                           if "prompt" not in said else "invalid_type")
    names = {name: _choice(name, said.get(name, USUAL[name])) for name in CHOICES}
    numbers = {name: _whole(name, said[name]) for name in WHOLE if name in said}
    if "output_compression" in numbers and names["output_format"] == "png":
        raise RefusedError("output_compression is for the formats webp and jpeg; leave it out",
                           "output_compression")
    stream = said.get("stream", False)
    if not isinstance(stream, bool):
        raise RefusedError(f"stream is {stream!r:.80}; expected true or false", "stream")
    model = _model(said.get("model"), folders)
    request = {"prompt": said["prompt"], "model": model.name, "seed": -1,
               "batch_size": numbers.get("n", 1), **_size(said.get("size")),
               **{NAMES.get(name, name): said[name] for name in said if name in OWN}}
    factor = QUALITIES[names["quality"]]
    if factor != 1 and not {"steps", "num_inference_steps"} & said.keys():
        request["steps"] = max(1, round(factor * float(model.defaults["steps"])))
    if edits:
        request = {**_edited(said), **request}
    return AskedPictures(request, model, edits, stream, numbers, names)


def _choice(name: str, value: object) -> str:
    if value not in CHOICES[name]:
        raise RefusedError(f"Invalid value: {value!r:.80}. {name} is one of "
                           f"{', '.join(CHOICES[name])} here.", name)
    return str(value)


def _whole(name: str, value: object) -> int:
    low, high = WHOLE[name]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RefusedError(f"Invalid value: {value!r:.80}. {name} is a whole number from {low} to "
                           f"{high}.", name)
    return value


def _size(value: object) -> dict[str, int]:
    """Width and height of a size; none of them for the model's own."""
    if value is None or value == "auto":
        return {}
    found = SIZE.fullmatch(value) if isinstance(value, str) else None
    sides = [int(each) for each in found.groups()] if found else []
    if not sides or not all(1 <= side <= SIDE_MAX for side in sides):
        raise RefusedError(f"Invalid value: {value!r:.80}. size is auto or WIDTHxHEIGHT, such as "
                           f"512x512, of at most {SIDE_MAX} each.", "size")
    return {"width": sides[0], "height": sides[1]}


def _model(name: object, folders: ModelFolders) -> ModelFile:
    if name is None:
        return folders.all()[0]
    try:
        found = folders.named(name, MODEL)
    except InputError as error:
        raise RefusedError(f"The model {name!r:.200} does not exist: {error}", "model",
                           "model_not_found", 404) from None
    if not found.usable:
        raise RefusedError(f"The model {name!r:.200} cannot be used as it is: {found.problem}.",
                           "model")
    return found


def _edited(said: Mapping[str, Any]) -> dict[str, Any]:
    """The picture that is changed, and where: everywhere, or where a mask is transparent."""
    given = said.get("images", said.get("image"))
    pictures = given if isinstance(given, list) else [given]
    if given is None or not pictures:
        raise RefusedError("Missing required parameter: 'image'.", "image",
                           "missing_required_parameter")
    if len(pictures) > PICTURES_MAX:
        raise RefusedError(f"image holds {len(pictures)} pictures; expected at most "
                           f"{PICTURES_MAX}", "image")
    read = [as_base64(_picture(each, "image")) for each in pictures]
    found: dict[str, Any] = {"image": read if len(read) > 1 else read[0]}
    if said.get("mask") is not None:
        found["mask"] = as_base64(_mask(_picture(said["mask"], "mask")))
        found["strength"] = 1.0
    return found


def _picture(given: object, what: str) -> Image.Image:
    """A picture: the bytes of a form, or text in base64 as JSON has it."""
    if isinstance(given, dict):
        if "image_url" not in given:
            raise RefusedError(f"{what} is given by {', '.join(given) or 'nothing'}; expected "
                               f"image_url with a data: URL; files are not kept here", what)
        given = given["image_url"]
    text = base64.b64encode(given).decode() if isinstance(given, bytes) else given
    try:
        return picture(text, what)
    except InputError as error:
        raise RefusedError(str(error), what, "invalid_image_file") from None


def _mask(shown: Image.Image) -> Image.Image:
    """White where a mask is transparent."""
    alpha = shown.convert("RGBA").getchannel("A")
    if alpha.getextrema()[0] == 255:
        raise RefusedError("mask has no transparent pixels; what is transparent is made anew",
                           "mask", "invalid_image_file")
    return ImageChops.invert(alpha)


def of_form(found: Sequence[FormField]) -> dict[str, Any]:
    """The fields of a form; of pictures their bytes. Raises RefusedError for one that is there
    twice, but for pictures.

    >>> of_form([FormField("n", b"2", False), FormField("prompt", b"2", False)])
    {'n': 2, 'prompt': '2'}
    """
    fields: dict[str, Any] = {}
    for each in found:
        name = each.name.removesuffix("[]")
        if each.is_file:
            value: Any = each.content
        else:
            value = _value(name, each.content.decode("utf-8", "replace"))
        if name == "image" and each.is_file and isinstance(fields.setdefault(name, []), list):
            fields[name].append(value)
        elif name in fields:
            raise RefusedError(f"{name} is there twice", name)
        else:
            fields[name] = value
    return fields


def _value(name: str, text: str) -> Any:
    """What a field of a form says, which is all text there."""
    if name in ("prompt", "negative_prompt", "model", "user", "safety_identifier", *CHOICES):
        return text
    try:
        return json.loads(text, parse_constant=float)
    except (ValueError, RecursionError):
        return text
