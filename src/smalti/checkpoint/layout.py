"""Which part of a model each tensor of a file belongs to, and which parameter it is inside.

A file may hold one part or several, each below a prefix of its own and under the names of one of
several code bases. Inside, parameters have one name each: those of the graphs in `smalti.models`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from smalti.dataclass import dataclass
from smalti.families import autoencoders, families, text_encoders
from smalti.families.keys import Expression, StoredRows, expressions
from smalti.families.keys.renaming import is_ignored
from smalti.families.prefixes import UNET
from smalti.families.prefixes import VAE as AUTOENCODER
from smalti.families.record import Layout

DENOISER = "denoiser"
VAE = "vae"
TEXT = "text encoder"
"""The part that a file of a text encoder alone holds, until its shapes say which one it is."""

BARE_PREFIXES = ("diffusion_model.", "model.", "net.")
"""What the names of a denoiser alone may start with."""


def titles() -> dict[str, str]:
    """Part of a model -> the words for it."""
    return {DENOISER: "the denoiser", VAE: "the autoencoder (VAE)",
            **{name: encoder.title for name, encoder in text_encoders().items()}}


def inside(part: str) -> str:
    """What the parameters of a part start with inside.

    >>> inside("clip_l")
    'cond_stage_model.transformer.'
    """
    if part in (DENOISER, VAE):
        return {DENOISER: UNET, VAE: AUTOENCODER}[part]
    return text_encoders()[part].inside if part in text_encoders() else f"{part}."


def prefixes() -> list[tuple[str, str]]:
    """What the names of a part start with in files that hold several; the longer ones first."""
    found = [(UNET, DENOISER), (AUTOENCODER, VAE), ("vae.", VAE)]
    for name, encoder in text_encoders().items():
        found += [(prefix, name) for prefix in encoder.prefixes]
        found += [(f"text_encoders.{name}.{middle}", name)
                  for middle in ("transformer.", "model.", "")]
    return sorted(found, key=lambda pair: -len(pair[0]))


Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Contents:
    """The parts of a file: of each, parameter -> expression over what is stored.

    `others` are stored names of no part.
    """

    parts: Mapping[str, Mapping[str, Expression]]
    doubles: tuple[tuple[str, Expression], ...]
    others: tuple[str, ...]


def contents(names: Iterable[str], bare: str | None, family: str | None) -> Contents:
    """Sort the stored `names`; those without a prefix belong to the part `bare`, None for none.

    The `family` is that of the denoiser. A parameter that is stored a second time under another
    name is one of the `doubles`.
    """
    stored, others = _sorted(names, bare)
    parts: dict[str, dict[str, Expression]] = {}
    doubles = []
    for part, table in stored.items():
        parts[part] = {}
        for ours, expression in _expressed(part, table, family):
            full = tuple(replace(piece, name=table[piece.name]) for piece in expression
                         if piece.name in table)
            if len(full) == len(expression):
                if parts[part].setdefault(ours, full) is not full:
                    doubles.append((ours, full))
    return Contents(parts, tuple(doubles), tuple(others))


def renamed(part: str, parameters: Mapping[str, Expression]) -> dict[str, Expression]:
    """Parameters of a text encoder that was not known yet, as those of `part`."""
    return {inside(part) + name.removeprefix(f"{TEXT}."): expression
            for name, expression in parameters.items()}


def which_text_encoder(parameters: Iterable[str], shapes: Shapes) -> str | None:
    """Which text encoder has these parameters; None for a CLIP of another width than any has.

    >>> which_text_encoder((), {"text encoder.text_model.final_layer_norm.bias": (1280,)})
    'clip_g'
    """
    names = list(parameters)
    return next((name for name, encoder in text_encoders().items()
                 if encoder.shows(names, shapes)), None)


def _sorted(names: Iterable[str], bare: str | None) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Part -> name below its prefix -> stored name; and the names of no part."""
    found: dict[str, dict[str, str]] = {}
    others, known = [], prefixes()
    for name in names:
        prefix, part = next((pair for pair in known if name.startswith(pair[0])), ("", bare))
        if part is None or is_ignored(name):
            others.append(name)
            continue
        if part == DENOISER and not prefix:
            prefix = next((each for each in BARE_PREFIXES if name.startswith(each)), "")
        found.setdefault(part, {})[name.removeprefix(prefix)] = name
    return found, others


def _expressed(part: str, names: Mapping[str, str],
               family: str | None) -> Iterator[tuple[str, Expression]]:
    """Parameters of a part, whose names below its prefix these are."""
    start, layout = inside(part), _layout(part, names, family)
    if callable(layout):
        yield from ((start + layout(name), (StoredRows(name),)) for name in names)
        return
    found, unknown = expressions(names, layout)
    yield from ((start + ours, expression) for ours, expression in found.items())
    yield from ((start + name, (StoredRows(name),)) for name in unknown)


def _layout(part: str, names: Iterable[str], family: str | None) -> Layout:
    """How the names of a part become those of parameters; as they are where none is known."""
    if part == DENOISER:
        return families()[family].backbone.layout(names) if family else str
    if part == VAE:
        kinds = [families()[family].autoencoder] if family else [
            kind for kind in autoencoders() if kind.shows(names)]
        return kinds[0].layout(names) if kinds else str
    known = text_encoders()
    encoders = [known[part]] if part in known else known.values()
    layouts = (encoder.layout(names) for encoder in encoders)
    return next((layout for layout in layouts if layout), str)
