"""Model files in the folders that people have, known by name; nothing of their weights is read.

What a file is, is seen in the names and shapes that it holds, so folders may be laid out in any way
(`smalti.server.folders`). A request never says a path: it says a name, which is looked up here.
"""

from __future__ import annotations

import difflib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from smalti import checkpoint, fetch
from smalti.checkpoint import Report, open_companion
from smalti.checkpoint.companion_kind import kind_of
from smalti.checkpoint.file_kind import listed
from smalti.checkpoint.load import lacking, usual_files
from smalti.dataclass import dataclass
from smalti.diffusion import completing
from smalti.diffusion.pipeline import SHIPPED_MODEL
from smalti.diffusion.purpose import pictures_read, purpose, untaken
from smalti.diffusion.request import size_multiple
from smalti.errors import CheckpointError, InputError
from smalti.families import families
from smalti.families.controls import control_kind, misfit
from smalti.models.denoiser_config import DenoiserConfig
from smalti.server.beside import words_of
from smalti.server.folders import INDEX, SUFFIXES, Candidate, found_files, roots

LOOK_SECONDS = 1.0
"""For which what was found in the folders is taken to be there: a look at a thousand files takes
30 ms, and a job asks for several names."""
NEAR_CHARACTERS_MAX = 500
"""Of a name that none has, for which near ones are looked for, in time that grows with it; file
systems have names of up to 255."""
MODEL, LORA, CONTROLNET, UNKNOWN = "model", "lora", "controlnet", "unknown"
PARTS = VAE, TEXT_ENCODER = "vae", "text-encoder"
"""Kinds of files of one part, which bring models what these lack."""
State = tuple[str, Path, int, int]
"""A file as it is now: its name, its path, when it was changed, and its size."""


@dataclass(frozen=True)
class ModelFile:
    """A file, or a folder of diffusers, that was found: its name, and what it is.

    `kind` is "model" for what makes pictures, else "lora", "embedding", "controlnet", "vae",
    "text-encoder", "esrgan", "taesd", ..., or "unknown". `family` is that of a model, `title` says
    what the file is, in words. `usable` tells whether pictures can be made with it, `problem` why
    not. `defaults` are what a model makes where nothing else is asked for, in sizes that are
    multiples of `multiple`; `words` are those that an adapter was trained with. `guided` tells of a
    model whether it takes `distilled_guidance`, `untaken` which options of a picture mean nothing
    to it, and `purpose` whether it reads a picture: "text" for one that does not. It takes up to
    so many `pictures` at a time. `holds` are the parts of models that are in the file, `vae` and
    `text_encoders` the names of other files that bring what the file of a model has not, and
    `lacks` what no file brings. `network` are the hyperparameters of what denoises in a model, or
    of a ControlNet; `controls` the names of the ControlNets that fit a model.
    """

    name: str
    path: Path
    bytes: int
    kind: str
    family: str
    title: str
    usable: bool
    problem: str
    defaults: dict[str, Any]
    words: tuple[str, ...] = ()
    multiple: int = 1
    guided: bool = False
    purpose: str = ""
    pictures: int = 1
    untaken: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    vae: str = ""
    text_encoders: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    network: object = None
    controls: tuple[str, ...] = ()

    @property
    def fills(self) -> bool:
        """Whether it is a ControlNet that fills parts of pictures."""
        kind = control_kind(self.network)
        return kind is not None and kind.fills(self.network)

    @property
    def stem(self) -> str:
        """The last part of the name, without the ending of a file of weights."""
        last = self.name.rpartition("/")[2]
        stem, ending = os.path.splitext(last)
        return stem if ending.lower() in SUFFIXES else last


class ModelFolders:
    """The models in some folders, those that were fetched by name, and the one that ships with
    Smalti, which is always there.

    `given` are folders, and files like ComfyUI's `extra_model_paths.yaml`. What is left out of
    them, and why, is told once to `warn`; `warnings` are those of the last look.
    """

    def __init__(self, given: Sequence[str | Path] = (),
                 warn: Callable[[str], None] | None = None) -> None:
        self.given = [Path(each) for each in given]
        self.warnings: list[str] = []
        self._warn = warn or to_log
        self._told: set[str] = set()
        self._turn = threading.Lock()
        self._seen: dict[State, ModelFile] = {}
        self._completed: dict[tuple[str, tuple[State, ...]], ModelFile] = {}
        self._last: tuple[float, list[ModelFile]] | None = None

    def recent(self) -> list[ModelFile]:
        """As `all`, but as it was at the last look where that is no longer ago than a second."""
        last = self._last
        if last is not None and time.monotonic() - last[0] < LOOK_SECONDS:
            return list(last[1])
        return self.all()

    def all(self) -> list[ModelFile]:
        """Everything that is there now, the shipped model first; only what is new is opened."""
        with self._turn:
            warnings: list[str] = []
            searched = roots(self.given, warnings.append)
            seen: dict[State, ModelFile] = {}
            found: dict[tuple[str, str], ModelFile] = {}
            states: dict[Path, State] = {}
            known = [Candidate(SHIPPED_MODEL.name, SHIPPED_MODEL, "smalti"), *_fetched()]
            for each in [*known, *found_files(searched, warnings.append,
                                              [each.path for each in known])]:
                try:
                    state = (each.path / INDEX if each.path.is_dir() else each.path).stat()
                except OSError:
                    continue  # it went while it was listed
                key = each.name, each.path, state.st_mtime_ns, state.st_size
                states[each.path] = key
                file = seen[key] = self._seen.get(key) or described(each.name, each.path)
                if (file.kind, file.name) in found:  # that of another folder, which came before
                    file = replace(file, name=f"{each.title}/{file.name}")
                if file.kind == UNKNOWN and not file.title:
                    warnings.append(f"{file.name} is not used: {file.problem}")
                found.setdefault((file.kind, file.name), file)
            self._seen = seen
            files = self._whole(list(found.values()), states)
            self._tell(warnings)
            self._last = time.monotonic(), files
            return list(files)

    def _whole(self, files: list[ModelFile], states: Mapping[Path, State]) -> list[ModelFile]:
        """The same files, models that lack parts, or may read pictures, together with those that
        bring this, and all with the ControlNets that fit them."""
        parts = [each for each in files if each.kind in PARTS]
        among = tuple(states[each.path] for each in parts)
        known, self._completed = self._completed, {}
        found = []
        for each in files:
            if each.lacks or _may_see(each, parts):
                key = each.name, (states[each.path], *among)
                each = self._completed[key] = known.get(key) or completed(each, parts)
            found.append(each)
        return _with_controls(found)

    def forget(self) -> None:
        """Open everything anew when it is listed next."""
        with self._turn:
            self._seen, self._completed, self._last = {}, {}, None

    def _tell(self, warnings: list[str]) -> None:
        """Keep what is to be warned of, and say what is new of it."""
        self.warnings = list(dict.fromkeys(warnings))
        for text in self.warnings:
            if text not in self._told:
                self._told.add(text)
                self._warn(text)

    def of_kind(self, kind: str) -> list[ModelFile]:
        """All files of a kind."""
        return [each for each in self.recent() if each.kind == kind]

    def named(self, name: object, kind: str) -> ModelFile:
        """The file of a kind by its name: with or without folders and ending, where that is clear.

        Raises InputError with near names.
        """
        if not isinstance(name, str):
            raise InputError(f"a {kind} is given as {name!r:.80}; expected its name")
        for look in (self.recent, self.all):  # what is not there yet may have come since
            files = [each for each in look() if each.kind == kind]
            found = _named(name, files)
            if found is not None:
                return found
        stems = {each.stem: each.name for each in files}
        near = [stems[stem] for stem in difflib.get_close_matches(
            Path(name[:NEAR_CHARACTERS_MAX]).stem, stems, n=3)]
        known = near or [each.name for each in files[:10]]
        raise InputError(f"no {kind} is named {name!r:.200}; " + (
            f"{'near' if near else 'known'} ones: {', '.join(known)}" if known else
            f"there is none in the folders that are served: {self._where()}"))

    def _where(self) -> str:
        return ", ".join(map(str, self.given)) or "none; give --models FOLDER"


def _fetched() -> list[Candidate]:
    """Models that were fetched by name and are whole, by their short names or addresses."""
    whole = [kept for kept in fetch.ModelStore().all()
             if all(Path(each.path).exists() for each in kept.files)]
    return [Candidate(fetch.short(kept.name), Path(kept.path), "fetched") for kept in whole]


def _named(name: str, files: Sequence[ModelFile]) -> ModelFile | None:
    """The one file that is meant by a name."""
    wanted = name.replace("\\", "/")  # as programs on Windows know a file in a folder
    for spelled in (lambda each: each.name, lambda each: os.path.splitext(each.name)[0],
                    lambda each: each.stem):
        found = [each for each in files if spelled(each) in (name, wanted)]
        if len(found) == 1:
            return found[0]
    return None


def to_log(text: str) -> None:
    """Say a warning where the server's log goes."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def described(name: str, path: Path) -> ModelFile:
    """What a file is, without its weights."""
    try:
        report = checkpoint.inspect(path)
    except (CheckpointError, OSError) as error:
        return ModelFile(name, path, 0, UNKNOWN, "", "", False, str(error), {})
    kind = report.kind
    if kind is None:
        return ModelFile(name, path, report.size_bytes, UNKNOWN, "", "unknown", False,
                         "it holds tensors of no known kind", {})
    parts = tuple(part for part, count in report.parameters.items() if count)
    if kind.id == CONTROLNET:
        return _controlnet(name, path, report.size_bytes, kind.words)
    if kind.supported:
        return _with_report(ModelFile(name, path, report.size_bytes, MODEL, kind.family or kind.id,
                                      kind.words, False, "", {}, holds=parts), report)
    return ModelFile(name, path, report.size_bytes, kind.id, "", kind.words, bool(kind.advice),
                     "" if kind.advice else f"{kind.words} is not read", {},
                     words_of(path) if kind.id == LORA else (), holds=parts)


def _controlnet(name: str, path: Path, size: int, words: str) -> ModelFile:
    """A ControlNet, and what it is for."""
    try:
        config = open_companion(path).config
    except (CheckpointError, OSError) as error:
        return ModelFile(name, path, size, CONTROLNET, "", words, False, str(error), {})
    return ModelFile(name, path, size, CONTROLNET, "", kind_of(config).title(config), True, "", {},
                     network=config)


def _with_controls(files: list[ModelFile]) -> list[ModelFile]:
    """The same files, models with the names of the ControlNets that fit them."""
    nets, found = [each for each in files if each.kind == CONTROLNET and each.usable], []
    for each in files:
        if each.kind == MODEL and isinstance(each.network, DenoiserConfig):
            controls = tuple(net.name for net in nets if not misfit(net.network, each.network))
            each = each if each.controls == controls else replace(each, controls=controls)
        found.append(each)
    return found


def _with_report(file: ModelFile, report: Report) -> ModelFile:
    """A model with what is known of it."""
    problem = "" if report.loadable else _problem(report)
    file = replace(file, usable=not problem, problem=problem, guided=report.guided,
                   lacks=report.absent)
    config = report.config
    if config is None:
        return file
    defaults: dict[str, Any] = {
        "width": config.default_width, "height": config.default_height,
        "steps": config.default_steps, "guidance_scale": config.default_guidance,
        "guidance_time": list(config.default_guidance_time),
        "sampler": config.default_sampler, "noise": config.default_noise}
    if report.guided:
        defaults["distilled_guidance"] = config.default_distilled_guidance
    file = replace(file, defaults=defaults, multiple=size_multiple(config),
                   pictures=pictures_read(config), network=config.denoiser)
    try:
        return replace(file, purpose=purpose(config), untaken=tuple(untaken(config)))
    except InputError as error:
        return replace(file, usable=False, problem=str(error))


def _may_see(file: ModelFile, parts: Sequence[ModelFile]) -> bool:
    """Whether a whole model may read pictures with what is among these files of parts."""
    if file.kind != MODEL or not file.usable:
        return False
    readers = completing.readers_of_pictures(families()[file.family])
    return any(reader in each.holds for each in parts for reader in readers
               if reader not in file.holds)


def completed(file: ModelFile, parts: Sequence[ModelFile]) -> ModelFile:
    """A model with files that bring what it lacks, or may have besides; itself where there are
    none."""
    named = {each.path: each.name for each in parts}
    try:
        found = completing.completed(checkpoint.inspect(file.path),
                                     {each.path: each.holds for each in parts})
    except (CheckpointError, OSError):  # a file that went, or changed, meanwhile
        return file
    if found is None:
        return file
    vae = "" if found.vae is None else named[found.vae]
    return replace(_with_report(file, found.report), vae=vae,
                   text_encoders=tuple(named[each] for each in found.text_encoders))


def _problem(report: Report) -> str:
    """Why a model cannot be loaded as it is."""
    if report.absent and report.kind is not None:
        usual = usual_files(families()[report.kind.family])
        files = listed([usual[each] for each in report.absent if each in usual])
        return (f"{lacking(report.absent)}; put the files of them, such as {files}, into the "
                f"folders that are served")
    return "; ".join([f"{len(report.missing)} weights are missing"] * bool(report.missing)
                     + [f"{len(report.misfits)} weights have another shape"] * bool(report.misfits)
                     + [f"not computed: {line}" for line in report.uncomputed])
