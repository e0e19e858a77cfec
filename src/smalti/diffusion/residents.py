"""The programs that are in memory with their weights, within one budget of bytes.

The parts of a model, of a refiner, and the networks beside them share one `Residents`, and so do
all pictures that are made at a time. A program belongs to no picture: it is bound to weights, and
every picture that wants these weights in this shape uses it. Pictures with other adapters or of
another size have programs of their own for as long as they are made, which share all weights that
both hold the same way. What nobody uses is evicted when the budget is short, the one used longest
ago first; weights of a program that is too large for what is left are streamed while it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import field
from typing import Protocol

import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.graph.operation import HALVES
from smalti.graph.quantised import Quantised
from smalti.runtime import Program
from smalti.runtime.choice import described
from smalti.runtime.cpu.memory import resident_bytes
from smalti.runtime.drivers import driver_of
from smalti.runtime.supervisor import Supervisor

BASE_BYTES = 150_000_000
"""What a process takes beside weights and intermediate results, where the system does not tell: as
measured on Linux with all modules of a pipeline loaded."""
STAGED = 4
"""Copies of the largest weight that there may be while weights are read and packed: as stored, as
f32, transformed and packed."""
KEPT_SHARE = 0.5
"""Of what may be taken on a device, for weights that wait for the next picture; on a GPU with
memory of its own it is all of it, as other programs do not come to need that."""
STAGED_ON_DEVICE = 2
"""Of a device with memory of its own: the halves of the stage that weights are copied to which lie
in main memory."""
UNCHANGED: frozenset[str] = frozenset()


def ignore(text: str) -> None:
    """Progress that nobody watches, or a note that nobody reads."""


class Readable(Protocol):
    """Where the weights of a program come from."""

    def given(self, name: str) -> np.ndarray | Quantised:
        """A weight by its name."""

    def drop(self, name: str) -> None:
        """Let go of the memory that a weight was read into."""


@dataclass(eq=False)
class Resident:
    """A program with the weights that are bound to it, and the shape that it was made for.

    `held_bytes` are those of its weights that are there at a time, None where all are. `users` are
    the pictures that are being made with it. `supervisor` is there where schedules are tried while
    it runs. Who asked for the program of a `lent` one may run it at any time, also when it is
    evicted.
    """

    program: Program
    shape: tuple[Hashable, ...]
    weights: Readable | None = None
    held_bytes: int | None = None
    users: set[Hashable] = field(default_factory=set)
    supervisor: Supervisor | None = None
    lent: bool = False

    @property
    def bytes(self) -> int:
        """The memory that it takes, shared weights included."""
        weights = self.program.weights_bytes if self.held_bytes is None else self.held_bytes
        return weights + self.program.arena_bytes


@dataclass(frozen=True)
class MemoryDecision:
    """What was decided about the memory of a program when its weights were bound.

    `held_bytes` of its `weights_bytes` are there at a time, the rest is read while it runs.
    `working_bytes` are those of what it computes with, `staged_bytes` those of a weight on its way.
    `taken_bytes` is what it and all others take then, all `Residents` together.
    """

    weights_bytes: int
    held_bytes: int
    working_bytes: int
    staged_bytes: int
    taken_bytes: int

    @property
    def streamed_bytes(self) -> int:
        """Those of the weights that are read in each run."""
        return self.weights_bytes - self.held_bytes


def unplaced(found: MemoryDecision) -> None:
    """A decision that nobody asks for."""


@dataclass(frozen=True)
class Wanted:
    """A program that somebody wants to run: of what (`key`), for which `shape` and `weights`.

    `build(like)` compiles it, beside a program of the same weights. `differing(resident)` names the
    weights that a resident has bound otherwise, None where that cannot be told;
    `takes(resident, names)` tells whether its program can be given those of these names. `user` is
    the picture that it is for, None for a single run. `progress` hears what takes long, `say` what
    was done because memory was short, `placed` what was decided about its memory.
    """

    key: Hashable
    title: str
    shape: tuple[Hashable, ...]
    weights: Readable
    build: Callable[[Program | None], Program]
    differing: Callable[[Resident], frozenset[str] | None] = lambda resident: UNCHANGED
    takes: Callable[[Resident, frozenset[str]], bool] = lambda resident, names: True
    user: Hashable = None
    progress: Callable[[str], None] = ignore
    say: Callable[[str], None] = ignore
    placed: Callable[[MemoryDecision], None] = unplaced


@dataclass
class Residents:
    """Programs by any key, in the order in which they were last used; of one key there may be some.

    All that the process takes is kept below `budget_bytes`, where that is given; of a `device` that
    is not the CPU, what lies there. Without `keep` each is evicted as soon as it is done with.
    `turn` is held while a program is bound and run: pictures that are made in several threads take
    turns, a run of a program at a time, so that none is evicted while it runs. Parts of the same
    models that run elsewhere are held by those `on` that device, within the budget that `budget_of`
    gives for it. Of devices with memory of their own, `outside_bytes` is what weights may take of
    main memory. Where they only `foresee`, no weights are bound, and what the process takes does
    not count: all decisions are those that a new process makes.
    """

    budget_bytes: int | None = None
    device: str = "cpu"
    keep: bool = True
    budget_of: Callable[[str], int | None] = lambda device: None
    outside_bytes: int | None = None
    foresee: bool = False
    turn: threading.RLock = field(default_factory=threading.RLock)
    _held: list[tuple[Hashable, Resident]] = field(default_factory=list)
    _by_device: dict[str, Residents] = field(default_factory=dict)

    def on(self, device: str) -> Residents:
        """Those on another device, or these."""
        known = self._by_device
        known.setdefault(self.device, self)
        if device not in known:
            known.setdefault(device, Residents(
                self.budget_of(device), device, self.keep, self.budget_of, self.outside_bytes,
                self.foresee, _by_device=known))
        return known[device]

    def __iter__(self) -> Iterator[Hashable]:
        return iter([key for key, _ in self._held])

    def all(self, key: Hashable) -> list[Resident]:
        """All of this key whose device still works, the last used first."""
        self._held = [each for each in self._held if not each[1].program.lost]
        return [resident for other, resident in reversed(self._held) if other == key]

    def get(self, key: Hashable) -> Resident | None:
        """The one of this key that was used last, if there is one whose device still works."""
        return next(iter(self.all(key)), None)

    def put(self, key: Hashable, resident: Resident) -> None:
        """Hold one as the last that was used; others of this key that nobody uses are evicted."""
        for other in self.all(key):
            if other is resident or not other.users:
                self._remove(other)
                if other is not resident:
                    _release(other)
        self._held.append((key, resident))

    def ready(self, wanted: Wanted) -> Resident:
        """A program with its weights, that runs as soon as `turn` is held.

        One that is there is used as it is, or takes other weights where no other picture uses it;
        else one is compiled and bound. Raises what `Program.bind` and compiling do.
        """
        with self.turn:
            known = [(each, names) for each in self.all(wanted.key)
                     if (names := wanted.differing(each)) is not None]
            same = [each for each in known
                    if each[0].shape == wanted.shape and wanted.takes(*each)]
            found = next((each for each, names in same if not names), None)
            if found is None:
                free = [each for each in same if not each[0].users - {wanted.user}]
                found = (self._adapted(wanted, *free[0]) if free else self._bound(wanted, known))
            if wanted.user is not None:
                found.users.add(wanted.user)
            self.put(wanted.key, found)
            return found

    def _adapted(self, wanted: Wanted, resident: Resident, names: frozenset[str]) -> Resident:
        """One that takes other weights of these `names`; it is held only if all goes well."""
        self._remove(resident)
        wanted.progress(f"adapting {wanted.title}")
        resident.program.bind(wanted.weights.given, wanted.weights.drop, only=names)
        resident.weights = wanted.weights
        return resident

    def _bound(self, wanted: Wanted, known: list[tuple[Resident, frozenset[str]]]) -> Resident:
        """One that is compiled and bound; it shares what the most similar of those that are `known`
        holds the same way, each with the names of weights that it has bound otherwise."""
        like: Resident | None = None
        names = UNCHANGED
        if known:
            like, names = min(known, key=lambda each: len(each[1]))
        program = wanted.build(None if like is None else like.program)
        if names & program.winograd_sizes.keys():  # chosen for weights that are not wanted
            program = wanted.build(None)
        wanted.progress(f"loading {wanted.title}")
        budget = self._budget_for(wanted.key, program)
        if budget is not None and budget < program.weights_bytes:
            wanted.say(f"memory was short for {wanted.title}: {max(budget, 0) / 1e9:.1f} of "
                       f"{program.weights_bytes / 1e9:.1f} GB of its weights were there at a time, "
                       f"the rest was read while it ran")
        if like is not None and like not in self.all(wanted.key):
            like = None  # evicted
        held = program.weights_bytes if budget is None else program.held_bytes(budget)
        self._check_outside(wanted.title, program.weights_bytes - held)
        if like is not None and not (like.users or like.lent or like.program.streamed):
            self._remove(like)  # it would be evicted as soon as the new one is held
            if not self.foresee:
                like.program.leave_to(program, names)
        if not self.foresee:
            program.bind(wanted.weights.given, wanted.weights.drop, bytes_max=budget,
                         like=None if like is None else like.program, differing=names)
        found = Resident(program, wanted.shape, wanted.weights,
                         held if held < program.weights_bytes else None)
        wanted.placed(MemoryDecision(program.weights_bytes, held, program.arena_bytes,
                                     self._staged(program), self.taken_bytes + found.bytes))
        return found

    def _check_outside(self, title: str, size: int) -> None:
        """Raise InputError where weights that the device has no room for have none in main memory.
        """
        if self.outside_bytes is not None and described(self.device).has_own_memory \
                and size > self.outside_bytes:
            raise InputError(f"{title} has {size / 1e9:.1f} GB of weights more than the device has "
                             f"room for, and main memory may take {self.outside_bytes / 1e9:.1f} "
                             f"GB; give more memory, or a model of smaller weights")

    def free_bytes(self, held_bytes: int = 0) -> int | None:
        """Bytes that may still be taken, beside `held_bytes`; None where nothing bounds them."""
        if self.budget_bytes is None:
            return None
        taken = self.taken_bytes
        if self._of_main_memory:
            taken = max(0 if self.foresee else resident_bytes() or 0, BASE_BYTES + taken)
        return self.budget_bytes - taken - held_bytes

    @property
    def _of_main_memory(self) -> bool:
        """Whether programs take memory of this process."""
        return driver_of(self.device).computes_in_main_memory

    @property
    def taken_bytes(self) -> int:
        """What all take together; weights that programs of one key share count once."""
        shared: dict[Hashable, int] = {}
        for key, each in self._held:
            shared[key] = max(shared.get(key, 0), each.program.shared_bytes)
        return sum(shared.values()) + sum(each.bytes - each.program.shared_bytes
                                          for _, each in self._held)

    @property
    def kept_bytes(self) -> int | None:
        """What weights may take that wait for the next picture; None where nothing bounds them."""
        if self.budget_bytes is None:
            return None
        own = driver_of(self.device).of_gpus and described(self.device).has_own_memory
        return self.budget_bytes if own else int(KEPT_SHARE * self.budget_bytes)

    def evict_for(self, size: int, but: Hashable) -> None:
        """Evict others than those of the key `but` until `size` bytes may be taken, or none is
        left: first what no picture uses."""
        with self.turn:
            others = [each for key, each in self._held if key != but]
            for each in sorted(others, key=lambda each: bool(each.users)):
                free = self.free_bytes(size)
                if free is None or free >= 0:
                    return
                self.evict(each)

    def evict(self, resident: Resident) -> None:
        """Give back the memory of one, unless somebody else holds its program."""
        self._remove(resident)
        _release(resident)

    def done(self, key: Hashable, user: Hashable = None) -> None:
        """A picture does not need those of this key for a while."""
        with self.turn:
            for each in self.all(key):
                each.users.discard(user)
                if not self.keep and not each.users:
                    self.evict(each)

    def end(self, user: Hashable) -> None:
        """A picture is made, or given up; what nobody uses waits for the next one, on each device
        in a share of what may be taken there."""
        self.on(self.device)
        for here in [*self._by_device.values()]:
            with here.turn:
                for _, each in here._held:
                    each.users.discard(user)
                if here.kept_bytes is not None:
                    here.trim(here.kept_bytes)

    def trim(self, bytes_max: int) -> None:
        """Evict what nobody uses until all take at most `bytes_max`."""
        for _, each in [*self._held]:
            if self.taken_bytes > bytes_max and not each.users:
                self.evict(each)

    def clear(self) -> None:
        """Hold none of these any more: their device is lost."""
        with self.turn:
            self._held.clear()

    def _remove(self, resident: Resident) -> None:
        """Hold one no more."""
        self._held = [each for each in self._held if each[1] is not resident]

    def _budget_for(self, key: Hashable, program: Program) -> int | None:
        """Bytes that the weights of a program may take; others are evicted where they must be, and
        last what has its key."""
        recipe = program.recipe
        if self.budget_bytes is None or recipe is None:
            return None
        working, before = program.arena_bytes + self._staged(program), self.get(key)
        if before is not None and not before.program.streamed and self._fits(working):
            return program.weights_bytes  # most of them are there
        self.evict_for(working + program.weights_bytes, key)
        if not self._fits(working + program.weights_bytes):
            for each in self.all(key):
                self.evict(each)
        return self.free_bytes(working)

    def _staged(self, program: Program) -> int:
        """Bytes of weights on their way to where programs read them."""
        if program.recipe is None:
            return 0
        dtypes = dict(program.recipe.options.weights)
        largest = max((value.type.size * (2 if dtypes.get(name) in HALVES else 4)
                       for name, value in program.recipe.graph.parameters.items()), default=0)
        return (STAGED if self._of_main_memory else STAGED_ON_DEVICE) * largest

    def _fits(self, size: int) -> bool:
        """Whether so many bytes may still be taken."""
        free = self.free_bytes(size)
        return free is None or free >= 0


def _release(resident: Resident) -> None:
    """Give back the pool of a program whose weights are streamed."""
    if resident.program.streamed:
        resident.program.release()
