"""The loop over the chunks of a depth: each is staged, and what is staged is multiplied.

    not ahead      a chunk is staged, then multiplied
    ahead          the next chunk is loaded into registers while one is multiplied, and staged when
                   that is done; with two buffers while it is. Right matrices that are read where
                   they are wait in registers for the patch of their own chunk only

What is loaded ahead is staged in the same turn, and the products of the last chunk are behind the
loop. If registers went from one turn to the next, compilers would copy them, and move the loads to
where the loop turns back, behind the products that should hide them (Mesa's nir_opt_sink).

The chunks of one place of a window have a loop inside of that over the places. What depends on the
place, as addresses and borders, is worked out before it, and addresses only advance in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.factors import Factor, Fetched, Patch
from smalti.codegen.gpu.form import Expr, op
from smalti.codegen.gpu.product import ZERO
from smalti.dataclass import dataclass
from smalti.schedule.group import GroupContraction

Multiply = Callable[[Expr, Expr, Expr], None]
"""Adds the products of a chunk: its number, and where both factors begin in shared memory."""


@dataclass
class Chunks:
    """The `count` chunks of a depth, of which a work-group has `each`; `own` are the elements of
    shared memory that a chunk of each factor takes."""

    b: Builder
    schedule: GroupContraction
    patch: Patch
    weight: Factor
    multiply: Multiply
    count: int
    each: int
    own: tuple[int, int]

    @property
    def factors(self) -> tuple[Factor, Factor]:
        """The left and the right one."""
        return self.patch, self.weight

    def run(self, start: Expr, stop: Expr) -> None:
        """Add up the products of all chunks from `start` on, below `stop`."""
        taps = self.patch.chunks_of_a_tap > 1
        if not self.schedule.ahead:
            self._each(start, stop)
        elif self.schedule.matrix and self.schedule.direct:
            (self._each_of_taps if taps else self._each)(start, stop)
        elif self.schedule.buffers == 2:
            self._two_buffers(start, stop)
        elif taps:
            self._by_taps(start, stop)
        else:
            self._ahead(start, stop)

    def _each(self, start: Expr, stop: Expr) -> None:
        self._only(start)
        if self.each > 1:
            with self._turns(self.b.let(start + 1), stop, less=1) as chunk:
                self._only(chunk)

    def _each_of_taps(self, start: Expr, stop: Expr) -> None:
        """The same with a loop for the chunks of each tap: of each place of the window."""
        b, deep = self.b, self.patch.chunks_of_a_tap
        end = b.let((stop - 1) // deep)
        with b.loop(end + 1, b.let(start // deep)) as tap:
            self.patch.enter(tap)
            begin = b.let(tap * deep)
            behind = b.let(begin + deep)
            if self.each % deep:  # who shares the depth begins and ends anywhere
                begin, behind = b.let(op("max", start, begin)), b.let(op("min", behind, stop))
            with b.loop(behind, begin) as chunk:
                self._only(chunk)

    def _ahead(self, start: Expr, stop: Expr) -> None:
        last = self.b.let(stop - 1)
        self._put(self._fetch(start))
        if self.each > 1:
            with self._turns(start, last, less=1) as chunk:
                self._turn(chunk, self.b.let(chunk + 1))
        self.multiply(last, ZERO, ZERO)
        self.b.barrier()

    def _by_taps(self, start: Expr, stop: Expr) -> None:
        """The same with a loop for the chunks of each tap: of each place of the window."""
        b, patch, deep = self.b, self.patch, self.patch.chunks_of_a_tap
        last = b.let(stop - 1)
        first, end = b.let(start // deep), b.let(last // deep)
        patch.enter(first)
        self._put(self._fetch(start))
        with b.loop(end + 1, first) as tap:
            patch.enter(tap)
            begin = b.let(tap * deep)
            final = b.let(begin + (deep - 1))
            if self.each % deep:  # who shares the depth begins and ends anywhere
                begin, final = b.let(op("max", start, begin)), b.let(op("min", final, last))
            with b.loop(final, begin) as chunk:
                self._turn(chunk, b.let(chunk + 1))
            patch.enter(b.let(op("min", tap + 1, end)))
            # behind the last chunk it is staged again: nobody reads it
            self._turn(final, b.let(op("min", final + 1, last)))

    def _only(self, chunk: Expr) -> None:
        """Stage a chunk, and multiply it."""
        self._put(self._fetch(chunk))
        self.multiply(chunk, ZERO, ZERO)
        self.b.barrier()

    def _fetch(self, chunk: Expr) -> list[list[Fetched]]:
        return [factor.fetch(chunk) for factor in self.factors]

    def _put(self, fetched: Sequence[Sequence[Fetched]]) -> None:
        for factor, values in zip(self.factors, fetched, strict=True):
            factor.put(values, ZERO)
        self.b.barrier()

    def _turn(self, chunk: Expr, following: Expr) -> None:
        """Multiply a chunk, and put the following one in its place."""
        fetched = self._fetch(following)
        self.multiply(chunk, ZERO, ZERO)
        self.b.barrier()
        self._put(fetched)

    def _two_buffers(self, start: Expr, stop: Expr) -> None:
        b, last = self.b, self.b.let(stop - 1)
        for factor, own in zip(self.factors, self.own, strict=True):
            factor.put(factor.fetch(start), (start & 1) * own)
        b.barrier()
        with self._turns(start, stop) as chunk:
            this, following = b.let(chunk & 1), b.let(op("min", chunk + 1, last))
            fetched = self._fetch(following)
            self.multiply(chunk, this * self.own[0], this * self.own[1])
            for factor, values, own in zip(self.factors, fetched, self.own, strict=True):
                factor.put(values, b.let((this ^ 1) * own))
            b.barrier()

    @contextmanager
    def _turns(self, start: Expr, stop: Expr, less: int = 0) -> Iterator[Expr]:
        """A loop over chunks; of a constant number of turns, `less` than a work-group has chunks,
        where all have as many: compilers take more out of such a loop."""
        if self.schedule.split == 1 or self.count % self.each:
            with self.b.loop(stop, start) as chunk:
                yield chunk
        else:
            with self.b.loop(self.each - less) as turn:
                yield self.b.let(start + turn)
