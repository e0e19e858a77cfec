"""The records of all model families: found in `families/records/`, asked for by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pkgutil import iter_modules

from smalti.families import records
from smalti.families.language import LANGUAGE_MODELS
from smalti.families.record import Autoencoder, Backbone, ModelFamily, TextEncoder
from smalti.models.config import ModelConfig

_added: dict[str, ModelFamily] = {}


@cache
def known() -> dict[str, ModelFamily]:
    """The families that Smalti has records of, by name, in no order that means anything."""
    found: dict[str, ModelFamily] = {}
    for module in iter_modules(records.__path__, f"{records.__name__}."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, ModelFamily) and found.setdefault(value.name, value) is not value:
                raise ValueError(f"{module.name} has a second record named {value.name!r}")
    return found


@cache
def families() -> dict[str, ModelFamily]:
    """All families by name, in the order in which a file is asked whether it is of one."""
    found = {**known(), **_added}
    order: TopologicalSorter[str] = TopologicalSorter({name: () for name in found})
    for family in found.values():
        for later in family.before:
            order.add(later, family.name)
    return {name: found[name] for name in order.static_order()}


def by_name() -> list[ModelFamily]:
    """All families in the order of their names, in which people read them."""
    return [family for name, family in sorted(families().items())]


def family_of(config: ModelConfig) -> ModelFamily:
    """The record of the family of a model."""
    return families()[config.family]


@contextmanager
def registered(family: ModelFamily) -> Iterator[None]:
    """Know one family more for a while, such as one that is tried out, or another record of one."""
    before = dict(_added)
    _added[family.name] = family
    _forget()
    try:
        yield
    finally:
        _added.clear()
        _added.update(before)
        _forget()


def _forget() -> None:
    for derived in (families, text_encoders, backbones, autoencoders):
        derived.cache_clear()


@cache
def text_encoders() -> dict[str, TextEncoder]:
    """The text encoders of all families by name, in the order in which folders have them; behind
    them language models that files are told of, whether a family reads them or not."""
    found: dict[str, TextEncoder] = {}
    for family in sorted(families().values(), key=lambda each: -sum(
            not text.encoder.of_pictures for text in each.texts)):
        for text in family.texts:
            found.setdefault(text.encoder.name, text.encoder)
    for encoder in LANGUAGE_MODELS:
        found.setdefault(encoder.name, encoder)
    return found


@cache
def backbones() -> dict[str, Backbone]:
    """The kinds of denoisers by name."""
    found: dict[str, Backbone] = {}
    for family in families().values():
        found.setdefault(family.backbone.name, family.backbone)
    return found


@cache
def autoencoders() -> list[Autoencoder]:
    """The kinds of autoencoders."""
    return list(dict.fromkeys(family.autoencoder for family in families().values()))
