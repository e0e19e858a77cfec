"""A diffusers folder: `model_index.json` and one folder per component.

Weights are `diffusion_pytorch_model[.fp16].safetensors` or `model[.fp16].safetensors`, in one file
or in shards that an `.index.json` lists. The full-precision file is taken where both are there, and
one that is pickled (`.bin`) where there is no other.
"""

from __future__ import annotations

from pathlib import Path

from smalti.checkpoint.container import open_tensors
from smalti.checkpoint.json_file import read_json
from smalti.errors import CheckpointError
from smalti.families.names import FileKind
from smalti.runtime.tensor_file import Tensors

INDEX = "model_index.json"
MODULAR_INDEX = "modular_model_index.json"
"""That of pipelines which diffusers puts together of blocks."""
DENOISERS = ("unet", "transformer")
CONDITIONER = "text_conditioner"
"""What reads texts for a denoiser, and belongs to it in other files."""
TEXT_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
STEMS = {  # component -> stem of its weight files
    **dict.fromkeys((*DENOISERS, CONDITIONER, "vae"), "diffusion_pytorch_model"),
    **dict.fromkeys(TEXT_ENCODERS, "model"),
}
PICKLED = {"model": "pytorch_model"}
"""Stem of the safetensors file -> that of the pickled one, where it has another."""
REDUX = ("image_encoder", "image_embedder")
"""What a folder of FLUX.1 Redux holds, beside no denoiser: each is a folder of weights."""
CLASS = "_class_name"
"""What the index of a folder calls the name of its pipeline."""
OTHER_PIPELINES = (
    ("StableDiffusionUpscale", "upscaler", "a latent upscaler folder"),
)
"""What the names of pipeline classes begin with of models that are not read, their kind, words."""


def model_name(path: str | Path) -> str:
    """What a model is called: a file without its ending, a folder as it is, a snapshot in the cache
    of the hub as its repository.

    >>> model_name("hub/models--owner--sdxl-turbo/snapshots/0123"), model_name("anime.v2.ckpt")
    ('sdxl-turbo', 'anime.v2')
    """
    path = Path(path)
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        name = path.parents[1].name.rpartition("--")[2]
    else:
        name = path.name if path.is_dir() else path.stem
    return name.encode("utf-8", "replace").decode()  # a file name need not be text


def read_index(folder: Path) -> dict[str, object]:
    """The folder's `model_index.json`, or what stands for it. Raises `CheckpointError` where there
    is none."""
    if (folder / MODULAR_INDEX).is_file() and not (folder / INDEX).is_file():
        return read_json(folder / MODULAR_INDEX)
    if not (folder / INDEX).is_file():
        found = sorted(p.name for p in folder.iterdir())[:5]
        inside = ", ".join(found) if found else "nothing"
        raise CheckpointError(
            f"{folder} is a folder without {INDEX} (found {inside}); expected a diffusers folder;"
            " give one, or a .safetensors file"
        )
    return read_json(folder / INDEX)


def other_kind(index: dict[str, object]) -> FileKind | None:
    """The kind of model that the pipeline class names, when it is none that is read."""
    name = str(index.get(CLASS, ""))
    return next((FileKind(kind, words, lambda names: False)
                 for start, kind, words in OTHER_PIPELINES if name.startswith(start)), None)


def pipeline_name(index: dict[str, object]) -> str:
    """What the pipeline of a folder is called; of FLUX.2 klein its index alone may tell that the
    model is the base of those that are distilled, and of Krea 2 that it is one of these.

    >>> pipeline_name({CLASS: "Flux2KleinPipeline", "is_distilled": False})
    'Flux2KleinPipeline base'
    """
    name = str(index.get(CLASS, ""))
    kinds = {False: " base", True: " turbo" * name.startswith("Krea2")}
    distilled = index.get("is_distilled")
    return name + (kinds[distilled] if isinstance(distilled, bool) else "")


def read_configs(folder: Path) -> dict[str, object]:
    """The parsed config.json of each component that has one, and of the scheduler."""
    places = {name: folder / name / "config.json" for name in STEMS}
    places["scheduler"] = folder / "scheduler" / "scheduler_config.json"
    return {name: read_json(path) for name, path in places.items() if path.is_file()}


def components(folder: Path, index: dict[str, object]) -> list[str]:
    """The components that a folder has, or has to have by its `model_index.json`."""
    def listed(name: str) -> bool:
        entry = index.get(name)
        return isinstance(entry, list) and None not in entry

    found = [name for name in STEMS if listed(name) or (folder / name).is_dir()]
    return found if set(found) & set(DENOISERS) else [DENOISERS[0], *found]


def several_parts(path: Path) -> list[Path]:
    """What lies at the path of a text encoder: of a folder of Redux its two networks."""
    networks = [path / name for name in REDUX]
    return networks if all(each.is_dir() for each in networks) else [path]


def component_files(folder: Path, component: str) -> list[Tensors]:
    """The weights of a component, in one file or in shards.

    Raises `CheckpointError` where there is none, or where shards do not hold what they should.
    """
    place, stem = folder / component, STEMS[component]
    names = [(stem, ".safetensors"), (PICKLED.get(stem, stem), ".bin")]
    for stem, ending in names:
        for variant in ("", ".fp16"):
            for path in (place / f"{stem}{variant}{ending}",
                         place / f"{stem}{ending}.index{variant}.json",
                         place / f"{stem}{variant}{ending}.index.json"):
                if path.is_file():
                    return [open_tensors(path)]
    raise CheckpointError(
        f"{place} holds no weights; expected {names[0][0]}.safetensors or another of its names;"
        " download the folder again"
    )
