"""The API of AUTOMATIC1111's web UI, `/sdapi/v1/*`, for programs that speak it already.

What its clients send and read is known from AUTOMATIC1111/stable-diffusion-webui and
lllyasviel/stable-diffusion-webui-forge (`modules/api`); the client `webuiapi` drives it in tests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections import OrderedDict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from smalti.errors import InputError
from smalti.server.archive import (
    CANCELLED,
    DONE,
    ENDED,
    QUEUED,
    RUNNING,
    JobRecord,
    without_pictures,
)
from smalti.server.endpoint import Asking, Endpoint, answered, read_json
from smalti.server.guard import problem
from smalti.server.queue import Progress
from smalti.server.site import Site

START = "/sdapi/v1"
TASKS_KEPT = 1000
"""Tasks whose end is still told of, for clients that ask until they hear of it."""
GONE_SECONDS = 1.0
"""Between looks whether a client that waits for a picture is still there."""
OPTION_CHARACTERS_MAX = 100_000
"""Of all options that clients set, as JSON: a hundred times what they do."""
BEGUN = 0.01
"""The progress that A1111 tells of a job that runs, before its first step."""
USUAL: dict[str, Any] = {"samples_format": "png", "sd_vae": "Automatic", "randn_source": "NV",
                         "CLIP_stop_at_last_layers": 1}


class WebUi:
    """What this API keeps beside the site: options that clients set, and the names of tasks."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._tasks: OrderedDict[str, str] = OrderedDict()
        self._turn = threading.Lock()
        self._set: dict[str, Any] = {}

    def options(self) -> dict[str, Any]:
        """All options, those that were set in place of the usual ones."""
        usual = {**USUAL, "sd_model_checkpoint": self.site.folders().all()[0].name}
        with self._turn:
            return {**usual, **self._set}

    def set(self, options: dict[str, Any]) -> None:
        """Set options. Raises InputError for those that cannot be."""
        from smalti.server.models import MODEL

        wanted = dict(options)
        if wanted.get("samples_format", "png") != "png":
            raise InputError(f"samples_format is {wanted['samples_format']!r:.80}; pictures are "
                             f"written as png")
        if wanted.get("sd_model_checkpoint"):
            wanted["sd_model_checkpoint"] = self.site.folders().named(
                wanted["sd_model_checkpoint"], MODEL).name
        with self._turn:
            both = {**self._set, **wanted}
            if len(json.dumps(both)) > OPTION_CHARACTERS_MAX:
                raise InputError(f"all options take more than {OPTION_CHARACTERS_MAX} characters")
            self._set = both

    def submit(self, fields: dict[str, Any]) -> JobRecord:
        """A job for fields of txt2img or img2img. Raises what asking for a job does."""
        from smalti.server.asked import opened
        from smalti.server.sdapi_request import translated

        wanted = translated(fields, self.options())
        opened(wanted, self.site.folders())
        job = self.site.queue.submit(wanted)
        task = fields.get("force_task_id")
        if isinstance(task, str):
            with self._turn:
                self._tasks[task] = job.id
                while len(self._tasks) > TASKS_KEPT:
                    self._tasks.popitem(last=False)
        return job

    def task(self, name: object) -> JobRecord | None:
        """The job of a task that a client named."""
        with self._turn:
            id = self._tasks.get(name) if isinstance(name, str) else None
        return None if id is None else self.site.archive.job(id)

    def made(self, fields: dict[str, Any], job: JobRecord) -> Response:
        """What is answered when a job has ended."""
        if job.state not in (DONE, CANCELLED):
            status = 422 if job.error == "InputError" else 500
            return problem(status, job.error or "Stopped", job.message or "the server was stopped")
        pictures = self.site.archive.pictures(job=job.id)[::-1]
        found = [(each, self.site.gallery.file(each)) for each in pictures]
        images = [base64.b64encode(path.read_bytes()).decode() for _, path in found if path]
        echo = {**without_pictures(fields)}
        echo |= {name: None for name in ("init_images", "mask") if name in echo}
        return JSONResponse({"images": images, "parameters": echo,
                             "info": json.dumps(_info(job, pictures))})


def _info(job: JobRecord, pictures: list[Any]) -> dict[str, Any]:
    """How pictures came about, with the names of A1111."""
    from smalti.diffusion.metadata import parse

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
        "sd_model_hash": None, "sd_vae_name": job.request.get("vae"), "sd_vae_hash": None,
        "denoising_strength": job.request.get("strength"), "extra_generation_params": {},
        "index_of_first_image": 0, "infotexts": texts, "styles": [],
        "clip_skip": int(first.pairs.get("Clip skip", 1)),
        "version": first.pairs.get("Version", ""), "warnings": job.warnings,
    }


def routes(site: Site) -> list[Route]:
    """The routes of this API."""
    webui = WebUi(site)

    async def generate(request: Request) -> Response:
        fields = await read_json(request)
        if isinstance(fields, Response):
            return fields
        if request.url.path.endswith("img2img") and not fields.get("init_images"):
            return problem(404, "NotFound", "Init image not found: give init_images")
        job = await asyncio.to_thread(answered, lambda: webui.submit(fields))
        if isinstance(job, Response):
            return job
        ended = await waited(site, job, request)
        return await asyncio.to_thread(webui.made, fields, ended)

    return [*(Route(f"{START}/{name}", generate, methods=["POST"])
              for name in ("txt2img", "img2img")),
            *(each.route(site) for each in endpoints(webui))]


async def waited(site: Site, job: JobRecord, request: Request) -> JobRecord:
    """The job when it has ended; it is cancelled where its client goes away."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def tell(id: str) -> None:
        if id in (job.id, ""):
            loop.call_soon_threadsafe(changed.set)

    with site.queue.watching(tell):
        while True:
            changed.clear()
            job = await asyncio.to_thread(site.queue.job, job.id)
            if job.state in ENDED or site.queue.stopping:
                return job
            try:
                await asyncio.wait_for(changed.wait(), GONE_SECONDS)
            except TimeoutError:
                pass
            if await request.is_disconnected():
                return await asyncio.to_thread(site.queue.cancel, job.id)


def _running(site: Site) -> tuple[JobRecord | None, Progress]:
    """The job that runs, and how far it has come."""
    job = next(iter(site.archive.jobs(RUNNING, 1)), None)
    return job, (site.queue.progress(job.id) if job else None) or Progress()


def _share(progress: Progress) -> float:
    return max(BEGUN, progress.step / progress.steps if progress.steps else 0.0)


def progress_of(site: Site, call: Asking) -> Any:
    """How far the job that runs has come; 0, and no jobs, where nothing is to do."""
    job, progress = _running(site)
    waiting = site.archive.count(QUEUED)
    return {"progress": 0.0 if job is None else _share(progress),
            "eta_relative": progress.seconds_left or 0.0,
            "state": {"skipped": False, "interrupted": False, "stopping_generation": False,
                      "job": job.id if job else "", "job_count": waiting + (job is not None),
                      "job_timestamp": "", "job_no": 0, "sampling_step": progress.step,
                      "sampling_steps": progress.steps},
            "current_image": None, "textinfo": progress.doing or None,
            "current_task": job.id if job else None}


def interrupt(site: Site, call: Asking) -> Any:
    """Cancel what runs."""
    for job in site.archive.jobs(RUNNING):
        site.queue.cancel(job.id)
    return {}


def samplers(site: Site, call: Asking) -> Any:
    """All samplers, by the names that A1111 shows."""
    from smalti.diffusion.samplers import SAMPLERS

    return [{"name": SAMPLERS[name].label, "aliases": [name, *SAMPLERS[name].aliases],
             "options": {}} for name in SAMPLERS]


def schedulers(site: Site, call: Asking) -> Any:
    """All noise schedules."""
    from smalti.diffusion.noise import NOISES

    return [{"name": "automatic", "label": "Automatic", "aliases": None, "default_rho": -1.0,
             "need_inner_model": False},
            *({"name": name, "label": NOISES[name].label, "aliases": [*NOISES[name].aliases],
               "default_rho": -1.0, "need_inner_model": False}
              for name in NOISES if name != "automatic")]


def sd_models(site: Site, call: Asking) -> Any:
    """All models that make pictures; what stands for a path is a name, too."""
    from smalti.server.models import MODEL

    return [{"title": each.name, "model_name": each.stem, "hash": None, "sha256": None,
             "filename": each.name, "config": None}
            for each in site.folders().of_kind(MODEL) if each.usable]


def loras(site: Site, call: Asking) -> Any:
    """All adapters, by the names that prompts give them."""
    return [{"name": each.stem, "alias": each.stem, "path": each.name, "metadata": {}}
            for each in site.folders().of_kind("lora")]


def png_info(site: Site, call: Asking) -> Any:
    """The settings that a picture carries; empty without any."""
    from smalti.diffusion.metadata import carried, parse
    from smalti.server.asked import read_picture

    with read_picture(call.body.get("image"), "image") as picture:
        text = carried(picture)
    found = parse(text)
    return {"info": text, "items": {"parameters": text} if text else {}, "parameters": {
        "Prompt": found.prompt, "Negative prompt": found.negative_prompt, **found.pairs}
        if text else {}}


def endpoints(webui: WebUi) -> list[Endpoint]:
    """All but what makes pictures."""

    def get_options(site: Site, call: Asking) -> Any:
        return webui.options()

    def set_options(site: Site, call: Asking) -> Any:
        webui.set(call.body)
        return {}

    def task_progress(site: Site, call: Asking) -> Any:
        job = webui.task(call.body.get("id_task"))
        progress = (site.queue.progress(job.id) if job else None) or Progress()
        running = job is not None and job.state == RUNNING
        return {"active": running, "queued": job is not None and job.state == QUEUED,
                "completed": job is not None and job.state in ENDED,
                "progress": _share(progress) if running else None, "eta": progress.seconds_left,
                "live_preview": None, "id_live_preview": call.body.get("id_live_preview", -1),
                "textinfo": progress.doing or ("Waiting..." if job is None else None)}

    asked = [("GET", "options", get_options), ("POST", "options", set_options),
             ("POST", "interrupt", interrupt), ("GET", "samplers", samplers),
             ("GET", "schedulers", schedulers), ("GET", "sd-models", sd_models),
             ("GET", "loras", loras), ("POST", "png-info", png_info)]
    return [*(Endpoint(method, f"{START}/{name}", name, answer) for method, name, answer in asked),
            Endpoint("GET", f"{START}/progress", "progress", progress_of,
                     query={"skip_current_image": {"type": "boolean"}}),
            Endpoint("POST", "/internal/progress", "progress of a task", task_progress)]
