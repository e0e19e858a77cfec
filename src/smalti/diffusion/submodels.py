"""The parts of a checkpoint as programs that one picture runs: compiled for a shape, bound, run.

Programs are shared by all pictures (see `residents`). Weights with adapters, textual inversions and
what was noted on the way belong to one picture, and so to one `Submodels`.
"""

from __future__ import annotations

import json
import os.path
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from smalti import settings
from smalti.checkpoint import Checkpoint
from smalti.checkpoint.adapters import Adapted, WeightedAdapter, changed
from smalti.checkpoint.embeddings import Embedding
from smalti.checkpoint.tensors import held_as
from smalti.compiler.options import ROUNDED
from smalti.dataclass import dataclass
from smalti.diffusion import rounding
from smalti.diffusion.influence import influence
from smalti.diffusion.placement import PartDevices
from smalti.diffusion.residents import (
    UNCHANGED,
    MemoryDecision,
    Resident,
    Residents,
    Wanted,
    ignore,
)
from smalti.errors import InputError
from smalti.families.parts import ModelPart, parts
from smalti.graph import Graph
from smalti.graph.quantised import FORMATS, of_eight_bits
from smalti.rewrite.rounding import candidates, held_windows
from smalti.runtime import Program, ahead, cache, compile_graph
from smalti.runtime.choice import described, of_wide_range, usual_target
from smalti.runtime.drivers import driver_of
from smalti.runtime.supervisor import Account, Supervisor

MODULATION = "modulation"
"""The part that makes the modulations of a denoiser, where they are one of their own."""
Shape = tuple[Hashable, ...]
"""What a part is compiled for: the arguments of its graph."""


@dataclass(frozen=True)
class PartRuns:
    """How often a picture ran a part, and the program of it as long as it is in memory."""

    count: int
    program: weakref.ref[Program]


@dataclass(frozen=True)
class RoundedNames:
    """What all names of the weights of a part start with, and the names of those of 3 x 3 that may
    be held in 8 bits."""

    start: str
    windows: tuple[str, ...]


def nothing_known(submodels: Submodels) -> Iterable[tuple[str, Shape]]:
    """No parts, where nothing is known of what comes after others."""
    return ()


@dataclass(frozen=True, eq=False)
class Submodels:
    """Programs of one checkpoint, made when they are first needed, with the weights of one picture.

    `given` are weights of the checkpoint with adapters, as `adapted` makes them; None are its own.
    Nothing is compiled for others but where they are to be held otherwise, and only weights that
    differ are bound again. `words` are the textual inversions that prompts may name. `progress` is
    called with one line of text before anything that may take over a second. With `supervise`,
    schedules are tried while parts run (see `runtime.supervisor`). `residents` hold the programs,
    beside those of other models and networks, in the memory that all may take, on the devices of
    `placement`; they are for an `objective` (see `tune.objective`). `user` is the picture that is
    made, None for single runs; `said` is what was done because memory was short, and `texts` what
    text encoders have given for it; `accounts` say of each part what trying schedules has cost it,
    and `runs` how often it ran for which shape, `placed` what was decided about its memory;
    `decided` are the weights of a part that are not rounded to 8 bits, whatever the picture, and
    what their layers are computed in, and `named` its weights as `RoundedNames` has them. `after`
    tells which parts come after those that texts are read and pictures are denoised by, as far as
    that is known before, and for which shapes.
    """

    checkpoint: Checkpoint
    precision: str = "auto"
    threads: int | None = None
    progress: Callable[[str], None] = ignore
    supervise: bool = False
    given: Adapted | None = None
    words: Sequence[Embedding] = ()
    residents: Residents = field(default_factory=Residents)
    placement: PartDevices = PartDevices()
    objective: str = "latency"
    user: Hashable = None
    said: list[str] = field(default_factory=list)
    texts: dict[Hashable, dict[str, np.ndarray]] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    runs: dict[tuple[str, Shape], PartRuns] = field(default_factory=dict)
    placed: dict[tuple[str, Shape], MemoryDecision] = field(default_factory=dict)
    decided: dict[str, dict[str, str]] = field(default_factory=dict)
    named: dict[str, RoundedNames] = field(default_factory=dict)
    after: Callable[[Submodels], Iterable[tuple[str, Shape]]] = nothing_known

    @cached_property
    def weights(self) -> Adapted:
        """The weights that are given, or those of the checkpoint."""
        return self.adapted(()) if self.given is None else self.given

    def adapted(self, uses: Sequence[WeightedAdapter]) -> Adapted:
        """The weights of the checkpoint with these adapters. Raises CheckpointError for an adapter
        of another kind of model."""
        return Adapted(self.checkpoint, uses, self.checkpoint.report.path)

    def using(self, weights: Adapted, words: Sequence[Embedding] = (),
              user: Hashable = None) -> Submodels:
        """The same parts with other weights and words, for a picture of which nothing is known."""
        return replace(self, given=weights, words=words, user=user, said=[], texts={},
                       accounts={}, runs={}, placed={}, after=nothing_known)

    @cached_property
    def parts(self) -> dict[str, ModelPart]:
        """The parts of the model by name."""
        return parts(self.checkpoint.config)

    @property
    def denoiser(self) -> str:
        """The name of the part that denoises."""
        return self.checkpoint.config.denoiser.part

    def run(self, part: str, shape: Shape,
            **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs of `part` for these inputs, as f32.

        Raises NumericsError naming the first kernel that made NaN or Inf.
        """
        with self.residents_of(part).turn:
            resident = self._ready(part, shape)
            before = self.runs.get((part, shape))
            self.runs[part, shape] = PartRuns(1 if before is None else before.count + 1,
                                              weakref.ref(resident.program))
            if not self.supervise:
                return resident.program.run_checked(inputs)
            if resident.supervisor is None:
                resident.supervisor = Supervisor(resident.program)
            account = self.accounts.setdefault(part, Account())
            return resident.supervisor.run_checked(inputs, account)

    def key(self, part: str) -> Hashable:
        """What `residents` know a part as."""
        return self.checkpoint, part

    def say(self, text: str) -> None:
        """Note what was done because memory was short, once."""
        if text not in self.said:
            self.said.append(text)

    def done(self, part: str) -> None:
        """A part is not needed for a while."""
        self.residents_of(part).done(self.key(part), self.user)

    def residents_of(self, part: str) -> Residents:
        """What holds the programs of a part, on its device."""
        return self.residents.on(self.placement.of_part(part))

    def bound(self, part: str, shape: Shape) -> Program:
        """The program of `part` for `shape`, with the weights of this picture.

        Raises NumericsError naming a weight that holds NaN or Inf.
        """
        return self._ready(part, shape).program

    def lent(self, part: str, shape: Shape) -> Program:
        """As `bound`, for a caller who runs the program whenever it likes: it keeps its memory,
        also when another one takes its place."""
        with self.residents_of(part).turn:
            resident = self._ready(part, shape)
            resident.lent = True
            return resident.program

    def _ready(self, part: str, shape: Shape) -> Resident:
        """The program of `part` that `residents` hold."""
        self.kept(part)  # measured first, so that the program shares weights with what measures
        return self.residents_of(part).ready(Wanted(
            self.key(part), self._title(part), shape, self.weights,
            partial(self._built, part, shape), self._differing, self._takes, self.user,
            self.progress, self.say, partial(self.placed.__setitem__, (part, shape))))

    def _built(self, part: str, shape: Shape, like: Program | None) -> Program:
        """The program of `part` for `shape`, without weights."""
        return self.compiled(part, self.graph(part, shape), like)

    def _title(self, part: str) -> str:
        """What messages call a part. Raises InputError for an unknown one."""
        if part not in self.parts:
            raise InputError(f"no part is named {part!r}; known: {', '.join(self.parts)}")
        return self.parts[part].title

    def _differing(self, resident: Resident) -> frozenset[str] | None:
        """The weights of a program that are bound otherwise than this picture wants them; None
        where that cannot be told."""
        recipe = resident.program.recipe
        if resident.weights is self.weights:
            return UNCHANGED
        if recipe is None or not isinstance(resident.weights, Adapted):
            return None
        return changed(resident.weights, self.weights) & recipe.graph.parameters.keys()

    def _takes(self, resident: Resident, names: frozenset[str]) -> bool:
        """Whether a program can be given the weights of these `names` that this picture wants.

        It cannot where the guard chose another Winograd size for one of them: another weight may
        not need it, and pictures do not depend on what was bound before; nor where some are to be
        held as another dtype.
        """
        program, recipe = resident.program, resident.program.recipe
        if not names:
            return True
        if recipe is None or names & program.winograd_sizes.keys():
            return False
        held, wanted = dict(recipe.options.weights), self.held(names, self.weights)
        rounded = {name for name in names if held.get(name) in FORMATS}  # on the CPU only
        return all(held[name] == wanted[name] for name in rounded)

    def graph(self, part: str, shape: Shape) -> Graph:
        """What `part` computes for `shape`. Raises InputError for an unknown part."""
        self._title(part)
        return self.parts[part].graph(*shape)

    def dtypes(self, graph: Graph) -> dict[str, str]:
        """The dtype of each parameter that the checkpoint has as halves, or smaller.

        A quantised weight that an adapter changes is rounded to 8 bits, in the same groups, and so
        are those of `stored`.
        """
        return self.held(graph.parameters, self.weights)

    def held(self, names: Iterable[str], weights: Adapted) -> dict[str, str]:
        """The dtypes of those among `names` that are held as halves, or smaller."""
        found, stored = {}, self.stored(self.denoiser)
        for name in names:
            dtype = held_as(self.checkpoint.dtype(name))
            if dtype in FORMATS and name in weights.changed:
                dtype = of_eight_bits(dtype)
            elif name in stored:
                dtype = rounding.STORED
            if dtype is not None:
                found[name] = dtype
        return found

    def stored(self, part: str) -> frozenset[str]:
        """The weights of 3 x 3 of a part that are held in 8 bits beside its layers in integers, as
        far as is known of them: all that may be, but for those that are `kept`."""
        target = usual_target(self.placement.of_part(part))
        if self.precision_of(part) != ROUNDED or target is None or not target.pairs_of_bytes:
            return frozenset()
        return frozenset(self._named(part).windows) - self.decided.get(part, {}).keys()

    def _named(self, part: str) -> RoundedNames:
        """The names of the weights of a part."""
        if part not in self.named:
            graph = self.parts[part].graph(*self.parts[part].smallest)
            found = held_windows(graph, FORMATS[rounding.STORED].group)
            self.named[part] = RoundedNames(os.path.commonprefix([*graph.parameters]), tuple(
                name for name in found if held_as(self.checkpoint.dtype(name)) not in FORMATS))
        return self.named[part]

    def compiled(self, part: str, graph: Graph, like: Program | None = None) -> Program:
        """The program of `graph`, without weights; those of `like` will be bound. Where it is not
        known from before, those of the parts that come `after` are compiled beside it."""
        title = self._title(part)
        self.progress(f"compiling {title}")
        return compile_graph(
            graph,
            **self._choices(part, graph),
            progress=lambda done, total: self.progress(f"compiling {title}: {done} of {total}"),
            like=like,
            device=self.placement.of_part(part),
            missing=partial(self._missing, part),
        )

    def _choices(self, part: str, graph: Graph) -> dict[str, Any]:
        """What a module of a part is made by, as `compile_graph` calls it."""
        return dict(
            precision=self.precision_of(part),
            threads=self.threads,
            objective=self.objective,
            held=[name for name in self.parts[part].held if name in graph.inputs],
            weights=self.dtypes(graph),
            kept=self.kept(part),
        )

    def _missing(self, now: str) -> None:
        """Have helpers, if there are any, compile what comes after the part that is compiled `now`.
        """
        if ahead.submitting(self.threads) is None:
            return
        orders = []
        for part, shape in self.after(self):
            device = self.placement.of_part(part)
            recipe_of = driver_of(device).recipe
            if (part != now and recipe_of is not None
                    and self.key(part) not in list(self.residents_of(part))):
                graph = self.graph(part, shape)
                recipe, target = recipe_of(device, graph, **self._choices(part, graph))
                if target is not None:
                    orders.append(recipe.order(target))
        ahead.begin(orders, self.threads)

    def kept(self, part: str) -> dict[str, str]:
        """The weights of a part that are not rounded to integers of 8 bits, since their layers do
        not stand it, and what these are computed in: measured once for a checkpoint (see
        `rounding`)."""
        if self.precision_of(part) != ROUNDED:
            return {}
        if part not in self.decided:
            key = "\n".join(map(str, (
                "what layers and windows have that do not stand 8 bits", self.checkpoint.config,
                settings.target(), described(self.placement.of_part(part)).features,
                self.checkpoint.digest(self._named(part).start))))
            known = cache.get(key)
            if known is None and self.residents.foresee:
                return {}  # nothing is measured for what is not made
            if known is None:
                known = json.dumps(self._measured(part)).encode()
                cache.put(key, known)
            self.decided[part] = json.loads(known)
        return self.decided[part]

    def _measured(self, part: str) -> dict[str, str]:
        """What `kept` gives, from a small evaluation with the weights of the checkpoint alone."""
        plain = self.using(self.adapted(()))
        shape = rounding.enlarged(self.parts[part].smallest)
        graph = plain.graph(part, shape)
        time = (rounding.TIME_OF_EDM if self.checkpoint.config.prediction.startswith("edm")
                else rounding.TIME)
        target = usual_target(self.placement.of_part(part))
        bytes_multiplied = target is not None and target.multiplies_bytes
        paired = target is not None and target.pairs_of_bytes
        chosen = candidates(graph, rows_min=rounding.ROWS_MIN)
        stored = plain.stored(part)
        before = len(graph.nodes)
        known = influence(graph) if paired else None
        taps = rounding.tapped(graph, bytes_multiplied, stored)
        rounding.at_once(graph, len(graph.nodes) - before)
        inputs = rounding.noise(graph, time)
        if MODULATION in graph.inputs:
            made = rounding.noise(plain.graph(MODULATION, (1,)), time)
            (inputs[MODULATION],) = plain.run(MODULATION, (1,), **made).values()
        self.progress(f"measuring which layers of {self.parts[part].title} stand 8 bits")

        def built(like: Program | None) -> Program:
            return compile_graph(graph, precision=ROUNDED, threads=self.threads,
                                 weights=plain.dtypes(graph), like=like,
                                 device=self.placement.of_part(part))

        residents = self.residents_of(part)
        with residents.turn:
            program = residents.ready(Wanted(
                self.key(part), self._title(part), ("measured", *shape), plain.weights, built,
                plain._differing, plain._takes, None, self.progress, self.say)).program
            outputs = program.run_checked(inputs)
        codes = {name for name, dtype in program.weight_dtypes.items()
                 if dtype in FORMATS and bytes_multiplied}
        words = target is not None and rounding.words_help(target)
        reached = known.of(outputs) if known is not None else rounding.NOTHING
        found = rounding.too_imprecise(
            taps, outputs, plain.weights.floats, plain.weights.drop, codes, paired, words,
            reached=reached, chosen={*chosen, *stored})
        return found | dict.fromkeys(stored - {tap.name for tap in taps}, "f32")

    def precision_of(self, part: str) -> str:
        """The precision of a part: values of an autoencoder, of T5 and of language models do not
        fit f16, and integers of 8 bits are for the denoiser, which is run for each step."""
        if part in ("vae", "vae_encoder") or self.parts[part].wide \
                or self.precision == ROUNDED and part != self.denoiser:
            return of_wide_range(self.placement.of_part(part), self.precision)
        return self.precision
