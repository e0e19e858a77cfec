"""Where in the arena of a program everything lies that lives between kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smalti.fuse import Cut, HostPiece, Piece, View
from smalti.fuse.support import When
from smalti.fuse.view import Storage
from smalti.kernel.form import loads
from smalti.runtime.image import Place
from smalti.runtime.plan import Interval, plan

ALIGNMENT = 128


@dataclass(frozen=True)
class Arena:
    """An arena of `bytes`: the byte offsets of storages, and of the workspaces of kernels."""

    bytes: int
    storages: dict[Storage, int]
    workspaces: dict[int, int]

    def place(self, view: View) -> Place:
        """Where a view lies."""
        size = view.storage.element_bytes
        return Place(self.storages[view.storage] + size * view.offset, view.shape,
                     tuple(size * s for s in view.strides), view.storage.dtype)


def arranged(found: Cut, workspaces: Sequence[int]) -> Arena:
    """The arena of a cut whose kernels need `workspaces` bytes besides, each while it runs."""
    lives = _lives(found)
    shared = _shared(found, lives)
    kept = [s for s in lives if s not in shared]
    intervals = [Interval(s.bytes + ALIGNMENT, *lives[s]) for s in kept]
    working = [i for i, size in enumerate(workspaces) if size]
    intervals += [Interval(workspaces[i], i, i) for i in working]
    offsets, size = plan(intervals, ALIGNMENT)
    places = dict(zip(kept, offsets))
    for storage in shared:
        places[storage] = places[_root(storage, shared)]
    return Arena(size, places, dict(zip(working, offsets[len(kept):])))


def _lives(found: Cut) -> dict[Storage, list[int]]:
    """The first and the last piece at which each storage is needed."""
    last_piece = len(found.pieces) - 1
    lives: dict[Storage, list[int]] = {}
    for view in found.inputs.values():
        lives[view.storage] = [0, 0]
    for number, piece in enumerate(found.pieces):
        for view in piece.views.values():
            if view.storage.kind in ("arena", "input"):
                life = lives.setdefault(view.storage, [number, number])
                life[1] = max(life[1], number)
                if piece.when < When.RUN:  # from one run to the next
                    life[:] = 0, last_piece + 1
    for view in found.outputs.values():
        if view.storage.kind in ("arena", "input"):
            lives.setdefault(view.storage, [0, 0])[1] = last_piece + 1
    return lives


def _root(storage: Storage, shared: dict[Storage, Storage]) -> Storage:
    """Whose place a storage has."""
    while storage in shared:
        storage = shared[storage]
    return storage


def _shared(found: Cut, lives: dict[Storage, list[int]]) -> dict[Storage, Storage]:
    """Results that may overwrite an operand read for the last time, element by element."""
    shared: dict[Storage, Storage] = {}
    for number, piece in enumerate(found.pieces):
        out = piece.views.get("out")
        if out is None or isinstance(piece, HostPiece) \
                or piece.kernel.form not in ("map", "contraction") \
                or out.storage.kind != "arena" or lives[out.storage][0] != number:
            continue
        operand = _overwritable(piece, out, lives, number)
        if operand is None:
            continue
        root = _root(operand, shared)
        if root.bytes < out.storage.bytes:
            continue
        shared[out.storage] = operand
        lives[root][1] = max(lives[root][1], lives[out.storage][1])
        lives[operand][1] = lives[root][1]
        lives[out.storage] = lives[root]
    return shared


def _overwritable(piece: Piece, out: View, lives: dict[Storage, list[int]],
                  number: int) -> Storage | None:
    """An operand that dies here, fills its storage, and is read exactly where `out` is written."""
    stages = piece.kernel.stages
    axes = [name for name, _ in stages[-1].axes]
    elsewhere = {load.buffer for stage in stages[:-1] for load in loads(stage.value)}
    last = dict.fromkeys(loads(stages[-1].value))
    read = [load.buffer for load in last]
    for load in last:
        view = piece.views.get(load.buffer)
        if view is None or load.buffer in elsewhere or view.storage.kind != "arena" \
                or read.count(load.buffer) != 1:
            continue
        reads = [v.storage for v in piece.views.values()].count(view.storage)
        if lives[view.storage][1] != number or reads != 1 or view.offset or out.offset \
                or (view.storage.size, view.storage.dtype) != (out.storage.size,
                                                               out.storage.dtype):
            continue
        at = {}
        for index, stride, extent in zip(load.index, view.strides, view.shape):
            if getattr(index, "divisor", 0) != 1 or index.offset or len(index.terms) > 1:
                break
            for name, coefficient in index.terms:
                if extent > 1:
                    at[name] = coefficient * stride
        else:
            wanted = {name: s for name, s, n in zip(axes, out.strides, out.shape) if n > 1}
            if at == wanted:
                return view.storage
    return None
