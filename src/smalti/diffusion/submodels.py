"""The parts of a checkpoint as programs: compiled for a shape, bound, run, let go.

Of each part the program of the last shape is kept with its weights; that of the next shape takes
over what it packs the same way. Where memory is short, `release` lets go of a part that is done
with, so that only one is in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from smalti.checkpoint import Checkpoint
from smalti.checkpoint.adapters import Adapted, Use, changed
from smalti.checkpoint.embeddings import Embedding
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.models.parts import Part, parts
from smalti.runtime import Program, compile_graph
from smalti.runtime.supervisor import Supervisor

HALVES = {"F16": "f16", "BF16": "bf16"}
"""Dtype tags of a checkpoint whose values programs hold as they are."""


def ignore(text: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class _Bound:
    """A program with its weights, and what it was made for; `weights` says which are bound."""

    shape: tuple[int, ...]
    program: Program
    weights: Adapted


@dataclass
class Submodels:
    """Programs of one checkpoint, made when they are first needed.

    `weights` are those of the checkpoint, with adapters where `adapted` has made some with them.
    Others may be set at any time: nothing is compiled for it, and only the weights that differ are
    bound again, when their part is needed next. `words` are the textual inversions that prompts
    may name.
    `progress` is called with one line of text before anything that may take over a second. With
    `supervise`, schedules are tried while parts run (see `runtime.supervisor`).
    """

    checkpoint: Checkpoint
    precision: str = "auto"
    threads: int | None = None
    progress: Callable[[str], None] = ignore
    supervise: bool = True
    words: Sequence[Embedding] = ()
    _bound: dict[str, _Bound] = field(default_factory=dict)
    _watched: dict[str, Supervisor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weights = self.adapted(())

    def adapted(self, uses: Sequence[Use]) -> Adapted:
        """The weights of the checkpoint with these adapters. Raises CheckpointError for an adapter
        of another kind of model."""
        return Adapted(self.checkpoint, uses, self.checkpoint.report.path)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The parts of the model by name."""
        return parts(self.checkpoint.config)

    @property
    def denoiser(self) -> str:
        """The name of the part that denoises."""
        return "unet" if "unet" in self.parts else "transformer"

    def run(self, part: str, shape: tuple[int, ...],
            **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs of `part` for these inputs, as f32.

        Raises NumericsError naming the first kernel that made NaN or Inf.
        """
        program = self.bound(part, shape)
        if not self.supervise:
            return program.run_checked(inputs)
        watched = self._watched.get(part)
        if watched is None or watched.program is not program:
            watched = self._watched[part] = Supervisor(program)
        return watched.run_checked(inputs)

    def begin(self) -> None:
        """A new picture begins."""
        for watched in self._watched.values():
            watched.begin()

    def bound(self, part: str, shape: tuple[int, ...]) -> Program:
        """The program of `part` for `shape`, with the checkpoint's weights.

        Raises NumericsError naming a weight that holds NaN or Inf.
        """
        before = self._current(part)
        if before is not None and self._bound[part].shape == shape:
            return before
        program = self.compiled(part, self.graph(part, shape), before)
        self.progress(f"loading {self.parts[part].title}")
        program.bind(self.weights.floats, self.weights.drop, like=before)
        self._bound[part] = _Bound(shape, program, self.weights)
        return program

    def _current(self, part: str) -> Program | None:
        """The program of `part` that is there, with the weights of now: what adapters have changed
        since is bound again."""
        known = self._bound.pop(part, None)
        if known is None:
            return None
        if names := changed(known.weights, self.weights):
            self.progress(f"adapting {self.parts[part].title}")
            known.program.bind(self.weights.floats, self.weights.drop, only=names)
        self._bound[part] = _Bound(known.shape, known.program, self.weights)
        return known.program

    def graph(self, part: str, shape: tuple[int, ...]) -> Graph:
        """What `part` computes for `shape`. Raises InputError for an unknown part."""
        if part not in self.parts:
            raise InputError(f"no part is named {part!r}; known: {', '.join(self.parts)}")
        return self.parts[part].graph(*shape)

    def halves(self, graph: Graph) -> dict[str, str]:
        """The dtype of each parameter that the checkpoint has as f16 or bf16."""
        tags = ((name, self.checkpoint.dtype(name)) for name in graph.parameters)
        return {name: HALVES[tag] for name, tag in tags if tag in HALVES}

    def compiled(self, part: str, graph: Graph, like: Program | None = None) -> Program:
        """The program of `graph`, without weights; those of `like` will be bound."""
        title = self.parts[part].title
        self.progress(f"compiling {title}")
        return compile_graph(
            graph,
            precision=self.precision,
            threads=self.threads,
            held=[name for name in self.parts[part].held if name in graph.inputs],
            weights=self.halves(graph),
            progress=lambda done, total: self.progress(f"compiling {title}: {done} of {total}"),
            like=like,
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights of the checkpoint in memory, about: some are held transformed."""
        held = self.checkpoint
        return sum(math.prod(held.shape(name)) * (2 if held.dtype(name) in HALVES else 4)
                   for name in held.names())

    def release(self, part: str, kept_bytes_max: int) -> None:
        """Let go of `part` unless the weights of all parts take at most `kept_bytes_max` bytes; it
        comes back when it is needed again."""
        if self.weight_bytes > kept_bytes_max:
            self._bound.pop(part, None)
            self._watched.pop(part, None)
