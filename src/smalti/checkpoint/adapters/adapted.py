"""A checkpoint with adapters: the same reading interface, and which weights another choice changes.

    before = Adapted(model, [])
    after = Adapted(model, [WeightedAdapter(AdapterFile.open("watercolour.safetensors"), 0.8)])
    program.bind(after.floats, after.drop, only=changed(before, after))

Every weight is made from that of the file, never from one that is changed already: all changes are
computed and added in f32, each from the weight of the file, and the sum is rounded to the dtype of
the file once. So the order of adapters means nothing but rounding, and what is taken away leaves no
trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from smalti.checkpoint.adapters.adapter import AdapterFile, Fit, Placed
from smalti.checkpoint.adapters.change import Floats
from smalti.checkpoint.adapters.spelling import of_text
from smalti.checkpoint.blocks import FORMATS
from smalti.checkpoint.tensors import HALVES
from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.graph.quantised import Quantised, of_eight_bits, quantised
from smalti.runtime.cpu.conversion import converted


class AdaptableModel(Protocol):
    """What adapters are applied to: a `Checkpoint`, or what reads like one."""

    def names(self) -> tuple[str, ...]:
        """The names of all weights."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight."""

    def dtype(self, name: str) -> str:
        """The dtype of a weight as it is stored, such as "F16"."""

    def read(self, name: str) -> Floats:
        """An f32 copy of a weight."""

    def floats(self, name: str) -> np.ndarray:
        """A weight as programs take it."""

    def given(self, name: str) -> np.ndarray | Quantised:
        """The same, but what is quantised in the file as that."""

    def drop(self, name: str) -> None:
        """Let go of the memory that holds a weight."""


@dataclass(frozen=True)
class WeightedAdapter:
    """An adapter and how much of it: of `weight` for the denoiser, of `text_weight` for the text
    encoders, where None is the same. Raises InputError for what is no finite number."""

    adapter: AdapterFile
    weight: float = 1.0
    text_weight: float | None = None

    def __post_init__(self) -> None:
        for number in (self.weight, self.text_weight):
            if number is not None and not math.isfinite(number):
                raise InputError(f"the weight of {self.adapter.path} is {number}; expected a "
                                 f"finite number, such as 0.8")

    def strength(self, name: str) -> float:
        """How much of it goes to the weight called `name`."""
        return self.text_weight if self.text_weight is not None and of_text(name) else self.weight


class Adapted:
    """The weights of `model` with the adapters of `uses`.

    `fits` says what each of them changes. Raises CheckpointError for an adapter that is made for
    another kind of model.
    """

    def __init__(self, model: AdaptableModel, uses: Sequence[WeightedAdapter],
                 title: str = "the model") -> None:
        self.model, self.uses = model, tuple(uses)
        self._shapes = {name: model.shape(name) for name in model.names()}
        self.fits: list[Fit] = [use.adapter.fit(self._shapes, title) for use in self.uses]
        self._changes: dict[str, list[tuple[Placed, int, float]]] = {}
        for use, fit in zip(self.uses, self.fits, strict=True):
            for table in (fit.weights, fit.biases):
                for name, placed in table.items():
                    if strength := use.strength(name):
                        self._changes.setdefault(name, []).extend(
                            (change, part, strength) for change, part in placed)

    @property
    def changed(self) -> frozenset[str]:
        """The names of weights that are not as in the file."""
        return frozenset(self._changes)

    def names(self) -> tuple[str, ...]:
        """Names of all weights of the model."""
        return self.model.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a weight."""
        return self.model.shape(name)

    def dtype(self, name: str) -> str:
        """Dtype tag of a weight as it is stored in the file of the model."""
        return self.model.dtype(name)

    def read(self, name: str) -> Floats:
        """An f32 copy of a weight, before it is rounded to the dtype of the file."""
        total = self.model.read(name)
        changes = self._changes.get(name, ())
        if not changes:
            return total
        flat = total if total.ndim == 1 else total.reshape(len(total), -1)
        for placed, part, strength in changes:
            rows = placed.target[part]
            at = sum(before.count for before in placed.target[:part])
            own, take = slice(rows.start, rows.start + rows.count), slice(at, at + rows.count)
            if name.endswith(".bias"):
                added = placed.change.bias(strength, self._base(placed, ".bias"), take)
            else:
                added = placed.change.weight(strength, self._base(placed, None), take)
            flat[own] += added.reshape(flat[own].shape)
        return total

    def floats(self, name: str) -> np.ndarray:
        """A weight as programs take it: halves where they hold it as that, else f32.

        What is beyond the range of f16 becomes infinite there, which binding refuses by name.
        """
        if name not in self._changes:
            return self.model.floats(name)
        total, half = self.read(name), HALVES.get(self.dtype(name))
        return total if half is None else converted(total, half)

    def given(self, name: str) -> np.ndarray | Quantised:
        """A weight as `floats` gives it, but what is in blocks in the file as `Quantised`: where
        it is changed, rounded to 8 bits in the same groups."""
        if name not in self._changes:
            return self.model.given(name)
        if self.dtype(name) not in FORMATS:
            return self.floats(name)
        return quantised(self.read(name), of_eight_bits(FORMATS[self.dtype(name)].held))

    def drop(self, name: str) -> None:
        """Let go of the memory that holds a weight."""
        self.model.drop(name)

    def strengths(self) -> Mapping[str, tuple[tuple[int, int, float], ...]]:
        """What is done to each weight that is not as in the file, to be compared."""
        return {name: tuple((id(placed.change), part, strength)
                            for placed, part, strength in changes)
                for name, changes in self._changes.items()}

    def _base(self, placed: Placed, leaf: str | None) -> Callable[[], Floats]:
        """Reads what a change is computed from: all rows that it is for, in its order."""

        def read() -> Floats:
            parts = []
            for rows in placed.target:
                name = rows.layer + (leaf or ".weight")
                if name not in self._shapes:
                    name = f"{rows.layer}.scale"
                whole = self.model.read(name)
                part = whole[rows.start:rows.start + rows.count]
                parts.append(part if leaf else part.reshape(rows.count, -1))
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        return read


def changed(before: Adapted, after: Adapted) -> frozenset[str]:
    """The names of weights that are another under `after` than under `before`, of one model."""
    old, new = before.strengths(), after.strengths()
    return frozenset(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
