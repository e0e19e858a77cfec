"""Files of a model that are given by name, fetched where they are not here yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from smalti import fetch
from smalti.diffusion.load_options import LoadOptions
from smalti.diffusion.request import memory_bytes
from smalti.runtime.choice import described

USABLE_SHARE = 0.9
"""Of a device's memory, where nothing is said."""


def budget(asked: LoadOptions, device: str) -> int:
    """What all that runs on one device may take there, in bytes."""
    if asked.memory is not None:
        return memory_bytes(asked.memory)
    return int(USABLE_SHARE * described(device).memory_bytes)


def fetched(asked: LoadOptions) -> LoadOptions:
    """The same options with paths instead of names, and with what the catalogue says that the model
    needs besides, where nothing else is given. Raises FetchError."""
    needs = _needs(asked)
    given = {name: getattr(asked, name) for name in ("path", "refiner", "vae", "text_encoders",
                                                     "loras")}
    for name, value in needs.items():
        if name != "prediction" and given[name] in (None, (), []):
            given[name] = value
    if not needs and not any(map(fetch.is_name, _flat(given))):
        return asked
    found: dict[str, Any] = {name: _paths(asked, value) for name, value in given.items()}
    if asked.prediction is None:
        found["prediction"] = needs.get("prediction")
    return replace(asked, **found)


def _needs(asked: LoadOptions) -> dict[str, Any]:
    """What the catalogue says of the model; a file of the same name is what is meant."""
    if not fetch.is_name(asked.path):
        return {}
    entry = fetch.entry(asked.path)
    return {} if entry is None else dict(entry.needs)


def _flat(given: dict[str, Any]) -> list[object]:
    """All that may be a name: a path alone, or first with the weights of an adapter."""
    found: list[object] = []
    for value in given.values():
        several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        found += [each[0] if isinstance(each, tuple) and each else each for each in several]
    return found


def _paths(asked: LoadOptions, value: Any) -> Any:
    """The same with paths of files that are here."""
    if type(value) in (list, tuple):  # an adapter with its weights is a tuple of a kind of its own
        return type(value)(_paths(asked, each) for each in value)
    if not fetch.is_name(value):
        return value
    return fetch.located(value, budget(asked, asked.placement.of("denoiser")), asked.progress)
