"""States of prompts that were read before, on disk: a language model of gigabytes is not loaded to
read a prompt again.

An entry is what the encoder gave for one row of tokens. It is filed under all that it follows from:
the encoder's hyperparameters, how the family reads it, its weights, the device with what it
computes in, the tokens, and, as all entries of the cache, Smalti's own code. Weights go by the size
and the time of their files, and by the ends of every tensor. What adapters change is not kept.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from smalti import settings
from smalti.diffusion.submodels import Submodels
from smalti.families import Text
from smalti.runtime.cache import Cache
from smalti.runtime.choice import described

BYTES_MAX = 512 << 20
"""Of all entries: 800 prompts of Z-Image, 30 of FLUX.2 klein."""
States = dict[str, np.ndarray]


def basis(submodels: Submodels, part: str, text: Text) -> str | None:
    """What the states of a prompt follow from, beside its tokens; None where they are not kept:
    of encoders that read short chunks, and of those that adapters change."""
    inside = text.encoder.inside
    changed = any(name.startswith(inside) for name in submodels.weights.changed)
    if text.encoder.chunked or changed:
        return None
    device = described(submodels.placement.of_part(part))
    config = submodels.checkpoint.config.texts[text.encoder.name]
    reads = (text.layer, text.taps, text.final_norm, text.masked, text.filled_first,
             text.filled_at)
    return "\n".join(map(str, (
        config, reads, device.id, device.name, device.features, settings.target(),
        submodels.precision_of(part), submodels.checkpoint.digest(inside))))


def found(key: str) -> States | None:
    """What is kept under a key."""
    data = _cache(settings.cache_folder()).get(key)
    if data is None:
        return None
    return load(data)


def keep(key: str, states: States) -> None:
    """Keep states under a key."""
    _cache(settings.cache_folder()).put(key, save(states))


@lru_cache(maxsize=4)
def _cache(folder: Path) -> Cache:
    return Cache(folder / "states", BYTES_MAX)
