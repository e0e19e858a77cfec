"""A diffusers folder: `model_index.json` and one folder per component.

Weights are `diffusion_pytorch_model[.fp16].safetensors` or `model[.fp16].safetensors`, in one file
or in shards that an `.index.json` lists. The full-precision file is taken where both are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from smalti.checkpoint.family import Family
from smalti.runtime.tensor_file import TensorFile
from smalti.errors import CheckpointError

INDEX = "model_index.json"
JSON_BYTES_MAX = 10_000_000
COMPONENTS = {  # folder -> stem of its weight files
    "unet": "diffusion_pytorch_model",
    "vae": "diffusion_pytorch_model",
    "text_encoder": "model",
}
# pipeline classes of other families, by the start of their names
OTHER_PIPELINES = (
    ("StableDiffusionXLImg2Img", Family("sdxl-refiner", "an SDXL refiner folder")),
    ("StableDiffusionXL", Family("sdxl", "an SDXL folder")),
    ("StableDiffusion3", Family("sd3", "a Stable Diffusion 3 folder")),
    ("StableDiffusionInpaint", Family("sd1-inpaint", "a Stable Diffusion inpainting folder")),
    ("StableDiffusionUpscale", Family("upscaler", "a latent upscaler folder")),
    ("Flux2", Family("flux2", "a FLUX.2 folder")),
    ("Flux", Family("flux", "a FLUX.1 folder")),
    ("Chroma", Family("chroma", "a Chroma folder")),
)


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file of at most 10 MB. Raises `CheckpointError`."""
    try:
        if path.stat().st_size > JSON_BYTES_MAX:
            raise CheckpointError(f"{path} has over {JSON_BYTES_MAX} bytes; expected a short JSON")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is no JSON ({error}); download the folder again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    return value


def read_index(folder: Path) -> dict[str, object]:
    """The folder's `model_index.json`. Raises `CheckpointError` where there is none."""
    if not (folder / INDEX).is_file():
        found = sorted(p.name for p in folder.iterdir())[:5]
        inside = ", ".join(found) if found else "nothing"
        raise CheckpointError(
            f"{folder} is a folder without {INDEX} (found {inside}); expected a diffusers folder;"
            " give one, or a .safetensors file"
        )
    return read_json(folder / INDEX)


def other_family(index: dict[str, object]) -> Family | None:
    """The family that the pipeline class names, when it is none of SD 1.x or 2.x."""
    name = str(index.get("_class_name", ""))
    return next((family for start, family in OTHER_PIPELINES if name.startswith(start)), None)


def read_configs(folder: Path) -> dict[str, object]:
    """The parsed config.json of each component that has one, and of the scheduler."""
    places = {name: folder / name / "config.json" for name in COMPONENTS}
    places["scheduler"] = folder / "scheduler" / "scheduler_config.json"
    return {name: read_json(path) for name, path in places.items() if path.is_file()}


def component_files(folder: Path, component: str) -> list[TensorFile]:
    """The weight files of a component: one, or all its shards.

    Raises `CheckpointError` where there is none, or where shards do not hold what they should.
    """
    place, stem = folder / component, COMPONENTS[component]
    for variant in ("", ".fp16"):
        single = place / f"{stem}{variant}.safetensors"
        if single.is_file():
            return [TensorFile(single)]
        for index in (
            place / f"{stem}.safetensors.index{variant}.json",
            place / f"{stem}{variant}.safetensors.index.json",
        ):
            if index.is_file():
                return _shards(index)
    pickled = sorted(place.glob("*.bin"))
    advice = "download the folder again"
    if pickled:
        advice = f"{pickled[0].name} is pickled, which comes later; convert it to safetensors"
    raise CheckpointError(
        f"{place} holds no weights; expected {stem}.safetensors or {stem}.fp16.safetensors;"
        f" {advice}"
    )


def _shards(index: Path) -> list[TensorFile]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
        raise CheckpointError(f"{index} has no `weight_map`; expected tensor name -> file name")
    files = {name: TensorFile(_beside(index, name)) for name in sorted(set(table.values()))}
    lost = [name for name, file in table.items() if name not in files[file]]
    if lost:
        raise CheckpointError(
            f"{index} lists {len(lost)} tensors that its shards do not hold:"
            f" {first_of(f'{name!a:.80}' for name in lost)}; download the folder again"
        )
    return list(files.values())


def _beside(index: Path, name: str) -> Path:
    """A shard's path. A name that leads out of the folder is refused."""
    plain = name.isprintable() and "\\" not in name and Path(name).name == name
    if not plain or not name.endswith(".safetensors"):
        raise CheckpointError(f"{index} names the shard {name!a:.80}; expected a file beside it")
    return index.parent / name


def first_of(names: Iterable[str], limit: int = 10, separator: str = ", ") -> str:
    """The first names of a list, and how many more there are.

    >>> first_of(["a", "b", "c"], limit=2)
    'a, b, and 1 more'
    """
    listed = list(names)
    more = [f"and {len(listed) - limit} more"] if len(listed) > limit else []
    return separator.join([*listed[:limit], *more])
