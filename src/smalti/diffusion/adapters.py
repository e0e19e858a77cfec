"""The adapters that a pipeline uses: opened once, and told apart by their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from smalti.checkpoint.adapters import Adapter, Fit, Use
from smalti.diffusion.submodels import Submodels
from smalti.errors import CheckpointError, InputError

Entry = str | Path | Use | Sequence[object]
"""A file, with a weight (path, weight), with one of the text encoders (path, weight, text_weight),
or an open adapter with its weights."""


class Adapters:
    """Which adapters the parts of a model use now.

    A file that has been opened stays open, so that another weight of it changes nothing else.
    """

    def __init__(self, submodels: Submodels) -> None:
        self.submodels = submodels
        self._opened: dict[tuple[Path, int, int], Adapter] = {}

    @property
    def uses(self) -> tuple[Use, ...]:
        """What is used, in the order in which it was given."""
        return self.submodels.weights.uses

    def use(self, entries: Sequence[Entry]) -> None:
        """Use these and no others. Raises CheckpointError for a file that is no adapter or one for
        another kind of model, InputError for an entry that is none."""
        self.submodels.adapt([self.read(entry) for entry in entries])

    def add(self, path: str | Path, weight: float, text_weight: float | None) -> Fit:
        """Use one more, or one that is used with other weights; and what of it fits."""
        new = self.read((path, weight, text_weight))
        kept = [use for use in self.uses if use.adapter is not new.adapter]
        self.submodels.adapt([*kept, new])
        return self.submodels.weights.fits[-1]

    def read(self, entry: Entry) -> Use:
        """What an entry means."""
        if isinstance(entry, Use):
            return entry
        if isinstance(entry, str | Path):
            return Use(self._open(Path(entry)))
        path, *weights = entry if isinstance(entry, Sequence) else (entry,)
        numbers = all(isinstance(w, int | float) or w is None for w in weights)
        if not isinstance(path, str | Path) or len(weights) not in (1, 2) or not numbers \
                or weights[0] is None:
            raise InputError(f"{entry!r} is no adapter; expected a path, (path, weight) or "
                             f"(path, weight, text_weight)")
        return Use(self._open(Path(path)), *weights)

    def _open(self, path: Path) -> Adapter:
        """The adapter in a file, which is opened again when it has changed."""
        try:
            state = path.stat()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        key = path.resolve(), state.st_mtime_ns, state.st_size
        if key not in self._opened:
            self._opened[key] = Adapter.open(path)
        return self._opened[key]

    def warnings(self) -> list[str]:
        """What of the adapters is not used, one sentence for each that is not used whole."""
        weights = self.submodels.weights
        return [f"{use.adapter.path.name}: {fit}"
                for use, fit in zip(weights.uses, weights.fits, strict=True) if fit.unused]

    def labels(self) -> tuple[str, ...]:
        """Name and weights of each, as prompts write them: `name:0.8` or `name:0.5:0.8`, the text
        encoders' first."""
        return tuple(
            f"{use.adapter.path.stem}:" + (
                "" if use.text_weight is None else f"{use.text_weight:g}:") + f"{use.weight:g}"
            for use in self.uses)
