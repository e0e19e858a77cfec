"""Where model files are found: folders of A1111, Forge, ComfyUI, Easy Diffusion, the hub's cache.

What is searched is a list of roots, and all that is in them. But the folder of a program, which is
one with a folder `models` and files of Python, has many others: of it, only those that are called
like places for models are searched. A repository in the cache of the hub, `models--OWNER--NAME`,
has snapshots whose files are links into its `blobs`; it is listed by its name, `OWNER/NAME`.

Links are followed wherever they lead: who lays out these folders is the user, no request and
nothing that the server writes makes one. But only folders and plain files count, so that no pipe or
device is opened, a folder is entered once, and a file that is reached twice, by links of either
kind, is listed once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from smalti.checkpoint.shards import NUMBERED
from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.server.comfy import EXTRA, Folders, Warn, extra_folders

SUFFIXES = (".safetensors", ".ckpt", ".pt", ".pth", ".bin", ".gguf", ".sft")
"""Endings of files that may hold weights."""
UNFINISHED = (".part", ".partial", ".crdownload", ".download", ".incomplete", ".tmp", ".!qb",
              ".opdownload", ".filepart")
"""What programs that download a file add to its name until it is whole."""
UNFINISHED_BESIDE = ".aria2"
"""The ending of a file beside one that has its whole size already, and not its whole content."""
INDEX = "model_index.json"
"""What makes a folder a model of diffusers."""
HOMES = ("stable-diffusion", "stablediffusion", "checkpoints", "diffusion_models",
         "diffusionmodels", "unet", "diffusers", "vae", "lora", "loras", "lycoris", "embeddings",
         "controlnet", "t2i_adapter", "esrgan", "realesrgan", "upscale_models", "text_encoders",
         "text_encoder", "text-encoder", "textencoders", "clip", "clip_vision", "style_models",
         "model_patches", "vae_approx", "vae-approx", "approxvae")
"""Folders of A1111, ComfyUI, Easy Diffusion and Stability Matrix that the name of a file does not
repeat, in small letters."""
PROGRAM = "models"
"""Where the folder of a program has most of its models, in small letters."""
EXTENSION = os.path.join("extensions", "sd-webui-controlnet", "models")
"""Where A1111's extension for ControlNet has its own."""
PASSED_OVER = frozenset(("__pycache__", "node_modules", "site-packages", "dist-packages"))
"""Folders that hold programs. So do hidden ones, and those with one of the next."""
ENVIRONMENT = ("pyvenv.cfg", "conda-meta")
"""What an environment of Python has."""
HUB, SNAPSHOTS = "models--", "snapshots"
NOT_MODELS = ("datasets--", "spaces--")
"""What the names of other repositories in the cache of the hub begin with."""
REVISION_DIGITS = 8
"""Of a snapshot that is not the newest one, in the name that it is listed by."""


@dataclass(frozen=True)
class Candidate:
    """What may be a model: its name, where it lies, and the title of the root it was found in."""

    name: str
    path: Path
    title: str


@dataclass(frozen=True)
class Root:
    """A folder that is searched; `title` tells it from others.

    In one `of_a_kind` the name of a file is its whole path below.
    """

    path: Path
    title: str
    of_a_kind: bool = False


def roots(given: Iterable[Path], warn: Warn) -> list[Root]:
    """The folders to search for what was given: folders, and files like `extra_model_paths.yaml`.

    What stands in such a file as `is_default` comes first, as in ComfyUI.
    """
    first: list[Root] = []
    found: list[Root] = []
    for each in given:
        own = [] if each.is_file() else [Root(each, each.absolute().name)]
        extra = each if each.is_file() else each / EXTRA
        if extra.is_file():
            try:
                preferred, others = extra_folders(extra, warn)
            except InputError as error:
                warn(str(error))
            else:
                first += _of_a_kind(preferred)
                own += _of_a_kind(others)
        found += own
    return first + found


def _of_a_kind(folders: Folders) -> list[Root]:
    return [Root(folder, title, of_a_kind=True) for title, folder in folders]


def found_files(searched: Sequence[Root], warn: Warn, known: Sequence[Path]
                ) -> Iterator[Candidate]:
    """What may be a model, each file once, and none that is `known`."""
    seen = {_identity(each.stat()) for each in known}

    def new(path: Path, usable: Callable[[int], bool]) -> bool:
        """Whether a file or folder is there, is of the right kind, and was not seen before."""
        try:
            state = path.stat()
        except OSError as error:
            warn(f"{path} is left out: it is a link that leads nowhere" if path.is_symlink() else
                 f"{path} is left out: {error.strerror or error}")
            return False
        if not usable(state.st_mode) or _identity(state) in seen:
            return False
        seen.add(_identity(state))
        return True

    def unreadable(error: OSError) -> None:
        warn(f"{error.filename} cannot be searched for models: {error.strerror or error}")

    for root in searched:
        for folder, inner, files in os.walk(root.path, followlinks=True, onerror=unreadable):
            here = Path(folder)
            if not new(here, stat.S_ISDIR):
                inner.clear()
                continue
            if here.name.startswith(HUB) and SNAPSHOTS in inner:
                inner.clear()
                for name, path in _repository(here, warn):
                    if new(path, lambda mode: stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                        yield Candidate(name, path, root.title)
                continue
            inner[:] = _searched(here, inner, files)
            whole = INDEX in files and _has_weights(here, inner, warn)
            if INDEX in files:
                inner.clear()
            if whole:
                yield Candidate(name_of(root, here), here, root.title)
            for file in _weights(here, files, warn):
                if new(here / file, stat.S_ISREG):
                    yield Candidate(name_of(root, here / file), here / file, root.title)


def name_of(root: Root, path: Path) -> str:
    """What a file is called: its path below the folder of its kind, or below `root`.

    >>> name_of(Root(Path("a"), "a"), Path("a/models/Stable-diffusion/anime/b.safetensors"))
    'anime/b.safetensors'
    """
    parts = path.relative_to(root.path).parts or (path.name,)
    homes = [] if root.of_a_kind else [
        at for at, part in enumerate(parts[:-1])
        if part.lower() in HOMES or Path(*parts[:at + 1]).match(EXTENSION)]
    return _text("/".join(parts[homes[0] + 1:] if homes else parts))


def _identity(state: os.stat_result) -> tuple[int, int]:
    """What is the same for all links to a file or folder."""
    return state.st_dev, state.st_ino


def _text(name: str) -> str:
    """A name as text, which that of a file need not be."""
    return name.encode("utf-8", "replace").decode()


def _searched(folder: Path, inner: Sequence[str], files: Sequence[str]) -> list[str]:
    """Those of the folders in a folder that may hold models, in order."""
    small = {name: name.lower() for name in inner}
    if PROGRAM in small.values() and any(name.endswith(".py") for name in files):
        found = [name for name in inner if small[name] in (PROGRAM, *HOMES)]
        return sorted(found + [EXTENSION] * os.path.isdir(folder / EXTENSION))
    return sorted(name for name in inner if not (
        name.startswith((".", *NOT_MODELS)) or name in PASSED_OVER
        or any(os.path.exists(folder / name / sign) for sign in ENVIRONMENT)))


def _weights(folder: Path, files: Sequence[str], warn: Warn) -> Iterator[str]:
    """Those of the files of a folder that may hold weights; of numbered shards the first."""
    names, sharded = set(files), set()
    for file in sorted(files):
        stem, ending = os.path.splitext(file)
        if ending.lower() in UNFINISHED and stem.lower().endswith(SUFFIXES):
            warn(f"{folder / file} is left out: a download that has not ended")
            continue
        if ending.lower() not in SUFFIXES:
            continue
        if file + UNFINISHED_BESIDE in names:
            warn(f"{folder / file} is left out: a download that has not ended, by "
                 f"{file}{UNFINISHED_BESIDE} beside it")
            continue
        shard = NUMBERED.fullmatch(file)
        if shard:
            whole = shard[1], shard[3], shard[4]
            if whole in sharded:
                continue
            sharded.add(whole)
        yield file


def _has_weights(folder: Path, inner: Sequence[str], warn: Warn) -> bool:
    """Whether a folder of diffusers holds weights, not only what describes them; what may not be
    looked into holds none."""
    for each in inner:
        try:
            if any(name.lower().endswith(SUFFIXES) for name in os.listdir(folder / each)):
                return True
        except OSError as error:
            warn(f"{folder / each} cannot be searched for models: {error.strerror or error}")
    return False


def _repository(folder: Path, warn: Warn) -> Iterator[tuple[str, Path]]:
    """Models of a repository in the cache of the hub: its newest snapshot by the name of the
    repository, older ones with the first digits of theirs."""
    name = _text(folder.name.removeprefix(HUB).replace("--", "/"))
    try:
        snapshots = {each.name: each for each in (folder / SNAPSHOTS).iterdir() if each.is_dir()}
        blobs = [*(folder / "blobs").iterdir()] if (folder / "blobs").is_dir() else []
        main = folder / "refs" / "main"
        newest = main.read_text(encoding="utf-8", errors="replace") if main.is_file() else ""
        for blob in blobs:
            if blob.suffix in UNFINISHED:
                warn(f"{name} has a download that has not ended, {blob}")
        order = sorted(snapshots.values(), key=lambda each: (
            each.name != newest.strip(), -each.stat().st_mtime, each.name))
        for at, snapshot in enumerate(order):
            called = name if at == 0 else f"{name}@{_text(snapshot.name)[:REVISION_DIGITS]}"
            yield from _snapshot(called, snapshot, warn)
    except OSError as error:
        warn(f"{error.filename or folder} cannot be searched for models: "
             f"{error.strerror or error}")


def _snapshot(name: str, folder: Path, warn: Warn) -> Iterator[tuple[str, Path]]:
    """Models of one snapshot: the whole of it where it is a folder of diffusers, and its files."""
    parts: list[str] = []
    for place, inner, files in os.walk(folder):
        here = Path(place)
        if here == folder and INDEX in files:
            parts = [*inner]
            if _has_weights(here, parts, warn):
                yield name, folder
            inner.clear()
        inner.sort()
        for file in _weights(here, files, warn):
            yield f"{name}/{_text((here / file).relative_to(folder).as_posix())}", here / file
