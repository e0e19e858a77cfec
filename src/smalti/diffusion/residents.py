"""Programs that are in memory with their weights, and what all of them may take.

The parts of a model, of a refiner, and the networks beside them share one `Residents`. What is not
in use goes when another one needs its room, the one that was used longest ago first; weights of one
that is too large for what is left come and go while it runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from smalti.graph.operation import HALVES
from smalti.runtime import Program
from smalti.runtime.memory import resident_bytes
from smalti.runtime.sources import Done, Read
from smalti.runtime.supervisor import Supervisor

BASE_BYTES = 150_000_000
"""What a process takes beside weights and intermediate results, where the system does not tell."""
STAGED = 4
"""Copies of the largest weight that there may be while weights are read and packed."""


@dataclass(frozen=True)
class Resident:
    """A program with its weights, and the shape that it was made for; `weights` says which are
    bound. `supervisor` is there where schedules are tried while it runs."""

    program: Program
    shape: tuple[Hashable, ...]
    weights: object = None
    supervisor: Supervisor | None = None

    @property
    def bytes(self) -> int:
        """What it takes."""
        return self.program.weights_bytes + self.program.arena_bytes


@dataclass
class Residents:
    """Programs by any key, in the order in which they were last used.

    All that the process takes is kept below `memory_bytes`, where that is given; of a `device` that
    is not the CPU, what lies there. Without `keep` each is let go as soon as it is done with.
    `said` says what was done because memory was short.
    """

    memory_bytes: int | None = None
    device: str = "cpu"
    keep: bool = True
    said: list[str] = field(default_factory=list)
    _held: dict[Hashable, Resident] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._held)

    def get(self, key: Hashable) -> Resident | None:
        """The one of this key, if it is there and its device still works."""
        for gone in [name for name, each in self._held.items() if each.program.lost]:
            del self._held[gone]
        return self._held.get(key)

    def put(self, key: Hashable, resident: Resident) -> None:
        """Hold one instead of what has this key, as the last that was in use."""
        self._held.pop(key, None)
        self._held[key] = resident

    def take(self, key: Hashable) -> Resident | None:
        """Hold the one of this key no more."""
        return self._held.pop(key, None)

    def bind(self, key: Hashable, resident: Resident, title: str, read: Read, done: Done) -> None:
        """Give a program its weights, and hold it; what has its key hands over those that both pack
        the same way. Raises what `Program.bind` does."""
        program = resident.program
        room = self._room_for(key, program)
        if room is not None and room < program.weights_bytes:
            self.say(f"memory was short for {title}: {max(room, 0) / 1e9:.1f} of "
                     f"{program.weights_bytes / 1e9:.1f} GB of its weights were there at a time, "
                     f"the rest was read while it ran")
        before = self._held.get(key)
        program.bind(read, done, bytes_max=room, like=before and before.program)
        self.put(key, resident)

    def say(self, text: str) -> None:
        """Note what was done because memory was short, once."""
        if text not in self.said:
            self.said.append(text)

    def room(self, held_bytes: int = 0) -> int | None:
        """Bytes that may still be taken, beside `held_bytes`; None where nothing bounds them."""
        if self.memory_bytes is None:
            return None
        taken = sum(each.bytes for each in self._held.values())
        if self.device == "cpu":
            taken = max(resident_bytes() or 0, BASE_BYTES + taken)
        return self.memory_bytes - taken - held_bytes

    def make_room(self, size: int, but: Hashable) -> None:
        """Let go of others than `but` until `size` bytes may be taken, or none is left."""
        others = [key for key in self._held if key != but]
        while others and self.room(size) is not None and self.room(size) < 0:
            self.let_go(others.pop(0))

    def let_go(self, key: Hashable) -> None:
        """Give back the memory of one, unless somebody else holds its program."""
        known = self.take(key)
        if known is not None and known.program.streamed:
            known.program.release()

    def done(self, key: Hashable) -> None:
        """One is not needed for a while."""
        if not self.keep:
            self.let_go(key)

    def rest(self, bytes_max: int) -> None:
        """Let go of as many as it takes for the others to wait for the next call in `bytes_max`."""
        while sum(each.bytes for each in self._held.values()) > bytes_max:
            self.let_go(next(iter(self._held)))

    def _room_for(self, key: Hashable, program: Program) -> int | None:
        """Bytes that the weights of a program may take; others are let go where they must be, and
        last what has its key."""
        if self.memory_bytes is None:
            return None
        dtypes = dict(program.recipe.weights)
        largest = max((value.type.size * (2 if dtypes.get(name) in HALVES else 4)
                       for name, value in program.recipe.graph.parameters.items()), default=0)
        working, before = program.arena_bytes + STAGED * largest, self._held.get(key)
        if before is not None and not before.program.streamed and self.room(working) >= 0:
            return program.weights_bytes  # most of them are there
        self.make_room(working + program.weights_bytes, key)
        if self.room(working) < program.weights_bytes:
            self.let_go(key)
        return self.room(working)
