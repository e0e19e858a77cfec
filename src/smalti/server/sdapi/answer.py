"""What is answered when a job of the web UI's API has ended: pictures, and how they came about."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

from PIL import Image
from starlette.responses import JSONResponse, Response

from smalti.diffusion.metadata import parse
from smalti.server.archive import CANCELLED, DONE, JobRecord, PictureRecord, without_pictures
from smalti.server.gallery import encoded
from smalti.server.guard import problem
from smalti.server.sdapi.formats import FORMATS
from smalti.server.sdapi.webui import WebUi
from smalti.server.told import is_refused

QUALITY = 80
"""Of JPEG and WebP, as of A1111."""


def failed(job: JobRecord) -> Response | None:
    """Why a job gives no pictures; None for one that is done, or was cancelled."""
    if job.state in (DONE, CANCELLED):
        return None
    return problem(422 if is_refused(job) else 500, job.error or "Stopped",
                   job.message or "the server was stopped")


def unmade(job: JobRecord) -> Response | None:
    """That a job was cancelled, of which all pictures are wanted; None for one that was not."""
    if job.state != CANCELLED:
        return None
    return problem(500, "Cancelled", "the picture was cancelled before it was made")


def made(webui: WebUi, fields: dict[str, Any], job: JobRecord) -> Response:
    """The answer to txt2img or img2img."""
    if (refused := failed(job)) is not None:
        return refused
    site, options = webui.site, webui.settings() | (fields.get("override_settings") or {})
    pictures = site.archive.pictures(job=job.id)[::-1]
    images = []
    if fields.get("send_images", True) is not False:
        images = [_in_format(content, options) for each in pictures
                  if (content := site.gallery.content(each))]
    site.sent(pictures)
    echo = without_pictures(fields)
    for name in ("init_images", "mask"):
        if name in fields:
            echo[name] = fields[name] if fields.get("include_init_images") else None
    told = info(job, pictures)
    told["warnings"] += webui.ignored()
    return JSONResponse({"images": images, "parameters": echo, "info": json.dumps(told)})


def enlarged(webui: WebUi, fields: dict[str, Any], made: JobRecord | Image.Image) -> str:
    """A picture that was enlarged, in base64."""
    from smalti.server.asked import as_base64
    from smalti.server.sdapi.extras import cropped

    if isinstance(made, Image.Image):
        return as_base64(cropped(made, fields))
    site = webui.site
    pictures = site.archive.pictures(job=made.id)
    content = next((content for each in pictures if (content := site.gallery.content(each))), None)
    if content is None:
        return ""  # somebody deleted it just now
    if fields.get("resize_mode") == 1:
        with Image.open(io.BytesIO(content)) as picture:
            found = as_base64(cropped(picture, fields))
    else:
        found = _in_format(content, {})
    site.sent(pictures)
    return found


def _in_format(content: bytes, options: dict[str, Any]) -> str:
    """A picture in base64, in the format that the options say, with its settings."""
    kind = FORMATS[options.get("samples_format", "png").lower()]
    return base64.b64encode(encoded(content, kind, options.get("jpeg_quality", QUALITY))).decode()


def info(job: JobRecord, pictures: list[PictureRecord]) -> dict[str, Any]:
    """How pictures came about, with the names of A1111."""
    texts = [each.text for each in pictures]
    parts = [parse(text) for text in texts]
    first = parts[0] if parts else parse("")
    seeds = [each.seed for each in pictures]
    return {
        "prompt": first.prompt, "all_prompts": [each.prompt for each in parts],
        "negative_prompt": first.negative_prompt,
        "all_negative_prompts": [each.negative_prompt for each in parts],
        "seed": seeds[0] if seeds else job.request.get("seed", -1), "all_seeds": seeds,
        "subseed": job.request.get("variation_seed", -1), "all_subseeds": [-1] * len(seeds),
        "subseed_strength": job.request.get("variation_strength", 0),
        "width": pictures[0].width if pictures else 0,
        "height": pictures[0].height if pictures else 0,
        "sampler_name": first.pairs.get("Sampler", ""),
        "cfg_scale": float(first.pairs.get("CFG scale", 0)),
        "steps": int(first.pairs.get("Steps", 0)), "batch_size": len(pictures),
        "restore_faces": False, "sd_model_name": first.pairs.get("Model", ""),
        "sd_model_hash": first.pairs.get("Model hash"), "sd_vae_name": job.request.get("vae"),
        "sd_vae_hash": None, "denoising_strength": job.request.get("strength"),
        "extra_generation_params": {}, "index_of_first_image": 0, "infotexts": texts, "styles": [],
        "job_timestamp": "", "clip_skip": int(first.pairs.get("Clip skip", 1)),
        "version": first.pairs.get("Version", ""), "warnings": [*job.warnings],
    }
