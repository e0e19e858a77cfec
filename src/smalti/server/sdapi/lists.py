"""What the web UI's API lists: models, samplers, adapters, and what there is none of here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smalti.server.endpoint import Asking
from smalti.server.sdapi.styles import styles
from smalti.server.site import Site

if TYPE_CHECKING:
    from smalti.server.models import ModelFile

SCRIPT = "controlnet"
SCRIPTS = [SCRIPT, "controlnet m2m"]
"""The second one is what the client webuiapi sees ControlNet by; it then says in each request which
units there are, and a unit of one request is not left over in the next."""


def title(site: Site, file: ModelFile) -> str:
    """What a model is called in lists: its name, and the beginning of its hash where that is known.
    """
    short = short_hash(site, file)
    return file.name if short is None else f"{file.name} [{short}]"


def short_hash(site: Site, file: ModelFile) -> str | None:
    """The beginning of a file's SHA-256; None while it is not known: files are read in idle times.
    """
    from smalti.server.hashes import SHOWN_DIGITS

    sha256 = site.hashes.of(file.path)
    return None if sha256 is None else sha256[:SHOWN_DIGITS]


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

    return [{"title": title(site, each), "model_name": each.stem,
             "hash": short_hash(site, each), "sha256": site.hashes.of(each.path),
             "filename": each.name, "config": None}
            for each in site.folders().of_kind(MODEL) if each.usable]


def _parts(site: Site, *kinds: str) -> list[dict[str, str]]:
    return [{"model_name": each.name, "filename": each.name}
            for each in site.folders().all() if each.kind in kinds]


def sd_vae(site: Site, call: Asking) -> Any:
    """Autoencoders that stand alone."""
    return _parts(site, "vae")


def sd_modules(site: Site, call: Asking) -> Any:
    """Autoencoders and text encoders that stand alone, as Forge lists them."""
    return _parts(site, "vae", "text-encoder")


def loras(site: Site, call: Asking) -> Any:
    """All adapters, by the names that prompts give them."""
    return [{"name": each.stem, "alias": each.stem, "path": each.name, "metadata": {}}
            for each in site.folders().of_kind("lora")]


def embeddings(site: Site, call: Asking) -> Any:
    """Textual inversions, which a prompt names; of which size they are is seen when it does."""
    return {"loaded": {each.stem: {"step": None, "sd_checkpoint": None,
                                        "sd_checkpoint_name": None, "shape": 0, "vectors": 0}
                       for each in site.folders().of_kind("embedding")}, "skipped": {}}


def upscalers(site: Site, call: Asking) -> Any:
    """What enlarges pictures: nothing, resizing, and networks."""
    from smalti.server.sdapi.extras import RESAMPLING

    plain = [{"name": name, "model_name": None, "model_path": None, "model_url": None, "scale": 4}
             for name in RESAMPLING]
    return [*plain, *({"name": each.stem, "model_name": each.stem, "model_path": each.name,
                       "model_url": None, "scale": _scale(each)}
                      for each in site.folders().of_kind("esrgan"))]


def realesrgan_models(site: Site, call: Asking) -> Any:
    """Networks that enlarge pictures."""
    return [{"name": each.stem, "path": each.name, "scale": _scale(each)}
            for each in site.folders().of_kind("esrgan")]


def _scale(file: ModelFile) -> int | None:
    """How many times as large a network makes a picture; None for one that is damaged."""
    from smalti.diffusion.upscale import Upscaler
    from smalti.errors import InputError

    try:
        return Upscaler.load(file.path, device="cpu").scale
    except InputError:
        return None


def latent_upscale_modes(site: Site, call: Asking) -> Any:
    """How latents are enlarged before a second pass."""
    return [{"name": "Latent"}]


def prompt_styles(site: Site, call: Asking) -> Any:
    """The styles of `styles.csv` in the folders that are served."""
    return [{"name": each.name, "prompt": each.prompt, "negative_prompt": each.negative_prompt}
            for each in styles(site.folders().given).values()]


def nothing(site: Site, call: Asking) -> Any:
    """A list of what there is none of: hypernetworks, face restorers, extensions."""
    return []


def scripts(site: Site, call: Asking) -> Any:
    """Scripts that a request may name."""
    return {"txt2img": SCRIPTS, "img2img": SCRIPTS}


def script_info(site: Site, call: Asking) -> Any:
    """What they are."""
    unit = {"label": "ControlNet unit", "value": None, "minimum": None, "maximum": None,
            "step": None, "choices": None}
    return [{"name": SCRIPT, "is_alwayson": True, "is_img2img": image, "args": [unit]}
            for image in (False, True)]


def cmd_flags(site: Site, call: Asking) -> Any:
    """How the server was started, as far as A1111 has a name for it."""
    return {"api": True, "nowebui": False, "listen": False, "share": False, "api_auth": None,
            "disable_safe_unpickle": False}


def memory(site: Site, call: Asking) -> Any:
    """Memory of the computer, in bytes; what GPUs hold is told by `/api/devices`."""
    from smalti.runtime.cpu.memory import resident_bytes
    from smalti.runtime.devices import devices

    total = next(each.memory_bytes for each in devices() if each.id == "cpu")
    used = resident_bytes()
    return {"ram": {"free": None if used is None else total - used, "used": used, "total": total},
            "cuda": {"error": "unavailable"}}


def grouped(site: Site, call: Asking) -> Any:
    """The names of all files by what they are, as sdkit tells them."""
    from smalti.server.models import MODEL

    groups = {MODEL: "checkpoint", **GROUPS}
    found: dict[str, list[str]] = {name: [] for name in groups.values()}
    for each in site.folders().all():
        if each.kind in groups:
            name = each.stem if each.kind in BARE else (
                each.name if each.kind == MODEL else each.path.name)
            found[groups[each.kind]].append(name)
    return found


GROUPS = {"vae": "vae", "lora": "lora", "embedding": "embeddings", "controlnet": "controlnet",
          "text-encoder": "text_encoder", "esrgan": "realesrgan"}
"""What sdkit calls the kinds of files."""
BARE = ("controlnet", "lora", "embedding")
"""Kinds whose names it tells without folders and endings; those of others have an ending."""
