"""Gives the values of a graph their memory.

Views share memory with what they are views of; operands of a concat are written directly into
their part of its result; and where a kernel cannot read a value by strides, a copy is added.
"""

from __future__ import annotations

import math

from smalti.fuse.builder import PartitionBuilder
from smalti.fuse.decide import Decisions, is_view
from smalti.fuse.region import buffer_of
from smalti.fuse.support import BYTES, INTEGERS, STORED, When
from smalti.fuse.view import Storage, View, given, row_major, stored
from smalti.graph import Graph, Node, Value
from smalti.graph.operations.contraction import WORD_FACTOR
from smalti.kernel import build
from smalti.kernel.form import Load, axis


class Placement:
    """Knows where the values of a graph are stored, and allocates new storages.

    `views` has the memory of each value that has some so far; `statistics` that of scale and shift
    of each normalisation. Regions that copy values are added to `builder`.
    """

    def __init__(self, graph: Graph, decisions: Decisions, builder: PartitionBuilder) -> None:
        self.decisions, self.builder = decisions, builder
        self.views: dict[Value, View] = {}
        self.statistics: dict[Node, tuple[View, ...]] = {}
        self._copies: dict[tuple[View, tuple[int, ...], int], View] = {}
        self._inside: dict[Value, tuple[Value, int]] = {}
        for name, value in (*graph.inputs.items(), *graph.parameters.items()):
            dense = value.kind != "input" or value in decisions.rows
            strides = (row_major if dense else given)(value.shape)
            storage = Storage(value.kind, value.type.size, value.dtype, name)
            self.views[value] = View(storage, 0, value.shape, strides)
        for node in graph.nodes:
            if node.operation.name == "concat" and node not in decisions.hosted:
                self._place_operands(node)

    def _place_operands(self, node: Node) -> None:
        """Have each stored operand of a concat written directly into its part of the result."""
        at, dimension = 0, node.attributes["axis"] % len(node.output.shape)
        for value in node.inputs:
            made = value in self.decisions.stored
            if made and value not in self._inside and node.inputs.count(value) == 1:
                self._inside[value] = (node.output, at)
            at += value.shape[dimension]

    # ------------------------------------------------------------------ where values are

    def is_view(self, node: Node) -> bool:
        """True if the result of `node` is a view: its operand's memory with other strides."""
        return is_view(node, self.decisions.hosted)

    def is_inside(self, value: Value, whole: Value) -> bool:
        """True if the kernel that makes `value` writes it into its part of the concat `whole`."""
        return self._inside.get(value, (None,))[0] is whole

    def view(self, value: Value) -> View:
        """Where `value` is stored; a reshape that strides cannot express is copied first."""
        if value in self.views:
            return self.views[value]
        if value.kind == "constant":
            storage = Storage("constant", value.type.size, value.dtype, data=value.data)
            found = View(storage, 0, value.shape, row_major(value.shape))
        else:
            node = value.node
            base = self.view(node.inputs[0])
            name, attributes = node.operation.name, node.attributes
            if name == "transpose":
                found = base.transpose(attributes["perm"])
            elif name == "slice":
                found = base.slice(attributes["axis"], attributes["start"], attributes["end"])
            elif name == "expand":
                found = base.expand(value.shape)
            else:
                found = base.reshape(value.shape) or self.copied(base, value)
        self.views[value] = found
        return found

    def output(self, value: Value) -> View:
        """Where an output of the program is stored. A parameter or a constant is copied first:
        outputs lie in memory that runs write."""
        view = self.view(value)
        return self.copied(view, value) if view.storage.kind in ("parameter", "constant") else view

    def pixels(self, value: Value) -> View:
        """Where the image `value` is stored channels-last; a copy if need be."""
        view = self.view(value)
        if view.strides[1] == 1 or view.shape[1] == 1:
            return view
        return self.copy(view, value, stored(view.shape))

    def dense(self, vector: Value) -> View:
        """Where a vector is stored with adjacent elements; a copy if need be."""
        view = self.view(vector)
        if view.strides[0] == 1 or view.shape[0] == 1:
            return view
        return self.copy(view, vector, (1,))

    # ------------------------------------------------------------------ new memory

    def place(self, value: Value) -> View:
        """Allocate memory for a value that is about to be computed: its part of the concat that
        reads it, or a storage of its own."""
        if value in self._inside:
            whole, at = self._inside[value]
            dimension = whole.node.attributes["axis"] % len(whole.shape)
            view = self.place_once(whole).slice(dimension, at, at + value.shape[dimension])
        else:
            storage = Storage("arena", value.type.size, value.dtype)
            view = View(storage, 0, value.shape, self._strides(value))
        self.views[value] = view
        return view

    def place_once(self, value: Value) -> View:
        """Memory for the result of a concat: the one its first operand was written into, or new."""
        return self.views[value] if value in self.views else self.place(value)

    def _strides(self, value: Value) -> tuple[int, ...]:
        """The strides of a new storage for `value`: channels-last for images, else row-major.

        Rows that only a transpose reads are stored transposed, so that what follows it reads
        adjacent elements.
        """
        rows = self.decisions.rows
        if value.dtype in (*STORED, *INTEGERS, WORD_FACTOR) and value not in rows:
            return stored(value.shape)
        users = self.decisions.users.get(value, [])
        if len(users) == 1 and users[0].operation.name == "transpose" and value in rows \
                and value not in self.decisions.outputs:
            perm = users[0].attributes["perm"]
            turned = row_major([value.shape[k] for k in perm])
            return tuple(turned[perm.index(k)] for k in range(len(perm)))
        return row_major(value.shape)

    # ------------------------------------------------------------------ copies

    def copied(self, base: View, value: Value) -> View:
        """A row-major copy of `value`, which is stored at `base`."""
        copy = self.copy(base, value, row_major(base.shape))
        return View(copy.storage, 0, value.shape, row_major(value.shape))

    def copy(self, base: View, value: Value, strides: tuple[int, ...], slack: int = 0) -> View:
        """A copy, with `strides`, of `value`, which is stored at `base`.

        `slack` unused elements follow it in memory. The same copy asked for again is not made
        again.
        """
        key = (base, strides, slack)
        if key not in self._copies:
            self._copies[key] = self._new_copy(base, value, strides, slack)
        return self._copies[key]

    def _new_copy(self, base: View, value: Value, strides: tuple[int, ...], slack: int) -> View:
        storage = Storage("arena", math.prod(base.shape) + slack, value.dtype)
        target = View(storage, 0, base.shape, strides)
        when = self.decisions.when.get(value, When.BINDING)
        if value.dtype not in (*STORED, *BYTES) or not storage.size:
            self.builder.add_host(
                "reshape", {"shape": base.shape}, {"x0": base, "out": target}, value.node,
                f"strides cannot express what reads it, and no kernel copies {value.dtype}",
                when=when)
            return target
        axes = [(f"i{k}", n) for k, n in enumerate(base.shape)]
        views = {"x0": base, "out": target}
        kernel = build.map_over(axes, Load("x0", tuple(axis(name) for name, _ in axes)),
                                [buffer_of(name, view) for name, view in views.items()])
        self.builder.add(kernel, views, value.node, "strides cannot express what reads it",
                         when=when)
        return target
