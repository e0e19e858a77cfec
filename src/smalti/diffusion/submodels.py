"""The parts of a checkpoint as programs: compiled for a shape, bound, run, let go.

Of each part the program of the last shape is kept with its weights; that of the next shape takes
over what it packs the same way. Which of them stay in memory, `residents` says.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from smalti.checkpoint import Checkpoint
from smalti.checkpoint.adapters import Adapted, Use, changed
from smalti.checkpoint.embeddings import Embedding
from smalti.checkpoint.tensors import held_as
from smalti.diffusion.residents import Resident, Residents
from smalti.errors import InputError
from smalti.families.parts import Part, parts
from smalti.graph import Graph
from smalti.graph.quantised import FORMATS, of_eight_bits
from smalti.runtime import Program, compile_graph
from smalti.runtime.choice import of_wide_range
from smalti.runtime.supervisor import Supervisor


def ignore(text: str) -> None:
    """Progress that nobody watches."""


@dataclass
class Submodels:
    """Programs of one checkpoint, made when they are first needed.

    `weights` are those of the checkpoint, with adapters where `adapted` has made some with them.
    Others may be set at any time: nothing is compiled for it, and only the weights that differ are
    bound again, when their part is needed next. `words` are the textual inversions that prompts
    may name.
    `progress` is called with one line of text before anything that may take over a second. With
    `supervise`, schedules are tried while parts run (see `runtime.supervisor`). `residents` hold
    the programs, beside those of other models and networks, in the memory that all may take;
    they are those of `device`, for an `objective` (see `tune.objective`).
    """

    checkpoint: Checkpoint
    precision: str = "auto"
    threads: int | None = None
    progress: Callable[[str], None] = ignore
    supervise: bool = False
    words: Sequence[Embedding] = ()
    residents: Residents = field(default_factory=Residents)
    device: str = "cpu"
    objective: str = "latency"

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
        if not self.supervise or self.device != "cpu":
            return program.run_checked(inputs)
        resident = self.residents.get(self.key(part))
        if resident.supervisor is None:
            resident = replace(resident, supervisor=Supervisor(program))
            self.residents.put(self.key(part), resident)
        return resident.supervisor.run_checked(inputs)

    def begin(self) -> None:
        """A new picture begins."""
        for part in self.parts:
            resident = self.residents.get(self.key(part))
            if resident is not None and resident.supervisor is not None:
                resident.supervisor.begin()

    def key(self, part: str) -> Hashable:
        """What `residents` know a part as."""
        return self.checkpoint, part

    def done(self, part: str) -> None:
        """A part is not needed for a while."""
        self.residents.done(self.key(part))

    def bound(self, part: str, shape: tuple[int, ...]) -> Program:
        """The program of `part` for `shape`, with the checkpoint's weights.

        Raises NumericsError naming a weight that holds NaN or Inf.
        """
        before = self._current(part)
        if before is not None and before.shape == shape:
            return before.program
        graph = self.graph(part, shape)
        program = self.compiled(part, graph, before and before.program)
        self.progress(f"loading {self.parts[part].title}")
        self.residents.bind(self.key(part), Resident(program, shape, self.weights),
                            self.parts[part].title, self.weights.given, self.weights.drop)
        return program

    def _current(self, part: str) -> Resident | None:
        """The program of `part` that is there, with the weights of now: what adapters have changed
        since is bound again. None where one of these weights had to be filtered otherwise, as the
        guard found: another may not, and pictures do not depend on what was bound before; and None
        where some are to be held as another dtype."""
        key = self.key(part)
        known = self.residents.get(key)
        names = changed(known.weights, self.weights) if known is not None else frozenset()
        if known is None or names & known.program.filterings.keys() or (
                names and self._held_otherwise(known.program)):
            self.residents.let_go(key)
            return None
        self.residents.take(key)  # until all went well, and then it is the last that was in use
        if names:
            self.progress(f"adapting {self.parts[part].title}")
            known.program.bind(self.weights.given, self.weights.drop, only=names)
        known = replace(known, weights=self.weights)
        self.residents.put(key, known)
        return known

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
