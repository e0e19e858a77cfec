"""What every program is, whatever it runs on: bind weights, run, save, explain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from types import MappingProxyType

import numpy as np

from smalti import machine
from smalti.compiler.kernel_table import COLUMNS, KernelTable
from smalti.compiler.outlook import outlook
from smalti.errors import InputError, NumericsError, first_of
from smalti.runtime import engine_writer
from smalti.runtime.inputs import checked_path, finite
from smalti.runtime.recipe import Recipe
from smalti.runtime.sources import Done, Weights, nothing
from smalti.runtime.trials import Trials

LISTED_MAX = 6
"""Inputs, and outputs, that the short form of a program names: about a line of text."""


class Program(ABC):
    """A compiled graph: bind weights, run, save, ask what it does.

    `device` is the id of what it runs on, `inputs` and `outputs` are shapes by name (None where one
    depends on values). `weights_bytes` are those of all weights as they are bound. `recipe` is what
    it was compiled from, and `targets` and `winograd_sizes` say what was made of that. `bound` says
    whether it has all weights that it needs to run.
    """

    name: str
    device: str = "cpu"
    precision: str = "f32"
    inputs: dict[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...] | None]
    rows: Mapping[str, int] = MappingProxyType({})
    """Of inputs whose numbers are rows of tables, how many rows there are."""
    bound: bool = True
    weights_bytes: int = 0
    recipe: Recipe | None = None
    targets: tuple[str, ...] = ()
    winograd_sizes: Mapping[str, int] = MappingProxyType({})

    def __repr__(self) -> str:
        ends = [first_of((f"{name} {'of any shape' if shape is None else list(shape)}"
                          for name, shape in values.items()), LISTED_MAX) or "none"
                for values in (self.inputs, self.outputs)]
        return (f"<smalti.Program {self.name!r} on {self.device}, {self.precision}: "
                f"{' -> '.join(ends)}{'' if self.bound else '; no weights are bound'}>")

    def trials(self) -> Trials | None:
        """How other schedules of its kernels are tried; None where it has no kernels, or several
        modules."""
        return None

    @property
    def arena_bytes(self) -> int:
        """Bytes for everything between kernels."""
        return 0

    @property
    def weight_dtypes(self) -> Mapping[str, str]:
        """The dtype in which each weight is read, where the program is told it."""
        return {}

    def held_bytes(self, bytes_max: int) -> int:
        """Bytes of weights that are there at a time when `bind` is given `bytes_max`. Raises
        InputError, as that does, where it is too little for a single kernel."""
        return self.weights_bytes

    @property
    def shared_bytes(self) -> int:
        """Of `weights_bytes`, those that another program holds, too."""
        return 0

    @property
    def lost(self) -> bool:
        """Whether the device that it ran on has failed; another program has to take its place."""
        return False

    @property
    def streamed(self) -> bool:
        """Whether some of the weights are read again in each run."""
        return False

    def release(self) -> None:
        """Give back the memory of weights and intermediate results, which `bind` brings back; a
        program without machine code holds none."""
        return

    def leave_to(self, heir: Program, differing: Collection[str] = ()) -> None:
        """Before `heir` is bound like this program, and this one is not needed any more: give back
        all memory but that of the weights which both hold in the same layout, but for those that
        are named as `differing`. It cannot run then, until it is bound again. A program that holds
        no such memory stays as it is."""
        return

    @abstractmethod
    def bind(self, weights: Weights, done: Done = nothing, *, strict: bool = True,
             like: Program | None = None, differing: Collection[str] = (),
             only: Collection[str] | None = None, bytes_max: int | None = None) -> None:
        """Take the parameters from `weights`; may be called again with others, at any time.

        `weights` is a .safetensors, .onnx or .smalti file, a folder of .safetensors files, a
        mapping of arrays, or a function `read(name) -> array`. Nothing of the arrays is kept;
        `done(name)` says when one is no longer needed. `like` is a program that has the very same
        weights bound, say for another shape, but for those that are named as `differing`: what both
        hold in the same layout is shared, and not read again. With `only`, a program that has
        weights takes these parameters, those of them that it has, and keeps all others. Where they
        take more than `bytes_max` bytes, some are read again in each run, just before they are
        needed (see streaming.py): `weights` must stay readable then. Raises InputError where that
        is too little for a single kernel, for weights that are missing, of another shape or, where
        that is `strict`, unknown, listing all, and where `only` is given to a program without
        weights; NumericsError naming one with NaN or Inf. After an error nothing is bound.
        """

    def save(self, path: str | PathLike, *, targets: Sequence[str] = (),
             weights: Weights | None = None, with_weights: bool = False) -> None:
        """Write an engine file, of which `smalti.load` makes a program without compiling.

        `targets` are the feature levels to hold code for (avx2, avx2_vnni, avx512, avx512_vnni,
        avx512_bf16, neon, neon_dot, neon_bf16), which this CPU need not have; default: the one in
        use. The hashes of `weights`, given as for `bind`, are noted; `with_weights` embeds them.
        Raises InputError for an unknown target, for weights that do not fit, and where shapes
        depend on data; OutputError when `path` cannot be written.
        """
        if self.recipe is None:
            raise InputError(f"{self.name}: only programs of one static graph become engine files; "
                             f"give all shapes when compiling, or keep the model file")
        if isinstance(targets, str) or not isinstance(targets, Iterable):
            raise InputError(f"targets is {targets!r}; expected several, such as "
                             f"('avx2', 'avx512')")
        checked_path(path, "save", "the path of the engine file to write, such as model.smalti")
        engine_writer.save(self.recipe, path, targets=targets or self.targets, weights=weights,
                    winograd_sizes=self.winograd_sizes, with_weights=with_weights)

    @abstractmethod
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for `inputs`."""

    @abstractmethod
    def first_nonfinite(self, inputs: Mapping[str, np.ndarray]) -> str | None:
        """The scope of the first kernel or node whose result is not finite, or None."""

    def explain(self, device: str | None = None, *, all: bool = False,
                columns: int | None = None) -> str:
        """What the graph became, as text: kernels by form, their time and what limits it, the
        longest of them, and memory. With `all`, every kernel with its schedule and the reason why
        fusion ends there. No line is longer than `columns` (default 100, at least 60).

        Times are those of the last run, where there was one, beside those that the timing model
        expects. `device` is one of its library (`smalti devices NAME`), which need not be here:
        then what the program would be there, and how long a run would take. Raises
        UnknownDeviceError, and InputError where shapes depend on data.
        """
        if device is None:
            return self._explained(all, columns or COLUMNS)
        if self.recipe is None:
            raise InputError(f"{self.name}: shapes depend on data; only programs of one static "
                             f"graph can be foretold")
        recipe = self.recipe
        found = outlook(self.name, *recipe.partition(), recipe.options.precision,
                        machine.device(device), recipe.options.objective)
        return found.text(all, columns or COLUMNS)

    def kernels(self) -> KernelTable | None:
        """Its kernels, with what the timing model expects of each, and what the last run took
        where that is measured. None where it has no kernels, or several modules."""
        return None

    def expected_seconds(self) -> float | None:
        """Seconds of a run whose held inputs do not change, by the timing model; None where that
        does not know the device."""
        table = self.kernels()
        found = [row.expected for row in table.rows if not row.seldom] if table else []
        known = [seconds for seconds in found if seconds is not None]
        return sum(known) if known else None

    def measured(self) -> np.ndarray | None:
        """Seconds of each of `kernels` in the last run that was timed; None before there was one,
        and without kernels."""
        return None

    @abstractmethod
    def _explained(self, all: bool, columns: int) -> str:
        """What the program is here."""

    def _require_bound(self) -> None:
        if not self.bound:
            raise InputError(f"{self.name}: no weights are bound; call bind first, such as "
                             f"program.bind('weights.safetensors')")

    def _asked(self, parameters: Mapping[str, tuple[int, ...]],
               only: Collection[str] | None) -> Mapping[str, tuple[int, ...]]:
        """The parameters that are to be bound: all, or those of `only`."""
        if only is None:
            return parameters
        self._require_bound()
        return {name: parameters[name] for name in only if name in parameters}

    def run_checked(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As `run`; raises NumericsError naming the first kernel that made NaN or Inf."""
        return self.checked(inputs, self.run(inputs))

    def checked(self, inputs: Mapping[str, np.ndarray],
                outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs of a run with `inputs`; raises NumericsError as `run_checked` does."""
        if all(map(finite, outputs.values())):
            return outputs
        for name, array in inputs.items():
            if not finite(array):
                raise NumericsError(f"{self.name}: the input {name!r} holds NaN or Inf")
        place = self.first_nonfinite(inputs) or "an output"
        raise NumericsError(f"{self.name}: NaN or Inf appeared first in {place}; the weights are "
                            f"damaged or of another model")
