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
from smalti.checkpoint.tensors import held_as
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.graph.operation import HALVES
from smalti.graph.quantised import FORMATS, of_eight_bits
from smalti.models.parts import Part, parts
from smalti.runtime import Program, compile_graph
from smalti.runtime.choice import of_wide_range
from smalti.runtime.memory import resident_bytes
from smalti.runtime.supervisor import Supervisor

BASE_BYTES = 150_000_000
"""What a process takes beside weights and intermediate results, where the system does not tell."""
STAGED = 4
"""Copies of the largest weight that there may be while weights are read and packed."""


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
    `supervise`, schedules are tried while parts run (see `runtime.supervisor`). All that the
    process takes is kept below `memory_bytes`: parts that are not in use are let go, and weights of
    one that is too large come and go while it runs. `said` says what was done for that. Programs
    are those of `device`, for an `objective` (see `tune.objective`).
    """

    checkpoint: Checkpoint
    precision: str = "auto"
    threads: int | None = None
    progress: Callable[[str], None] = ignore
    supervise: bool = False
    words: Sequence[Embedding] = ()
    memory_bytes: int | None = None
    device: str = "cpu"
    objective: str = "latency"
    said: list[str] = field(default_factory=list)
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
        self.said.clear()
        for watched in self._watched.values():
            watched.begin()

    def bound(self, part: str, shape: tuple[int, ...]) -> Program:
        """The program of `part` for `shape`, with the checkpoint's weights.

        Raises NumericsError naming a weight that holds NaN or Inf.
        """
        before = self._current(part)
        if before is not None and self._bound[part].shape == shape:
            return before
        graph = self.graph(part, shape)
        program = self.compiled(part, graph, before)
        self.progress(f"loading {self.parts[part].title}")
        room = self._room_for(part, program, graph)
        if room is not None and room < program.weights_bytes:
            self.say(f"memory was short for {self.parts[part].title}: "
                     f"{max(room, 0) / 1e9:.1f} of {program.weights_bytes / 1e9:.1f} GB of its "
                     f"weights were there at a time, the rest was read while it ran")
        program.bind(self.weights.given, self.weights.drop, bytes_max=room,
                     like=before if part in self._bound else None)
        self._bound[part] = _Bound(shape, program, self.weights)
        return program

    def say(self, text: str) -> None:
        """Note what was done because memory was short, once."""
        if text not in self.said:
            self.said.append(text)

    def room(self, held_bytes: int = 0) -> int | None:
        """Bytes that may still be taken, beside `held_bytes`; None where nothing bounds them."""
        if self.memory_bytes is None:
            return None
        taken = sum(each.program.weights_bytes + each.program.arena_bytes
                    for each in self._bound.values())
        if self.device == "cpu":
            taken = max(resident_bytes() or 0, BASE_BYTES + taken)
        return self.memory_bytes - taken - held_bytes

    def _room_for(self, part: str, program: Program, graph: Graph) -> int | None:
        """Bytes that the weights of a part may take; others are let go where they must be, and last
        the part itself as it was for another shape."""
        if self.memory_bytes is None:
            return None
        dtypes = self.dtypes(graph)
        largest = max((value.type.size * (2 if dtypes.get(name) in HALVES else 4)
                       for name, value in graph.parameters.items()), default=0)
        working = program.arena_bytes + STAGED * largest
        before = self._bound.get(part)
        if before is not None and not before.program.streamed and self.room(working) >= 0:
            return program.weights_bytes  # most of them are there
        self.make_room(working + program.weights_bytes, part)
        if self.room(working) < program.weights_bytes:
            self._let_go(part)
        return self.room(working)

    def make_room(self, size: int, part: str) -> None:
        """Let go of other parts than `part` until `size` bytes may be taken, or none is left."""
        others = [name for name in self._bound if name != part]
        while others and self.room(size) is not None and self.room(size) < 0:
            self._let_go(others.pop(0))

    def _let_go(self, part: str) -> None:
        """Give back the memory of a part, unless somebody holds its program."""
        self._watched.pop(part, None)
        known = self._bound.pop(part, None)
        if known is not None and known.program.streamed:
            known.program.release()

    def _current(self, part: str) -> Program | None:
        """The program of `part` that is there, with the weights of now: what adapters have changed
        since is bound again. None where one of these weights had to be filtered otherwise, as the
        guard found: another may not, and pictures do not depend on what was bound before; and None
        where some are to be held as another dtype."""
        known = self._bound.get(part)
        names = changed(known.weights, self.weights) if known is not None else frozenset()
        if known is None or names & known.program.filterings.keys() or (
                names and self._held_otherwise(known.program)):
            self._let_go(part)
            return None
        del self._bound[part]  # until all went well, and then it is the last that was in use
        if names:
            self.progress(f"adapting {self.parts[part].title}")
            known.program.bind(self.weights.given, self.weights.drop, only=names)
        self._bound[part] = _Bound(known.shape, known.program, self.weights)
        return known.program

    def _held_otherwise(self, program: Program) -> bool:
        """Whether the weights of now are held as other dtypes than those of `program`."""
        return self.dtypes(program.recipe.graph) != dict(program.recipe.weights)

    def graph(self, part: str, shape: tuple[int, ...]) -> Graph:
        """What `part` computes for `shape`. Raises InputError for an unknown part."""
        if part not in self.parts:
            raise InputError(f"no part is named {part!r}; known: {', '.join(self.parts)}")
        return self.parts[part].graph(*shape)

    def dtypes(self, graph: Graph) -> dict[str, str]:
        """The dtype of each parameter that the checkpoint has as halves, or smaller.

        A quantised weight that an adapter changes is rounded to 8 bits, in the same groups.
        """
        held = {}
        for name in graph.parameters:
            dtype = held_as(self.checkpoint.dtype(name))
            if dtype in FORMATS and name in self.weights.changed:
                dtype = of_eight_bits(dtype)
            if dtype is not None:
                held[name] = dtype
        return held

    def compiled(self, part: str, graph: Graph, like: Program | None = None) -> Program:
        """The program of `graph`, without weights; those of `like` will be bound."""
        title = self.parts[part].title
        self.progress(f"compiling {title}")
        return compile_graph(
            graph,
            precision=self.precision_of(part),
            threads=self.threads,
            objective=self.objective,
            held=[name for name in self.parts[part].held if name in graph.inputs],
            weights=self.dtypes(graph),
            progress=lambda done, total: self.progress(f"compiling {title}: {done} of {total}"),
            like=like,
            device=self.device,
        )

    def precision_of(self, part: str) -> str:
        """The precision of a part: an autoencoder's values do not fit f16."""
        if part in ("vae", "vae_encoder"):
            return of_wide_range(self.device, self.precision)
        return self.precision

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights of the checkpoint in memory, about: some are held transformed."""
        held = self.checkpoint
        return sum(math.prod(held.shape(name)) * (
            2 if held_as(held.dtype(name)) else 4)
            for name in held.names())

    def release(self, part: str, kept_bytes_max: int) -> None:
        """Let go of `part` unless the weights of all parts take at most `kept_bytes_max` bytes; it
        comes back when it is needed again."""
        if self.weight_bytes > kept_bytes_max:
            self._let_go(part)
