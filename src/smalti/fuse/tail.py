"""Decides epilogues: the pointwise operations that the kernel of an anchor computes from its sums.

An anchor is an operation with a kernel of its own: a contraction, a reduction or a pooling. The
pointwise operations of its epilogue are called its tail. A tail ends, and its last value is stored,
where an operation outside of the tail needs a value of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from smalti.fuse.support import ANCHORS, CONTRACTIONS, CONVOLUTIONS, When, elementwise
from smalti.graph import Graph, Node, Value

MEETING_MAX = 8
"""A value that several operations read may be in a tail if these meet again in one operation, after
at most so many values: a guess that bounds the search."""


def grow_tails(graph: Graph, users: Mapping[Value, Sequence[Node]],
               when: Mapping[Value, When],
               hosted: Collection[Node]) -> tuple[dict[Value, Node], set[Value]]:
    """The anchor of each value that ends a tail, and the set of all values inside of tails, before
    their ends.

    `users` gives the nodes that read each value, `when` when each value is computed, which has to
    be the same for all of a tail. Nodes that numpy computes, `hosted`, are in no tail.
    """
    tails = _Tails(users, set(graph.outputs.values()), when, hosted)
    for node in graph.nodes:
        if node.operation.name in ANCHORS and node not in hosted:
            tails.grow(node)
    return tails.ends, tails.absorbed


class _Tails:
    def __init__(self, users: Mapping[Value, Sequence[Node]], outputs: AbstractSet[Value],
                 when: Mapping[Value, When], hosted: Collection[Node]) -> None:
        self.users, self.outputs, self.when = users, outputs, when
        self.hosted = hosted
        self.ends: dict[Value, Node] = {}
        self.absorbed: set[Value] = set()

    def grow(self, anchor: Node) -> None:
        """Add pointwise operations to the tail of `anchor` as long as each value has a single
        reader.

        If a value has several readers that meet again in one operation, as in max(x, x / 5), all up
        to that operation are added at once; so are slices of the channels that meet again (GEGLU).
        """
        value = anchor.output
        while value not in self.outputs:
            users = self.users.get(value, [])
            joined = self._joined(value, anchor) or self._met(value)
            if joined is not None:
                value = joined
                continue
            if (len(users) != 1 or not self._pointwise(users[0])
                    or self.when[value] != self.when[users[0].output]
                    or users[0].output.shape != value.shape
                    or users[0].inputs.count(value) != 1
                    or any(other in self.absorbed or other in self.ends
                           and self._depends(other, value) for other in users[0].inputs
                           if other is not value) or users[0].output in self.ends):
                break
            self.absorbed.add(value)
            value = users[0].output
        self.ends[value] = anchor

    def _met(self, value: Value) -> Value | None:
        """The value where all paths from the several readers of `value` meet again.

        All values before it are added to the tail. None if `value` has one reader only, or if
        something off these paths, or not pointwise, reads a value in between.
        """
        between = [value]
        while len(between) <= MEETING_MAX and len(self.users.get(value, [])) > 1:
            open_ends = [v for v in between if v in self.outputs or any(
                user.output not in between for user in self.users.get(v, []))]
            if len(open_ends) == 1 and open_ends[0] is between[-1] is not value:
                self.absorbed.update(between[:-1])
                return between[-1]
            step = next((user for v in open_ends for user in self.users.get(v, [])
                         if user.output not in between and self._continues(user, between)), None)
            if step is None:
                return None
            between.append(step.output)
        return None

    def _continues(self, node: Node, between: Sequence[Value]) -> bool:
        """True if `node` is pointwise and its operands are values of `between`, or values that do
        not depend on the first of these, so that they can be stored before."""
        value = between[0]
        return (self._pointwise(node) and node.output.shape == value.shape
                and self.when[value] == self.when[node.output] and node.output not in self.ends
                and not any(other in self.absorbed or self._depends(other, value)
                            for other in node.inputs if other not in between))

    def _joined(self, value: Value, anchor: Node) -> Value | None:
        """The value where slices of equal size that together have all channels of `value`, the
        result of a contraction, meet again, as the two halves of GEGLU do.

        All values before it are added to the tail. None if there are no such slices, if they do not
        meet, or if something else reads one of them.
        """
        users = self.users.get(value, [])
        if anchor.operation.name not in CONTRACTIONS or anchor.attributes.get("group", 1) > 1:
            return None
        channels = 1 if anchor.operation.name in CONVOLUTIONS else len(value.shape) - 1
        width, parts = value.shape[channels], len(users)
        starts = {node.attributes["start"] for node in users
                  if node.operation.name == "slice" and node not in self.hosted
                  and node.attributes["axis"] % len(value.shape) == channels
                  and node.output.shape[channels] * parts == width}
        if parts < 2 or width % parts or starts != set(range(0, width, width // parts)):
            return None
        leaves, inner = [node.output for node in users], {value}
        while len(leaves) > 1:
            step = next((self.users[leaf][0] for leaf in leaves
                         if self._joins(leaf, leaves, value)), None)
            if step is None:
                return None
            inner.update(leaf for leaf in leaves if leaf in step.inputs)
            leaves = [leaf for leaf in leaves if leaf not in step.inputs] + [step.output]
        if self.when[value] != self.when[leaves[0]]:
            return None
        self.absorbed |= inner
        return leaves[0]

    def _joins(self, leaf: Value, leaves: Sequence[Value], origin: Value) -> bool:
        """True if a single node reads `leaf`, it is pointwise, and its other operands are leaves
        that only it reads, or values that do not depend on `origin`."""
        readers = self.users.get(leaf, [])
        if len(readers) != 1 or leaf in self.outputs:
            return False
        node = readers[0]
        return (self._pointwise(node) and node.output.shape == leaf.shape
                and node.output not in self.ends and not any(
                    len(self.users[v]) > 1 or v in self.outputs if v in leaves
                    else v in self.absorbed or self._depends(v, origin) for v in node.inputs))

    def _pointwise(self, node: Node) -> bool:
        return elementwise(node) and node not in self.hosted

    def _depends(self, value: Value, on: Value) -> bool:
        """True if `value` is computed from `on`, directly or not.

        A tail that starts at `on` cannot read such a `value`: it would have to be stored before the
        tail's kernel runs, but needs the result of that kernel.
        """
        pending, seen = [value], set()
        while pending:
            v = pending.pop()
            if v is on:
                return True
            if v.node is not None and v not in seen:
                seen.add(v)
                pending.extend(v.node.inputs)
        return False
