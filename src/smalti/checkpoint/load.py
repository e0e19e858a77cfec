"""Open a checkpoint: a single file of any format or a diffusers folder, and separate parts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_args

from smalti.checkpoint import uncomputed
from smalti.checkpoint.checkpoint import Checkpoint
from smalti.checkpoint.configuration import derive_config
from smalti.checkpoint.container import INTEGERS
from smalti.checkpoint.file_kind import listed, require_supported
from smalti.checkpoint.layout import DENOISER, VAE, inside, titles
from smalti.checkpoint.report import Report
from smalti.checkpoint.source import FoundModel, open_source, with_parts
from smalti.checkpoint.taught_words import TaughtWords
from smalti.checkpoint.tensors import Shape, StoredTensor
from smalti.errors import CheckpointError, InputError, first_of
from smalti.families import ModelFamily, families, family_of
from smalti.families.expected import expected_tensors
from smalti.families.hints import Hints
from smalti.models.config import Prediction
from smalti.runtime.inputs import checked_path

HOMES = ("models/text_encoders of ComfyUI, models/text_encoder of Forge",
         "models/vae of ComfyUI, models/VAE of Forge")
"""Where programs that people have keep text encoders, and autoencoders."""
Paths = Sequence[str | Path]


def load(path: str | Path, text_encoders: Paths = (), vae: str | Path | None = None,
         prediction: str | None = None, zero_terminal_snr: bool | None = None,
         defaults: Mapping[str, Any] = MappingProxyType({})) -> Checkpoint:
    """Open a checkpoint: a file (`.safetensors`, `.ckpt`, `.gguf`, ...) or a diffusers folder.

    `text_encoders` and `vae` are files of parts that the checkpoint does not hold, or that are to
    replace its own; which text encoder a file holds is seen in it. `prediction` is what the
    denoiser predicts ("epsilon", "v_prediction", ...), and `zero_terminal_snr` whether it was
    trained down from noise alone, where that is known better than the file tells; `defaults` are
    what pictures are to be made with, by the names of `Hints`. Raises
    `UnknownFamilyError` for other models, `CheckpointError` for damaged or incomplete files; all
    missing and misshapen tensors are counted, and the first ten are named.
    """
    if prediction is not None and prediction not in get_args(Prediction):
        raise InputError(f"prediction is {prediction!r}; known: {', '.join(get_args(Prediction))}")
    if zero_terminal_snr not in (None, True, False):
        raise InputError(f"zero_terminal_snr is {zero_terminal_snr!r}; expected True or False")
    source = open_source(Path(
        checked_path(path, "loading", "the path of a model file, or of a folder")))
    kind = require_supported(path, source.kind, source.shapes)
    source = with_parts(source, [Path(each) for each in text_encoders],
                        None if vae is None else Path(vae))
    stated = cast("Prediction | None", prediction)  # one of them, as is checked above
    report, wanted = _report(replace(source, known=Hints(
        **{**defaults, "prediction": stated, "zero_terminal_snr": zero_terminal_snr})))
    if report.absent:
        advice = _advice(report.absent, families()[kind.family])
        raise CheckpointError(f"{path} is {kind.words} and incomplete: {advice}")
    if report.uncomputed and not report.missing and not report.misfits:
        unknown = "\n  ".join(report.uncomputed)
        raise CheckpointError(
            f"{path} looks like {kind.words}, but has what Smalti does not compute, without which"
            f" its pictures would be wrong; use another model:\n  {unknown}")
    if report.config is None or not report.loadable:
        problems = [f"missing {name}" for name in report.missing]
        problems += [f"wrong {line}" for line in report.misfits]
        listed = first_of(problems, separator=",\n  ")
        raise CheckpointError(
            f"{path} looks like {kind.words}, but tensors are missing ({len(report.missing)}) or"
            f" of another shape or dtype than expected ({len(report.misfits)}); download it again,"
            f" or give a complete checkpoint:\n  {listed}"
        )
    config = report.config
    if (config.prediction == "flow") != (family_of(config).prediction == "flow"):
        raise InputError(f"prediction is {config.prediction!r}, which models like {kind.words} do"
                         f" not predict; leave it out")
    return Checkpoint(config, report, {name: source.tensors[name] for name in wanted})


def inspect(path: str | Path, text_encoders: Paths = (), vae: str | Path | None = None) -> Report:
    """What the checkpoint at `path` is, whether or not Smalti can load it, with parts of other
    files as `load` takes them.

    Raises `CheckpointError` for a file that cannot be understood at all.
    """
    return _report(with_parts(open_source(Path(path)), [Path(each) for each in text_encoders],
                              None if vae is None else Path(vae)))[0]


def usual_files(family: ModelFamily) -> dict[str, str]:
    """Parts that models of a family read -> what the files of these are usually called."""
    return {VAE: family.vae_file, **{text.encoder.name: text.file or text.encoder.file
                                     for text in family.texts}}


def lacking(absent: Sequence[str]) -> str:
    """That a model lacks these parts, in words."""
    return f"it lacks {listed([titles()[part] for part in absent])}"


def _advice(absent: Sequence[str], family: ModelFamily) -> str:
    """What to give for parts that are not there: what their files are usually called, and where
    they are found."""
    files = usual_files(family)
    given = [part for part in absent if part in files]
    options = [f"{'--vae' if part == VAE else '--text-encoder'} {files[part]}" for part in given]
    homes = list(dict.fromkeys(HOMES[part == VAE] for part in given))
    return (f"{lacking(absent)}; give the files of them, such "
            f"as {' '.join(options)}, from Python with text_encoders= and vae=; such files are "
            f"usually where the model was published, and in {' or '.join(homes)}")


def _report(source: FoundModel) -> tuple[Report, Mapping[str, Shape]]:
    """What a model is, and the shapes of all tensors that it needs, none where that is not known.
    """
    tensors, shapes = source.tensors, source.shapes
    parameters: Counter[str] = Counter()
    starts = {part: inside(part) for part in titles()}
    for name, shape in shapes.items():
        part = next((part for part, start in starts.items() if name.startswith(start)), "other")
        parameters[part] += math.prod(shape)
    files = {id(tensor.file): tensor.file for tensor in tensors.values()}.values()
    report = Report(
        path=str(source.path),
        format=source.format,
        size_bytes=sum(file.size_bytes for file in files),
        kind=source.kind,
        precisions=dict(Counter(tensor.dtype for tensor in tensors.values()).most_common()),
        parameters=dict(parameters),
        config=None,
        notes=source.notes,
        words=TaughtWords.beside(source.path),
    )
    family = source.family
    if family is None:
        return report, {}
    if source.distilled:
        report = replace(report, notes=(*report.notes, f"defaults are those of "
                                        f"{source.distilled.word} models, as "
                                        f"{source.distilled.shown}"))
    named = source.named.prediction
    if named and source.hints().prediction == named:
        report = replace(report, notes=(*report.notes, f"that it predicts {named} is what its name "
                                        f"says; --prediction says it otherwise"))
    wanted = [DENOISER, *(text.encoder.name for text in family.texts if not text.optional), VAE]
    absent = tuple(part for part in wanted if part not in source.parts)
    if absent:
        told = DENOISER not in absent and family.backbone.config(
            source.path, shapes, source.hints()).guidance
        return replace(report, absent=absent, guided=told), {}
    config = derive_config(source.path, family, shapes, source.hints(), source.place,
                           lambda name: tensors[name].read())
    if source.distilled and source.distilled.few:
        config = replace(config, distilled=source.distilled.word)
        if config.flow_shift is None and (shift := source.distilled.values.get("flow_shift")):
            config = replace(config, flow_shift=float(shift))  # whatever its scheduler says of size
    expected = expected_tensors(config)
    found, latent = config.denoiser.in_channels, config.vae.z_channels
    if found != latent:
        report = replace(report, notes=(*report.notes, f"it changes a picture: {found} channels are"
                                        f" read, {latent} of them the latent"))
    return replace(
        report,
        config=config,
        guided=config.denoiser.guidance,
        missing=tuple(name for name in expected if name not in shapes),
        misfits=tuple(_misfits(tensors, expected)),
        ignored=(left := tuple(name for name in shapes if name not in expected)),
        uncomputed=(*uncomputed.layers(tensors, left), *uncomputed.settings(source.tables),
                    *uncomputed.pictures(source.hints(), config)),
    ), expected


def _misfits(tensors: Mapping[str, StoredTensor], expected: Mapping[str, Shape]) -> Iterable[str]:
    """Tensors that are there but cannot be the weight that they are named after."""
    for name, shape in expected.items():
        tensor = tensors.get(name)
        if tensor is not None and tensor.shape != shape:
            yield f"{name}: found shape {tensor.shape}, expected {shape}"
        elif tensor is not None and tensor.dtype in INTEGERS:
            yield f"{name}: found dtype {tensor.dtype}, expected a floating-point one"
