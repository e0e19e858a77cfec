"""The parts that a model file lacks, or may have besides, of other files: those that fit it.

Models of the last years are published as a denoiser alone, beside text encoders and an autoencoder
that several of them share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations, islice, product
from pathlib import Path

from smalti.checkpoint.layout import VAE
from smalti.checkpoint.load import inspect, usual_files
from smalti.checkpoint.report import Report
from smalti.checkpoint.source import LATENT_TENSOR, open_source
from smalti.dataclass import dataclass
from smalti.diffusion.fit import disagreements
from smalti.errors import CheckpointError
from smalti.families import ModelFamily, families, text_encoders
from smalti.families.redux import FILES as REDUX_FILES

TRIES_MAX = 32
"""Combinations of files that are tried for a model: each reads their headers, in 20 ms or so."""


@dataclass(frozen=True)
class Completed:
    """What a model is together with the files that bring what it lacks."""

    report: Report
    text_encoders: tuple[Path, ...]
    vae: Path | None


def completed(model: Report, brought: Mapping[Path, Sequence[str]]) -> Completed | None:
    """A model with the parts that it lacks, and with what makes tokens of pictures for it where
    files bring that; None where other files bring not all that it lacks, or nothing that fits.

    `brought` are the parts that each of these holds, as its report counts them. A file that is
    called as that of its part usually is goes before others. What reads pictures in a text encoder
    may be a file of its own, beside that of the language model.
    """
    if model.kind is None or not model.kind.supported:
        return None
    family = families()[model.kind.family]
    if not model.absent:
        whole = Completed(model, (), None)
        shown = _shown_to(whole, family, brought) if model.loadable else whole
        return None if shown is whole else shown
    usual = usual_files(family)
    seeing = {text.encoder.name for text in family.texts if text.seen is not None}
    choices: list[list[tuple[Path, ...]]] = []
    for part in model.absent:
        fitting = [path for path, parts in brought.items() if _may_be(part, parts)
                   and (part != VAE or _suits(path, family))]
        named = [path for path in fitting if path.name == usual.get(part)]
        ordered = [*named, *(path for path in fitting if path not in named)]
        choices.append([(path,) for path in ordered])
        if part in seeing:
            choices[-1] += combinations(ordered, 2)
    for chosen in islice(product(*choices), TRIES_MAX):
        files = dict(zip(model.absent, chosen, strict=True))
        vae, = files.pop(VAE, (None,))
        encoders = tuple(dict.fromkeys(path for paths in files.values() for path in paths))
        try:
            found = inspect(model.path, encoders, vae)
        except CheckpointError:  # such as a text encoder that the model does not read
            continue
        if found.loadable and found.config and not any(disagreements(found.config)):
            return _shown_to(Completed(found, encoders, vae), family, brought)
    return None


def _shown_to(model: Completed, family: ModelFamily,
              brought: Mapping[Path, Sequence[str]]) -> Completed:
    """A whole model with what makes tokens of pictures for it, where files bring all of that; those
    that are called as usual go before others."""
    for part in readers_of_pictures(family):
        fitting = sorted((path for path, parts in brought.items() if part in parts),
                         key=lambda path: path.name not in REDUX_FILES)
        alone = ((path,) for path in fitting if path.is_dir())  # a folder has both networks
        for more in islice(chain(alone, combinations(fitting, 2)), TRIES_MAX):
            encoders = (*model.text_encoders, *more)
            try:
                found = inspect(model.report.path, encoders, model.vae)
            except CheckpointError:  # such as two image encoders
                continue
            if found.loadable and found.config and not any(disagreements(found.config)):
                return Completed(found, encoders, model.vae)
    return model


def readers_of_pictures(family: ModelFamily) -> tuple[str, ...]:
    """The parts that make tokens of a prompt from pictures, without which models of a family are
    whole.

    >>> readers_of_pictures(families()["flux"]), readers_of_pictures(families()["chroma"])
    (('redux',), ())
    """
    return tuple(text.encoder.name for text in family.texts if text.encoder.of_pictures)


def _may_be(part: str, parts: Sequence[str]) -> bool:
    """Whether a file of these parts may bring a part: which one a CLIP is, is not told by its
    tensors where it has a width of its own."""
    known = text_encoders()
    return part in parts or (part in known and known[part].chunked
                             and not any(each == VAE or each in known for each in parts))


def _suits(path: Path, family: ModelFamily) -> bool:
    """Whether latents of an autoencoder have as many channels as those of a family."""
    latent = open_source(path).shapes.get(LATENT_TENSOR, ())
    return len(latent) > 1 and latent[1] == family.vae.inner_channels
