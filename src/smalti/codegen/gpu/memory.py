"""Memory as the interpreter of group programs sees it: elements, and who touched each of them.

Two accesses to an element are ordered if one invocation makes both, if both are made in one
work-group with a barrier in between, or in one subgroup with a barrier of subgroups in between. Any
other two of which one writes are a race, whatever they write: nothing orders the work-groups of a
launch.

When an access was made is a number, its epoch: `EPOCH` for each barrier of the group before it, and
1 for each barrier of subgroups since the last of those.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from smalti.codegen.gpu.form import Binding, Shared
from smalti.dataclass import dataclass

STORED_DTYPES = {
    "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "i32": np.dtype(np.int32), "u32": np.dtype(np.uint32),
    "i8": np.dtype(np.int8), "u8": np.dtype(np.uint8),
}
NOBODY = -1
SEVERAL_HERE, SEVERAL_GROUPS = 1 << 61, 1 << 62
"""Several of the one work-group that sees a shared element; of more than one."""
EPOCH = 1 << 20
"""Epochs from one barrier of the group to the next."""


@dataclass(frozen=True)
class Agents:
    """Numbers for all that touch memory: in each work-group its invocations, then its subgroups
    (which move matrices together, and stand for several of their invocations), then one that
    stands for several of these. Subgroups have `subgroup` invocations, the last maybe fewer."""

    groups: tuple[int, int, int]
    size: int
    subgroup: int

    @property
    def subgroups(self) -> int:
        """Subgroups of a work-group."""
        return -(-self.size // self.subgroup)

    @property
    def stride(self) -> int:
        """How many there are in a work-group."""
        return self.size + self.subgroups + 1

    def unit(self, who: np.ndarray) -> np.ndarray:
        """The subgroup as an agent, of whom that is known: those of several subgroups, and nobody,
        stay what they are."""
        own = who % self.stride
        inside = (who >= 0) & (who < SEVERAL_HERE) & (own < self.size)
        return np.where(inside, who - own + self.size + own // self.subgroup, who)

    def several(self, who: np.ndarray) -> np.ndarray:
        """Who stands for several of the same work-group."""
        return who // self.stride * self.stride + self.stride - 1

    def show(self, who: int) -> str:
        """In words."""
        if who >= SEVERAL_HERE:
            return "several groups" if who == SEVERAL_GROUPS else "several of the group"
        group, own = divmod(int(who), self.stride)
        across, down, _ = self.groups
        place = f"group ({group % across}, {group // across % down}, {group // across // down})"
        if own < self.size:
            return f"invocation {own} of {place}"
        own -= self.size
        return f"subgroup {own} of {place}" if own < self.subgroups else f"several of {place}"


class TrackedMemory:
    """A binding, or the shared arrays of one name in a batch of work-groups.

    `fail` raises an error with the message that it is given.
    """

    def __init__(self, buffer: Binding | Shared, values: np.ndarray, agents: Agents,
                 fail: Callable[[str], None]) -> None:
        self.buffer, self.values, self.agents, self.fail = buffer, values, agents, fail
        self.shared = isinstance(buffer, Shared)
        self.access = "read_write" if isinstance(buffer, Shared) else buffer.access
        tracked = len(values) if self.access != "read" else 0
        self.writer, self.reader = (np.full(tracked, NOBODY, np.int64) for _ in range(2))
        self.write_epoch, self.read_epoch = (np.zeros(tracked, np.int64) for _ in range(2))

    def cells(self, index: np.ndarray, group: np.ndarray, who: np.ndarray) -> np.ndarray:
        """Where the elements `index` [accesses, each] of a batch's `group`s lie in `values`."""
        beyond = index >= self.buffer.elements
        if beyond.any():
            access, element = np.argwhere(beyond)[0]
            self.fail(f"{self.agents.show(who[access])} touches element {index[access, element]} "
                      f"of {self.buffer.name}, which has {self.buffer.elements}")
        return index + group[:, None] * self.buffer.elements if self.shared else index

    def read(self, cells: np.ndarray, who: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        """The elements at `cells` [accesses, each], for `who` [accesses] after barrier number
        `epoch` [accesses] of their group."""
        if self.access == "write":
            self.fail(f"{self.buffer.name} is only written, but read here")
        if self.access == "read_write":
            who, epoch = (np.broadcast_to(x[:, None], cells.shape) for x in (who, epoch))
            writer = self.writer[cells]
            if self.shared and (writer == NOBODY).any():
                self._clash(writer == NOBODY, cells, who, writer, "read", "was never written")
            race = self._unordered(writer, self.write_epoch[cells], who, epoch)
            self._clash(race, cells, who, writer, "read", "written")
            remember = self._remember_here if self.shared else self._remember_readers
            remember(cells, who, epoch)
        return self.values[cells]

    def write(self, cells: np.ndarray, values: np.ndarray, who: np.ndarray,
              epoch: np.ndarray) -> None:
        """Put `values`, of the stored dtype, at `cells`; the rest is as for `read`."""
        if self.access == "read":
            self.fail(f"{self.buffer.name} is only read, but written here")
        who, epoch = (np.broadcast_to(x[:, None], cells.shape) for x in (who, epoch))
        for agent, since, did in ((self.writer, self.write_epoch, "written"),
                                  (self.reader, self.read_epoch, "read")):
            race = self._unordered(agent[cells], since[cells], who, epoch)
            self._clash(race, cells, who, agent[cells], "write", did)
        self.writer[cells] = who
        self._clash(self.writer[cells] != who, cells, who, self.writer[cells], "write", "written")
        self.write_epoch[cells] = epoch
        self.values[cells] = values

    def _unordered(self, before: np.ndarray, since: np.ndarray, who: np.ndarray,
                   epoch: np.ndarray) -> np.ndarray:
        """Whether an access of `before` at `since` has no order with one of `who` at `epoch`."""
        together = ~self._apart(before, since, who, epoch)
        if not self.shared:
            together |= before // self.agents.stride != who // self.agents.stride
        return together & (before != NOBODY) & (before != who)

    def _apart(self, before: np.ndarray, since: np.ndarray, who: np.ndarray,
               epoch: np.ndarray) -> np.ndarray:
        """Whether a barrier lies between two accesses of a work-group that both were part of."""
        if not (epoch % EPOCH).any():  # nor is there any before, since the group's last barrier
            return since != epoch
        own = self.agents.unit(before) == self.agents.unit(who)
        return (since // EPOCH != epoch // EPOCH) | own & (since != epoch)

    def _clash(self, found: np.ndarray, cells: np.ndarray, who: np.ndarray, other: np.ndarray,
               does: str, did: str) -> None:
        """Fail for the first access that was found to be wrong."""
        if not found.any():
            return
        at = tuple(np.argwhere(found)[0])
        element = f"{self.buffer.name}[{cells[at] % self.buffer.elements}]"
        first = f"{self.agents.show(who[at])} {does}s {element}"
        if other[at] == NOBODY:
            self.fail(f"{first}, which {did}")
        self.fail(f"race: {first}, which is {did} by {self.agents.show(other[at])} without a "
                  "barrier in between")

    def _remember_here(self, cells: np.ndarray, who: np.ndarray, epoch: np.ndarray) -> None:
        """Each cell of shared memory keeps its reader, or that there were several of a subgroup or
        of the group since the last barrier."""
        before = self.reader[cells]
        alone = (before == NOBODY) | (before == who) | self._apart(
            before, self.read_epoch[cells], who, epoch)
        kept, beside = np.array(who), ~alone
        if beside.any():
            kept[beside] = self._several(before[beside], who[beside])
        self.reader[cells] = kept
        last = self.reader[cells]  # one of those that read a cell in this very access
        differ = last != kept
        if differ.any():
            mark = self._several(last[differ], kept[differ])
            inside = mark != SEVERAL_HERE
            self.reader[cells[differ][inside]] = mark[inside]
            self.reader[cells[differ][~inside]] = SEVERAL_HERE
        self.read_epoch[cells] = epoch

    def _several(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Who stands for two that see the same shared memory."""
        unit = self.agents.unit(one)
        return np.where(unit == self.agents.unit(other), unit, SEVERAL_HERE)

    def _remember_readers(self, cells: np.ndarray, who: np.ndarray, epoch: np.ndarray) -> None:
        """The same of a binding: readers of several work-groups count whatever barriers there are.
        """
        stride = self.agents.stride
        before, group = self.reader[cells], who // stride
        here = before // stride == group
        alone = (before == NOBODY) | (before == who) | (here & self._apart(
            before, self.read_epoch[cells], who, epoch))
        kept = np.where(alone, who, np.where(here, self.agents.several(who), SEVERAL_GROUPS))
        self.reader[cells] = kept
        last = self.reader[cells]  # one of those that read a cell in this very access
        here = last // stride == group
        for differ, mark in (((last != kept) & here, self.agents.several(who)),
                             ((last != kept) & ~here, np.full_like(who, SEVERAL_GROUPS))):
            self.reader[cells[differ]] = mark[differ]
        self.read_epoch[cells] = epoch
