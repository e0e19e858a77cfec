"""Files of a model that are given by name, fetched where they are not here yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from smalti import fetch
from smalti.diffusion.load_options import LoadOptions
from smalti.diffusion.request import memory_bytes
from smalti.diffusion.residents import BASE_BYTES
from smalti.errors import InputError
from smalti.runtime.choice import described

USABLE_SHARE = 0.9
"""Of a device's memory, where nothing is said."""


def given_budget(asked: LoadOptions, device: str) -> int | str | None:
    """What is said of the memory that a device computes in: the GPU's where that has its own, else
    main memory."""
    return asked.gpu_memory if described(device).has_own_memory else asked.memory


def budget(asked: LoadOptions, device: str) -> int:
    """What all that runs on one device may take of the memory that it computes in, in bytes."""
    given, found = given_budget(asked, device), described(device)
    if given is not None:
        return memory_bytes(given)
    if not found.memory_bytes:
        raise InputError(f"how much memory {found.name} has is not known; give memory (--memory), "
                         f"such as 16GB")
    return int(USABLE_SHARE * found.memory_bytes)


def outside(asked: LoadOptions) -> int:
    """What weights may take of main memory that a GPU with memory of its own has no room for, in
    bytes."""
    main = int(USABLE_SHARE * described("cpu").memory_bytes) if asked.memory is None else \
        memory_bytes(asked.memory)
    return main - BASE_BYTES


Locate = Callable[[str | Path, int | None, Callable[[str], None]], str | Path]
"""The path of what is given, for a model that is to take so many bytes; it may be a name."""


def fetched(asked: LoadOptions, locate: Locate = fetch.located) -> LoadOptions:
    """The same options with paths instead of names, and with what the catalogue says that the model
    needs besides: adapters beside those that are given, all else where nothing is. What is given by
    name comes to be here as `locate` does it. Raises FetchError."""
    needs = _needs(asked)
    given = {name: getattr(asked, name) for name in ("path", "refiner", "vae", "text_encoders",
                                                     "loras")}
    own = [each for each in needs.pop("loras", ()) if each not in _flat({"loras": asked.loras})]
    if own:
        given["loras"] = [*own, *asked.loras]
    for name, value in needs.items():
        if name in given and given[name] in (None, (), []):
            given[name] = value
    for each in _flat({name: given[name] for name in given if name != "loras"}):
        fetch.check_spelling(each)
    if not needs and not any(map(fetch.is_name, _flat(given))):
        return asked
    found: dict[str, Any] = {name: _paths(asked, value, locate) for name, value in given.items()}
    if asked.prediction is None:
        found["prediction"] = needs.get("prediction")
    found["defaults"] = {**needs.get("defaults", {}), **asked.defaults}
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


def _paths(asked: LoadOptions, value: Any, locate: Locate) -> Any:
    """The same with paths of files that are here."""
    if type(value) in (list, tuple):  # an adapter with its weights is a tuple of a kind of its own
        return type(value)(_paths(asked, each, locate) for each in value)
    if not fetch.is_name(value):
        return value
    return locate(value, budget(asked, asked.placement.of("denoiser")), asked.progress)
