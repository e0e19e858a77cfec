"""Extras of A1111's API: pictures that are enlarged, by networks or by resizing."""

from __future__ import annotations

import threading

from PIL import Image, ImageOps

from smalti.diffusion.kinds import NumberKind, WholeKind
from smalti.diffusion.made_picture import MadePicture
from smalti.diffusion.metadata import carried
from smalti.diffusion.options import SIDE_MAX
from smalti.diffusion.upscale import FACTOR_MAX
from smalti.errors import InputError
from smalti.server.asked import as_base64, picture
from smalti.server.models import ModelFolders
from smalti.server.sdapi.controlnet import EMPTY, Request
from smalti.server.sdapi.files import found_file

RESAMPLING = {"None": None, "Lanczos": Image.Resampling.LANCZOS,
              "Nearest": Image.Resampling.NEAREST}
"""What enlarges without a network."""
USUAL_NAMES = {"R-ESRGAN 4x+": "RealESRGAN_x4plus",
               "R-ESRGAN 4x+ Anime6B": "RealESRGAN_x4plus_anime_6B",
               "R-ESRGAN General 4xV3": "realesr-general-x4v3"}
"""Files of the networks that A1111 has names of its own for."""
READ = ("resize_mode", "upscaling_resize", "upscaling_resize_w", "upscaling_resize_h",
        "upscaling_crop", "upscaler_1", "upscaler_2", "extras_upscaler_2_visibility",
        "gfpgan_visibility", "codeformer_visibility", "image", "imageList")
ANY = ("show_extras_results", "codeformer_weight", "upscale_first")
"""Fields that change nothing without faces that are restored."""
PICTURES_MAX = 64
"""Of one request: as many as of a batch."""
PIXELS_MAX = 1 << 26
"""Of a picture that is resized, 8192 x 8192: it takes a quarter of a gigabyte."""
TURN = threading.Lock()
"""One picture is resized at a time, whatever clients send at once."""


def pictures_of(fields: Request) -> list[Image.Image]:
    """The pictures of a request. Raises InputError for other things."""
    if "imageList" not in fields:
        return [picture(fields.get("image"), "image")]
    given = fields["imageList"]
    if not isinstance(given, list) or not 1 <= len(given) <= PICTURES_MAX:
        raise InputError(f"imageList is {given!r:.80}; expected a list of 1 to {PICTURES_MAX} "
                         f"pictures")
    return [picture(each.get("data") if isinstance(each, dict) else each, "imageList")
            for each in given]


def check(fields: Request) -> None:
    """Raise InputError for a field that asks for what is not done here."""
    for name, value in fields.items():
        if name not in READ and name not in ANY and value not in EMPTY:
            raise InputError(f"{name} is {value!r:.80}, which is not understood here; leave it out")
    for name in ("gfpgan_visibility", "codeformer_visibility"):
        if fields.get(name) not in EMPTY:
            raise InputError(f"{name} is {fields[name]!r:.80}; faces are not restored here; leave "
                             f"it out")
    if fields.get("upscaler_2") not in (*EMPTY, "None") and (
            fields.get("extras_upscaler_2_visibility") not in EMPTY):
        raise InputError(f"upscaler_2 is {fields['upscaler_2']!r:.80}; one upscaler is used here; "
                         f"leave it out")


def factor_of(fields: Request, size: tuple[int, int]) -> float:
    """How many times as large a picture is to be."""
    if fields.get("resize_mode", 0) in (0, None):
        return NumberKind(0, FACTOR_MAX, above=True).checked(
            "upscaling_resize", fields.get("upscaling_resize", 2))
    if fields["resize_mode"] != 1:
        raise InputError(f"resize_mode is {fields['resize_mode']!r:.80}; expected 0, by "
                         f"upscaling_resize, or 1, to upscaling_resize_w and upscaling_resize_h")
    shares = [wanted / given for wanted, given in zip(_target(fields), size, strict=True)]
    return max(shares) if fields.get("upscaling_crop", True) else min(shares)


def _target(fields: Request) -> list[int]:
    return [WholeKind(1, 4 * SIDE_MAX).checked(name, fields.get(name, 512))
            for name in ("upscaling_resize_w", "upscaling_resize_h")]


def network(fields: Request, folders: ModelFolders) -> str | None:
    """The name of the network that is to enlarge; None where none is."""
    name = fields.get("upscaler_1")
    if _resampling(name) in RESAMPLING:
        return None
    return found_file(folders, USUAL_NAMES.get(str(name), name), "esrgan").name


def _resampling(name: object) -> str:
    """What RESAMPLING calls it: Easy Diffusion writes names small, and nothing is None."""
    return str(name or "None").capitalize()


def upscaling(shown: Image.Image, name: str, factor: float) -> Request:
    """The request of ours that enlarges a picture, which keeps its settings."""
    text = carried(shown)
    return {"upscaler": name, "factor": min(factor, FACTOR_MAX),
            "image": as_base64(MadePicture.of(shown, text) if text else shown)}


def resampled(shown: Image.Image, fields: Request, factor: float) -> Image.Image:
    """A picture that is enlarged without a network."""
    how = RESAMPLING[_resampling(fields.get("upscaler_1"))]
    if how is None:
        return shown
    width, height = (max(1, round(extent * factor)) for extent in shown.size)
    if width * height > PIXELS_MAX:
        raise InputError(f"a picture of {shown.width} x {shown.height} would become one of more "
                         f"than {PIXELS_MAX >> 20} million pixels")
    with TURN:
        return shown.resize((width, height), how)


def cropped(shown: Image.Image, fields: Request) -> Image.Image:
    """A picture cut to the size that is asked for, where one is."""
    if fields.get("resize_mode") == 1 and fields.get("upscaling_crop", True) and (
            fields.get("upscaler_1") not in (None, "None")):
        width, height = _target(fields)
        return ImageOps.fit(shown, (width, height))
    return shown

