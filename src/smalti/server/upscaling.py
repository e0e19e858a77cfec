"""Jobs that enlarge a picture: a request with an `upscaler`, in the same queue as all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from smalti.dataclass import dataclass
from smalti.diffusion.keywords import check_known
from smalti.diffusion.kinds import NumberKind
from smalti.diffusion.made_picture import MadePicture
from smalti.diffusion.metadata import carried, parse
from smalti.diffusion.upscale import FACTOR_MAX, Upscaler
from smalti.errors import InputError
from smalti.server.asked import Asked, opened, picture
from smalti.server.messages import MadeWith
from smalti.server.models import ModelFile, ModelFolders

FACTOR = NumberKind(0, FACTOR_MAX, above=True)
UPSCALING: dict[str, Any] = {
    "title": "Upscaling", "type": "object", "additionalProperties": False,
    "required": ["upscaler", "image"], "properties": {
        "upscaler": {"type": "string", "description": "The name of a network that enlarges."},
        "image": {"type": "string", "contentEncoding": "base64"},
        "factor": {**FACTOR.schema(), "description": "How many times as large; default: the "
                                                     "network's own."},
        "device": {"type": "string", "description": "The id of a device that this server works "
                                                    "on; default: any of them."}}}
"""Such a request as JSON Schema."""


@dataclass(frozen=True)
class AskedUpscaling:
    """A picture that is to be enlarged by a network, `factor` times or as the network does."""

    picture: Image.Image
    upscaler: ModelFile
    factor: float | None
    device: str | None


@dataclass(frozen=True)
class Enlarged:
    """What became of it, as the gallery keeps the result of a pipeline: one picture, with the
    settings that it had, and known by the network that enlarged it."""

    parameters: MadeWith
    images: list[Image.Image]
    seeds: list[int]
    texts: list[str]


def opened_any(request: Mapping[str, Any], folders: ModelFolders) -> Asked | AskedUpscaling:
    """What a request asks for: a picture that is made, or one that is enlarged."""
    return (opened_upscaling if "upscaler" in request else opened)(request, folders)


def opened_upscaling(request: Mapping[str, Any], folders: ModelFolders) -> AskedUpscaling:
    """What such a request asks for. Raises InputError for what cannot be."""
    check_known(request, list(UPSCALING["properties"]))
    factor, device = request.get("factor"), request.get("device")
    if device is not None and not isinstance(device, str):
        raise InputError(f"device is {device!r:.80}; expected the id of a device")
    return AskedUpscaling(
        picture(request.get("image"), "image"), folders.named(request["upscaler"], "esrgan"),
        None if factor is None else FACTOR.checked("factor", factor), device)


def enlarged(asked: AskedUpscaling, upscaler: Upscaler,
             tell: Callable[[int, int], None]) -> Enlarged:
    """The picture of a request, enlarged; `tell` hears which tile of how many is next."""
    upscaler.at_tile = tell
    text = carried(asked.picture)
    image = upscaler(asked.picture, asked.factor)
    known = parse(text)
    if text:
        share = image.width / asked.picture.width
        text = f"{text}, Postprocess upscale by: {share:g}, Postprocess upscaler: {upscaler.name}"
        image = MadePicture.of(image, text)
    seed = known.pairs.get("Seed", "0")
    return Enlarged(MadeWith(upscaler.name, known.prompt), [image],
                    [int(seed) if seed.isascii() and seed.isdigit() else 0], [text])
