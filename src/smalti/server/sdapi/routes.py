"""The routes of the web UI's API, as they are and again under `/v1`, as Easy Diffusion wants them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.server.archive import ENDED, QUEUED, RUNNING, JobRecord
from smalti.server.endpoint import Asking, Endpoint, answered, read_json
from smalti.server.guard import problem
from smalti.server.queue import Progress
from smalti.server.sdapi import lists
from smalti.server.sdapi.webui import WebUi
from smalti.server.site import Site
from smalti.server.waiting import cancelled, waited

BEGUN = 0.01
"""The progress that A1111 tells of a job that runs, before its first step."""
SLOW = ThreadPoolExecutor(2, "enlarging")
"""What resizes large pictures, one at a time: those that wait hold no thread of the others."""
CONTROLNET_VERSION = 2
"""Of the interface of ControlNet's extension that Forge has."""


@dataclass(frozen=True)
class Dialect:
    """What differs where a server is asked under a prefix: how a task is refused that is not known,
    with which status a picture that cannot be made, and what stands before a preview in base64."""

    prefix: str
    unknown_task: int = 200
    refused: int | None = None
    picture_prefix: str = "data:image/jpeg;base64,"


WEB_UI = Dialect("")
EASY_DIFFUSION = Dialect("/v1", 404, 500, "")
"""Of an answer with another status than 500 it tells nobody what is wrong."""


def routes(site: Site) -> list[Route]:
    """The routes of this API."""
    webui = WebUi(site)

    async def ping(request: Request) -> Response:
        return PlainTextResponse("OK")

    found = [Route(f"{EASY_DIFFUSION.prefix}/internal/ping", ping, methods=["GET"])]
    for dialect in (WEB_UI, EASY_DIFFUSION):
        found += _making(webui, dialect)
        found += [each.route(site) for each in endpoints(webui, dialect)]
    return found


def _making(webui: WebUi, dialect: Dialect) -> list[Route]:
    """What waits for jobs: pictures that are made, and that are enlarged."""

    def route(name: str, answer: Callable[[dict[str, Any], Request], Any]) -> Route:
        async def called(request: Request) -> Response:
            fields = await read_json(request)
            found = fields if isinstance(fields, Response) else await answer(fields, request)
            if dialect.refused is not None and found.status_code == 422:
                found.status_code = dialect.refused
            return found

        return Route(f"{dialect.prefix}/sdapi/v1/{name}", called, methods=["POST"])

    async def generate(fields: dict[str, Any], request: Request) -> Response:
        if request.url.path.endswith("img2img") and not fields.get("init_images"):
            return problem(404, "NotFound", "Init image not found: give init_images")
        job = await asyncio.to_thread(answered, lambda: webui.submit(fields))
        if isinstance(job, Response):
            return job
        ended = await waited(webui.site, job, request)
        return await asyncio.to_thread(_made, webui, fields, ended)

    async def enlarge(fields: dict[str, Any], request: Request) -> Response:
        return await _enlarged(webui, fields, request)

    return [route("txt2img", generate), route("img2img", generate),
            route("extra-single-image", enlarge), route("extra-batch-images", enlarge)]


def _made(webui: WebUi, fields: dict[str, Any], job: JobRecord) -> Response:
    from smalti.server.sdapi.answer import made

    return made(webui, fields, job)


async def _enlarged(webui: WebUi, fields: dict[str, Any], request: Request) -> Response:
    """The pictures of a request, enlarged one after the other in the queue."""
    from smalti.server.sdapi import extras
    from smalti.server.sdapi.answer import enlarged, failed, unmade

    folders = await asyncio.to_thread(webui.site.folders)

    def opened() -> Any:
        extras.check(fields)
        return extras.network(fields, folders), extras.pictures_of(fields)

    found = await asyncio.to_thread(answered, opened)
    if isinstance(found, Response):
        return found
    name, shown = found
    images = []
    for each in shown:
        def begin(shown: Any = each) -> Any:
            factor = extras.factor_of(fields, shown.size)
            if name is None:
                return extras.resampled(shown, fields, factor)
            return webui.site.queue.submit(extras.upscaling(shown, name, factor))

        made = await asyncio.get_running_loop().run_in_executor(SLOW, answered, begin)
        if isinstance(made, Response):
            return made
        if isinstance(made, JobRecord):
            made = await waited(webui.site, made, request)
            if (refused := failed(made) or unmade(made)) is not None:
                return refused
        images.append(await asyncio.to_thread(enlarged, webui, fields, made))
    texts = {"html_info": ""}
    if "imageList" in fields:
        return JSONResponse({"images": images, **texts})
    return JSONResponse({"image": images[0], **texts})


def _share(progress: Progress) -> float:
    return max(BEGUN, progress.step / progress.steps if progress.steps else 0.0)


def _progress(webui: WebUi, call: Asking, at_once: bool) -> Any:
    """How far the job that runs has come; 0, and no jobs, where nothing is to do. None where
    that cannot be told `at_once`."""
    queue = webui.site.queue
    waiting = queue.waiting_known if at_once else queue.waiting()
    if waiting is None:
        return None
    job = next(iter(queue.running()), None)
    progress = (queue.progress(job.id) if job else None) or Progress()
    skipped = call.query.get("skip_current_image", "").lower() in ("true", "1")
    shown = None if job is None or skipped else webui.preview(job)
    if at_once and shown is not None and not shown.painted:
        return None
    return {"progress": 0.0 if job is None else _share(progress),
            "eta_relative": progress.seconds_left or 0.0,
            "state": {"skipped": False, "interrupted": False, "stopping_generation": False,
                      "job": job.id if job else "", "job_count": waiting + (job is not None),
                      "job_timestamp": "", "job_no": 0, "sampling_step": progress.step,
                      "sampling_steps": progress.steps},
            "current_image": None if shown is None else shown.text,
            "textinfo": progress.doing or None, "current_task": job.id if job else None}


def interrupt(site: Site, call: Asking) -> Any:
    """Cancel what runs."""
    for job in site.queue.running():
        cancelled(site, job)
    return {}


def unload(site: Site, call: Asking) -> Any:
    """Free the memory of models; they are loaded again when they are asked for."""
    for worker in site.workers:
        worker.unload()
    return {}


def refresh(site: Site, call: Asking) -> Any:
    """Look for files again; lists of models do so whenever they are asked for."""
    site.folders().all()
    return {}


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


def no_captions(site: Site, call: Asking) -> Any:
    """No words are found for pictures."""
    raise InputError("interrogate: no words are found for pictures here; there is no model for "
                     "that")


def no_segments(site: Site, call: Asking) -> Any:
    """No things are found in pictures."""
    raise InputError("segment: nothing is cut out of pictures here; there is no model for that; "
                     "paint a mask instead")


def detect(site: Site, call: Asking) -> Any:
    """What a preprocessor of ControlNet makes of pictures."""
    from smalti.server.asked import as_base64, picture
    from smalti.server.sdapi.detect import detected, preprocessor
    from smalti.server.sdapi.extras import PICTURES_MAX

    body = call.body
    module = preprocessor(body.get("controlnet_module"))
    given = body.get("controlnet_input_images") or body.get("controlnet_images")
    if not isinstance(given, list) or not 1 <= len(given) <= PICTURES_MAX:
        raise InputError(f"controlnet_input_images is {given!r:.80}; expected a list of 1 to "
                         f"{PICTURES_MAX} pictures in base64")
    numbers = [body.get(f"controlnet_{name}", -1)
               for name in ("processor_res", "threshold_a", "threshold_b")]
    return {"info": "Success", "images": [
        as_base64(detected(picture(each, "controlnet_input_images"), module, *numbers))
        for each in given]}


def controlnet_models(site: Site, call: Asking) -> Any:
    """All ControlNets."""
    return {"model_list": [each.stem for each in site.folders().of_kind("controlnet")]}


def controlnet_modules(site: Site, call: Asking) -> Any:
    """All preprocessors."""
    from smalti.server.sdapi.detect import PREPROCESSORS

    return {"module_list": list(PREPROCESSORS)}


def controlnet_types(site: Site, call: Asking) -> Any:
    """All of both as one kind: which belongs to which is for people to say."""
    models = controlnet_models(site, call)["model_list"]
    return {"control_types": {"All": {
        **controlnet_modules(site, call), "model_list": ["None", *models],
        "default_option": "none", "default_model": "None"}}}


def controlnet_version(site: Site, call: Asking) -> Any:
    """Which form units have."""
    return {"version": CONTROLNET_VERSION}


def endpoints(webui: WebUi, dialect: Dialect) -> list[Endpoint]:
    """All that waits for no job."""

    def get_options(site: Site, call: Asking) -> Any:
        return webui.options()

    def set_options(site: Site, call: Asking) -> Any:
        webui.set(call.body)
        return {}

    def progress(site: Site, call: Asking) -> Any:
        return _progress(webui, call, at_once=False)

    def progress_now(site: Site, call: Asking) -> Any:
        return _progress(webui, call, at_once=True)

    def task_progress(site: Site, call: Asking) -> Any:
        return _task_progress(webui, dialect, call)

    def pending(site: Site, call: Asking) -> Any:
        names = webui.task_names()
        waiting = [names.get(id, id) for id in site.archive.order()]
        return {"size": len(waiting), "tasks": waiting}

    inner = [
        ("GET", "options", get_options), ("POST", "options", set_options),
        ("POST", "interrupt", interrupt), ("POST", "skip", interrupt),
        ("POST", "png-info", png_info), ("POST", "interrogate", no_captions),
        ("POST", "segment", no_segments), ("POST", "unload-checkpoint", unload),
        ("POST", "reload-checkpoint", refresh), *LISTS,
        *(("POST", f"refresh-{name}", refresh) for name in REFRESHED)]
    outer = [
        ("POST", "/internal/progress", task_progress), ("GET", "/internal/pending-tasks", pending),
        ("GET", "/controlnet/version", controlnet_version),
        ("GET", "/controlnet/model_list", controlnet_models),
        ("GET", "/controlnet/module_list", controlnet_modules),
        ("GET", "/controlnet/control_types", controlnet_types),
        ("POST", "/controlnet/detect", detect)]
    start = dialect.prefix
    found = [*(Endpoint(method, f"{start}/sdapi/v1/{name}", name, answer)
               for method, name, answer in inner),
             *(Endpoint(method, f"{start}{path}", path, answer) for method, path, answer in outer),
             Endpoint("GET", f"{start}/sdapi/v1/progress", "progress", progress,
                      query={"skip_current_image": {"type": "boolean"}}, at_once=progress_now)]
    return [replace(each, query={**each.query, **IGNORED}) for each in found]


IGNORED: dict[str, Any] = {"update_alias_names": {}, "alias_names": {}, "update": {}}
"""What clients of ControlNet's extension say behind the ?, which changes nothing here."""


def _task_progress(webui: WebUi, dialect: Dialect, call: Asking) -> Any:
    """How far a task has come, by the name that its client gave it; one that was refused has ended.

    Only one that runs has a number, as in A1111: Easy Diffusion takes a number as one more step,
    and after a stop would stop what runs by then.
    """
    name, site = call.body.get("id_task"), webui.site
    if not isinstance(name, str):
        return problem(400, "BadRequest", f"id_task is {name!r:.80}; expected the name of a task, "
                                          f"as force_task_id gave it")
    known, job = webui.is_known(name), webui.task(name)
    if not known and dialect.unknown_task != 200:
        return problem(dialect.unknown_task, "NotFound", f"no task is named {name!r:.80}")
    progress = (site.queue.progress(job.id) if job else None) or Progress()
    running = job is not None and job.state == RUNNING
    ended = known and (job is None or job.state in ENDED)
    number = call.body.get("id_live_preview", -1)
    shown = None
    if job is not None and running and call.body.get("live_preview", True):
        shown = webui.preview(job)
    if shown is not None and shown.number == number:
        shown = None  # the client has this one
    return {"active": running, "queued": job is not None and job.state == QUEUED,
            "completed": ended,
            "progress": _share(progress) if running else None,
            "eta": progress.seconds_left,
            "live_preview": None if shown is None else dialect.picture_prefix + shown.text,
            "id_live_preview": number if shown is None else shown.number,
            "textinfo": progress.doing or ("Waiting..." if not known else None)}


LISTS = [
    ("GET", "samplers", lists.samplers), ("GET", "schedulers", lists.schedulers),
    ("GET", "sd-models", lists.sd_models), ("GET", "sd-vae", lists.sd_vae),
    ("GET", "sd-modules", lists.sd_modules), ("GET", "loras", lists.loras),
    ("GET", "embeddings", lists.embeddings), ("GET", "upscalers", lists.upscalers),
    ("GET", "realesrgan-models", lists.realesrgan_models),
    ("GET", "latent-upscale-modes", lists.latent_upscale_modes),
    ("GET", "prompt-styles", lists.prompt_styles), ("GET", "hypernetworks", lists.nothing),
    ("GET", "face-restorers", lists.nothing), ("GET", "extensions", lists.nothing),
    ("GET", "scripts", lists.scripts), ("GET", "script-info", lists.script_info),
    ("GET", "cmd-flags", lists.cmd_flags), ("GET", "memory", lists.memory),
    ("GET", "models", lists.grouped)]
REFRESHED = ("checkpoints", "vae", "loras", "embeddings", "vae-and-text-encoders")
