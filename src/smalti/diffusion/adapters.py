"""The adapters that a pipeline uses: those that it was given, and those that a prompt names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from smalti.checkpoint.adapters import Adapted, AdapterFile, Fit, WeightedAdapter
from smalti.checkpoint.hints import metadata_hints
from smalti.diffusion.prompt import AdapterUse
from smalti.diffusion.submodels import Submodels
from smalti.diffusion.words import Version, files_in, version_of
from smalti.errors import InputError
from smalti.families import families, family_of
from smalti.families.distilled import words
from smalti.models.config import ModelConfig
from smalti.runtime.inputs import checked_path

Entry = str | Path | WeightedAdapter | Sequence[object]
"""A file, with a weight (path, weight), with one of the text encoders (path, weight, text_weight),
or an open adapter with its weights."""


PREDICTION_KEYS = ("modelspec.prediction_type", "ss_v_parameterization")
"""Metadata in which trainers of adapters write what their model predicts."""
BASE_KEYS = ("ss_base_model_version", "ss_sd_model_name", "modelspec.architecture")
"""Metadata in which they write what model that is."""
VERSION = re.compile(r"(?<!\d)2[5-9]\d\d(?!\d)")
"""Year and month, as in Qwen-Image-Edit-2509."""
NOISE_OR_VELOCITY = {"epsilon", "v_prediction"}
"""Models that differ in this alone take each other's adapters, which do harm there."""
CHOSEN = {**{name: f"default_{name}" for name in ("steps", "guidance", "sampler", "noise")},
          **{name: name for name in ("flow_shift", "flow_terminal")}}
"""What adapters of few steps recommend, and what it is called in the configuration of a model; what
that predicts, and the size of its pictures, they leave as they are."""


class Adapters:
    """Which adapters a pipeline was given, and where it finds those that prompts name.

    A file that has been opened stays open, so that another weight of it changes nothing else.
    """

    def __init__(self, submodels: Submodels, folders: Sequence[str | Path] = ()) -> None:
        self.given = submodels.weights
        self.folders = [Path(each) for each in folders]
        self._submodels = submodels
        self._opened: dict[Version, AdapterFile] = {}
        for each in self.folders:
            if not each.is_dir():
                raise InputError(f"{each} is no folder; expected one with adapters")

    @property
    def uses(self) -> tuple[WeightedAdapter, ...]:
        """What was given, in order."""
        return self.given.uses

    def use(self, entries: Sequence[Entry]) -> None:
        """Use these and no others. Raises CheckpointError for a file that is no adapter or one for
        another kind of model, InputError for an entry that is none."""
        self.given = self._submodels.adapted([self._read(entry) for entry in entries])

    def add(self, path: str | Path, weight: float, text_weight: float | None) -> Fit:
        """Use one more, or one that is used with other weights; and what of it fits."""
        new = self._read((path, weight, text_weight))
        kept = [use for use in self.uses if use.adapter is not new.adapter]
        self.given = self._submodels.adapted([*kept, new])
        return self.given.fits[-1]

    def with_named(self, named: Sequence[AdapterUse]) -> Adapted:
        """The weights with what was given and with what a prompt names.

        Raises InputError for a name that no file in the folders has.
        """
        if not named or not self.folders:
            return self.given
        return self._submodels.adapted([*self.uses, *(
            WeightedAdapter(self._open(file_named(self.folders, asked.name)), asked.weight,
                            asked.text_weight) for asked in named)])

    def _read(self, entry: Entry) -> WeightedAdapter:
        """What an entry means."""
        if isinstance(entry, WeightedAdapter):
            return entry
        if isinstance(entry, str | Path):
            return WeightedAdapter(self._open(_path(entry)))
        path, *weights = entry if isinstance(entry, Sequence) else (entry,)
        numbers = [each for each in weights
                   if isinstance(each, int | float | None) and not isinstance(each, bool)]
        weight, text_weight = (*numbers, None, None)[:2]
        if not isinstance(path, str | Path) or len(weights) not in (1, 2) \
                or len(numbers) < len(weights) or weight is None:
            raise InputError(f"{entry!r} is no adapter; expected a path, (path, weight) or "
                             f"(path, weight, text_weight)")
        return WeightedAdapter(self._open(_path(path)), weight, text_weight)

    def _open(self, path: Path) -> AdapterFile:
        """The adapter in a file, which is opened again when it has changed."""
        key = version_of(path)
        if key not in self._opened:
            self._opened[key] = AdapterFile.open(path)
        return self._opened[key]

    def warnings(self, weights: Adapted, named: Sequence[AdapterUse]) -> list[str]:
        """What of the adapters of a picture is not used: one sentence for each that is left out, or
        not used whole."""
        left = [] if self.folders else dict.fromkeys(
            f"{asked.name!r} in the prompt is an adapter, and no folder of adapters is given; it "
            f"is left out" for asked in named)
        return [*left, *(f"{use.adapter.path.name}: {fit}" for use, fit in zip(
            weights.uses, weights.fits, strict=True) if fit.unused)]


def few_steps(config: ModelConfig, weights: Adapted) -> tuple[ModelConfig, list[str], list[str]]:
    """The defaults of a model with adapters, of which some make it one of few steps: as they
    recommend; what is to be told of that, and what is wrong with it."""
    notes, warnings = [], []
    recommended = family_of(config).recommended
    if config.distilled is not None:
        notes.append(f"defaults are those of {config.distilled} models")
    before = config.distilled and f"the model, made for few steps itself ({config.distilled})"
    for use in weights.uses:
        warnings += other_prediction(config, use.adapter)
        warnings += other_version(config, use.adapter)
        found = use.adapter.distilled(recommended) if use.weight else None
        if found is None:
            continue
        name = use.adapter.path.name
        if before:
            warnings.append(f"{name} makes few steps of many ({found.word}), and so does {before}; "
                            f"together they make worse pictures: use one of them")
        values: Mapping[str, Any] = {CHOSEN[key]: value for key, value in found.values.items()
                                     if key in CHOSEN}
        config = replace(config, **values, distilled=found.word)
        notes = [f"defaults are those that {name} is made for: {found}"]
        before = name
    return config, notes, warnings


def other_prediction(config: ModelConfig, adapter: AdapterFile) -> list[str]:
    """What is to be said of an adapter whose metadata say that it was trained for velocities, and
    of a model that predicts noise, or the other way round."""
    stated = metadata_hints(adapter.path, {
        key: adapter.file.metadata.get(key, "") for key in PREDICTION_KEYS}).prediction
    if stated == config.prediction or not {stated, config.prediction} <= NOISE_OR_VELOCITY:
        return []
    return [f"{adapter.path.name} was trained for models that predict {stated}, and this one "
            f"predicts {config.prediction}; pictures may be washed out or burnt"]


def other_version(config: ModelConfig, adapter: AdapterFile) -> list[str]:
    """What is to be said of an adapter whose metadata name another one of several models with the
    same tensors, such as Qwen-Image-Edit-2509 for 2511. What they say without a number, such as
    "plus", may mean any that see pictures alike."""
    known = families()
    base = next((each for each in known.values() if each.named
                 and config.family in (each.name, *each.named.values())), None)
    if base is None:
        return []
    said = words(*(adapter.file.metadata.get(key, "") for key in BASE_KEYS))
    told = base.told_by(said)
    if told is None or told == config.family:
        return []
    seen, own = ([text.seen for text in known[name].texts] for name in (told, config.family))
    if not VERSION.search(said) and seen == own:
        return []
    return [f"{adapter.path.name} was trained for {known[told].title}, as its metadata say, and "
            f"this model is {known[config.family].title}; it may do little, or harm"]


def labels(weights: Adapted) -> tuple[str, ...]:
    """Name and weights of each, as prompts write them: `name:0.8` or `name:0.5:0.8`, the text
    encoders' first."""
    return tuple(
        f"{use.adapter.path.stem}:" + (
            "" if use.text_weight is None else f"{use.text_weight:g}:") + f"{use.weight:g}"
        for use in weights.uses)


def file_named(folders: Sequence[Path], name: str) -> Path:
    """The file of an adapter by its name, in any capitals; the first folder that has one counts.

    Raises InputError with near names.
    """
    files = {file.stem: file for folder in reversed(folders) for file in files_in(folder)}
    lower = {stem.lower(): file for stem, file in files.items()}
    file = files.get(name) or lower.get(name.lower())
    if file is None:
        near = difflib.get_close_matches(name, files, n=3, cutoff=0.5)
        raise InputError(f"the prompt asks for the adapter {name!r}, and none of the "
                         f"{len(files)} files in {', '.join(map(str, folders))} is named so"
                         + f"; near ones: {', '.join(near)}" * bool(near))
    return file


def _path(given: str | Path) -> Path:
    """The path of an adapter. Raises InputError for a text that can be none."""
    return Path(checked_path(given, "loading", "the path of an adapter"))
