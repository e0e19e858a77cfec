"""Model files in the folders that people have, known by name; nothing of their weights is read.

What a file is, is seen in the names and shapes that it holds, so folders may be laid out as those
of A1111 (`models/Stable-diffusion`), of ComfyUI (`models/checkpoints`), or in any other way. A
request never says a path: it says a name, which is looked up here.
"""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from smalti import checkpoint
from smalti.checkpoint import Report
from smalti.diffusion.pipeline import SHIPPED_MODEL
from smalti.errors import CheckpointError, InputError

MODEL = "model"
SUFFIXES = (".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".gguf", ".sft")
"""Endings of files that may hold weights."""
INDEX = "model_index.json"
"""What makes a folder a model of diffusers."""
HOMES = ("stable-diffusion", "checkpoints", "diffusion_models", "unet", "diffusers", "vae", "lora",
         "loras", "lycoris", "embeddings", "controlnet", "esrgan", "realesrgan", "upscale_models",
         "text_encoders", "text-encoder", "clip", "vae_approx", "vae-approx")
"""Folders of A1111, ComfyUI and Easy Diffusion that the name of a file does not repeat."""


@dataclass(frozen=True)
class ModelFile:
    """A file, or a folder of diffusers, that was found: its name, and what it is.

    `kind` is "model" for what makes pictures, else "lora", "embedding", "controlnet", "vae",
    "text-encoder", "esrgan", "taesd", ..., or "unknown". `family` is that of a model, `title` says
    what the file is, in words. `usable` tells whether pictures can be made with it, `problem` why
    not. `defaults` are what a model makes where nothing else is asked for.
    """

    name: str
    path: Path
    bytes: int
    kind: str
    family: str
    title: str
    usable: bool
    problem: str
    defaults: dict[str, float | int | str]


class ModelFolders:
    """The models in some folders, and the one that ships with Smalti, which is always there."""

    def __init__(self, folders: Sequence[str | Path] = ()) -> None:
        self.folders = [Path(each) for each in folders]
        self._turn = threading.Lock()
        self._seen: dict[tuple[str, Path, int, int], ModelFile] = {}

    def all(self) -> list[ModelFile]:
        """Everything that is there now, the shipped model first; only what is new is opened."""
        with self._turn:
            seen, names = {}, set()
            for name, path in [(SHIPPED_MODEL.name, SHIPPED_MODEL), *self._paths()]:
                if name in names:
                    continue
                try:
                    state = (path / INDEX if path.is_dir() else path).stat()
                except OSError:
                    continue  # it went while it was listed
                key = name, path, state.st_mtime_ns, state.st_size
                seen[key] = self._seen.get(key) or described(name, path)
                names.add(name)
            self._seen = seen
            return list(seen.values())

    def of_kind(self, kind: str) -> list[ModelFile]:
        """All files of a kind."""
        return [each for each in self.all() if each.kind == kind]

    def named(self, name: object, kind: str) -> ModelFile:
        """The file of a kind by its name: with or without folders and ending, where that is clear.

        Raises InputError with near names.
        """
        if not isinstance(name, str):
            raise InputError(f"a {kind} is given as {name!r:.80}; expected its name")
        files = self.of_kind(kind)
        for spelled in (lambda each: each.name, lambda each: os.path.splitext(each.name)[0],
                        lambda each: each.path.stem):
            found = [each for each in files if spelled(each) == name]
            if len(found) == 1:
                return found[0]
        stems = {each.path.stem: each.name for each in files}
        near = [stems[stem] for stem in difflib.get_close_matches(Path(name).stem, stems, n=3)]
        known = near or [each.name for each in files[:10]]
        raise InputError(f"no {kind} is named {name!r:.200}; " + (
            f"{'near' if near else 'known'} ones: {', '.join(known)}" if known else
            f"there is none in the folders that are served: {self._told()}"))

    def _told(self) -> str:
        return ", ".join(map(str, self.folders)) or "none; give --models FOLDER"

    def _paths(self) -> Iterator[tuple[str, Path]]:
        """Names and places of what may be a model."""
        entered: set[str] = set()
        for root in self.folders:
            for folder, inner, files in os.walk(root, followlinks=True):
                real = os.path.realpath(folder)
                if real in entered:  # a link in a circle, or a folder inside another
                    inner.clear()
                    continue
                entered.add(real)
                inner[:] = sorted(each for each in inner if not each.startswith("."))
                if INDEX in files:
                    inner.clear()
                    yield name_of(root, Path(folder)), Path(folder)
                    continue
                for file in sorted(files):
                    if os.path.splitext(file)[1].lower() in SUFFIXES:
                        yield name_of(root, Path(folder) / file), Path(folder) / file


def name_of(root: Path, path: Path) -> str:
    """What a file is called: its path below the folder of its kind, or below `root`.

    >>> name_of(Path("a"), Path("a/models/Stable-diffusion/anime/b.safetensors"))
    'anime/b.safetensors'
    """
    parts = path.relative_to(root).parts or (path.name,)
    homes = [at for at, part in enumerate(parts[:-1]) if part.lower() in HOMES]
    name = "/".join(parts[homes[0] + 1:] if homes else parts)
    return name.encode("utf-8", "replace").decode()  # a file name need not be text


def described(name: str, path: Path) -> ModelFile:
    """What a file is, without its weights."""
    try:
        report = checkpoint.inspect(path)
    except (CheckpointError, OSError) as error:
        return ModelFile(name, path, 0, "unknown", "", "", False, str(error), {})
    kind = report.kind
    if kind is None:
        return ModelFile(name, path, report.size_bytes, "unknown", "", "unknown", False,
                         "it holds tensors of no known kind", {})
    problem = "" if report.loadable else _problem(report)
    config = report.config
    defaults: dict[str, float | int | str] = {} if config is None else {
        "width": config.default_width, "height": config.default_height,
        "steps": config.default_steps, "guidance_scale": config.default_guidance,
        "sampler": config.default_sampler, "noise": config.default_noise}
    if kind.supported:
        return ModelFile(name, path, report.size_bytes, MODEL, kind.family or kind.id, kind.words,
                         not problem, problem, defaults)
    return ModelFile(name, path, report.size_bytes, kind.id, "", kind.words, bool(kind.advice),
                     "" if kind.advice else f"{kind.words} is not read", {})


def _problem(report: Report) -> str:
    """Why a model cannot be loaded as it is."""
    if report.absent:
        return (f"it lacks {', '.join(report.absent)}; give vae or text_encoders with it")
    return "; ".join([f"{len(report.missing)} weights are missing"] * bool(report.missing)
                     + [f"{len(report.misfits)} weights have another shape"] * bool(report.misfits))
