"""Decides which values of a graph are stored; all others are computed where they are read.

A value that is not stored costs its arithmetic in each kernel that reads it; one that is stored
costs a write to memory and reads from it. Every value is computed where it is read unless

* it has a kernel of its own (attention, concat, rotary embedding), or numpy computes it;
* it ends the epilogue of an anchor (a contraction, a reduction, a pooling: `tail.py`);
* it is an output of the program;
* a consumer runs more often than the producer;
* it is bytes or words for a product of integers, which reads them where they lie;
* some consumer cannot compute it, or too many kernels would (`READS_MAX`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from smalti.dataclass import dataclass
from smalti.fuse.layout import row_values
from smalti.fuse.support import (
    ANCHORS,
    BYTES,
    CONTRACTIONS,
    CONVOLUTIONS,
    INTEGER_PRODUCTS,
    NORMALIZATIONS,
    POOLS,
    ROUNDED_PRODUCTS,
    VIEWS,
    WORDS,
    When,
    elementwise,
    lacking,
    only_ones,
    whens,
)
from smalti.fuse.tail import grow_tails
from smalti.graph import OPERATIONS, Graph, Node, Value
from smalti.graph.operations.contraction import WORD_FACTOR

READS_MAX = 4
"""If more kernels than this read a pointwise result, it is stored instead of being computed by
each: a rule of thumb. Where a timing model is available, `tune/partitions.py` decides by its
predictions."""
GATHER_READS_MAX = 1
"""The same for rows looked up in a table: a second look-up costs about as much as a copy."""
STORED_FORMS = ("attention", "concat", "rotary_embedding")
"""Operations with a kernel of their own, without an epilogue: their results are always stored."""


@dataclass(frozen=True)
class Decisions:
    """What is decided about the values of a graph before any kernel is made.

    * `users`: the nodes that read each value;
    * `when`: when each value is computed;
    * `rows`: the values of four axes that are rows, not images (`layout.py`);
    * `hosted`: the nodes that numpy computes, each with the reason;
    * `stored`: the values that get memory of their own;
    * `tails`: the anchor of each value that ends an epilogue;
    * `open`: the values for which storing and computing again are both possible, so that it is a
      matter of cost alone;
    * `outputs`: the outputs of the graph.
    """

    users: Mapping[Value, Sequence[Node]]
    when: Mapping[Value, When]
    rows: Collection[Value]
    hosted: Mapping[Node, str]
    stored: Collection[Value]
    tails: Mapping[Value, Node]
    open: Sequence[Value]
    outputs: Collection[Value]

    def reason(self, value: Value) -> str:
        """Why `value` is stored, as text for `explain`."""
        readers = self.users.get(value, [])
        if value in self.outputs:
            return "an output of the program"
        if len(readers) > 1:
            return f"{len(readers)} operations read it"
        name = readers[0].operation.name if readers else "nothing"
        if name in VIEWS and readers[0].output in self.users:
            name = f"{self.users[readers[0].output][0].operation.name} (through a {name})"
        return f"{name} reads it in an order of its own"


def is_view(node: Node, hosted: Collection[Node]) -> bool:
    """True if the result of `node` is a view: its operand's memory with other strides."""
    return node.operation.name in VIEWS and node not in hosted


def decide(graph: Graph, held: Collection[str] = (), functions: Collection[str] | None = None,
           otherwise: Collection[Value] = ()) -> Decisions:
    """The decisions for `graph`; the arguments are those of `partition`.

    >>> g = Graph()
    >>> x = g.input("x", (4,))
    >>> y = g.output("y", (x + x) * x)
    >>> [value.node.operation.name for value in decide(g).stored]
    ['mul']
    """
    if functions is None:
        functions = INTEGER_PRODUCTS | {WORDS} | {
            name for name, operation in OPERATIONS.items() if operation.pointwise}
    hosted = {node: why for node in graph.nodes if (why := lacking(node, functions))}
    users, when = graph.users(), whens(graph, held)
    tails, absorbed = grow_tails(graph, users, when, hosted)
    deciding = _Deciding(graph, users, when, hosted, tails, absorbed, otherwise)
    for node in reversed(graph.nodes):
        deciding.decide(node)
    return Decisions(users, when, row_values(graph), hosted, deciding.stored, tails, deciding.open,
                     deciding.outputs)


class _Deciding:
    """Decides which values are stored, from the end of a graph: consumers before what they read."""

    def __init__(self, graph: Graph, users: Mapping[Value, Sequence[Node]],
                 when: Mapping[Value, When], hosted: Collection[Node],
                 tails: Mapping[Value, Node], absorbed: Collection[Value],
                 otherwise: Collection[Value]) -> None:
        self.users, self.when, self.hosted = users, when, hosted
        self.tails, self.absorbed, self.otherwise = tails, absorbed, otherwise
        self.outputs = set(graph.outputs.values())
        self.stored: set[Value] = set()
        self.open: list[Value] = []

    def decide(self, node: Node) -> None:
        """Decide whether the result of `node` is stored, and note it."""
        value = node.output
        if node in self.hosted or value not in self.absorbed and (
                node.operation.name not in VIEWS and self._is_stored(node)):
            self.stored.add(value)

    def _is_stored(self, node: Node) -> bool:
        """True if the result of `node`, no view and inside of no epilogue, has to be stored."""
        value, name = node.output, node.operation.name
        if value in self.tails or name in STORED_FORMS or value in self.outputs:
            return True
        if self._read_more_often(value, self.when[value]):
            return True
        if value.dtype in (*BYTES, WORD_FACTOR) and any(user.operation.name in ROUNDED_PRODUCTS
                                        for user in self.users[value]):
            return True
        reads = self._reads(value)
        store = reads is None or reads > (GATHER_READS_MAX if name == "gather" else READS_MAX)
        if reads and self._is_open(node):
            self.open.append(value)
            store ^= value in self.otherwise
        if not store and name in ("gather", "resize"):
            scales = node.attributes.get("scales", (2,) * (len(value.shape) - 1) + (1,))
            moved = {i - len(scales) for i, scale in enumerate(scales) if scale != 1}
            store = not self._computable_by_readers(value, moved)
        return store

    def _is_open(self, node: Node) -> bool:
        """True if storing the result of `node` is a matter of cost.

        In a chain of pointwise operations that is asked for the last one only: storing an earlier
        result saves less.
        """
        last = any(not elementwise(user) or user.output in self.stored
                   or user.output in self.absorbed
                   for user in self.users[node.output])
        return last and self.when[node.output] == When.RUN and (
            node.operation.pointwise or node.operation.name in NORMALIZATIONS)

    def _read_more_often(self, value: Value, when: When) -> bool:
        """True if a consumer runs more often than the producer, which runs at `when`, so the value
        must be stored."""
        return when < When.RUN and any(
            self.when[user.output] > when
            or is_view(user, self.hosted) and self._read_more_often(user.output, when)
            for user in self.users.get(value, []))

    def _computable_by_readers(self, value: Value, moved: Collection[int]) -> bool:
        """True if all consumers of `value`, the result of a resize or gather, can compute it.

        They have to divide its index, or look it up, along the axes `moved` (-1 is the last). An
        epilogue cannot do that, and neither can a contraction along its channels.
        """
        for user in self.users.get(value, []):
            name = user.operation.name
            if user.output in self.absorbed or user.output in self.tails:
                grouped = user.attributes.get("group", 1) != 1
                channels = -3 if name in CONVOLUTIONS else -1
                if name not in CONTRACTIONS or grouped or channels in moved:
                    return False
            elif user.output not in self.stored and (
                    name in VIEWS or not self._computable_by_readers(user.output, moved)):
                return False
        return True

    def _reads(self, value: Value) -> int | None:
        """How many kernels would compute `value` if it is not stored; None if one cannot."""
        if value in self.outputs:
            return None
        total = 0
        for user in self.users.get(value, []):
            reads = self._reads_of(value, user)
            if reads is None:
                return None
            total += reads
        return total

    def _reads_of(self, value: Value, user: Node) -> int | None:
        """How many kernels would compute `value` for `user`; None if one of them cannot."""
        name = user.operation.name
        if user in self.hosted or value in user.inputs[1:] and name in ANCHORS:
            return None
        if name in ANCHORS and user.inputs[0] is value:
            gathered = value.node is not None and value.node.operation.name == "gather"
            grouped = user.attributes.get("group", 1) != 1
            return None if gathered or name in POOLS or grouped else 1
        if name in VIEWS or name == "resize":
            if user.output in self.stored:
                return 1
            if name == "reshape" and not only_ones(value.shape, user.output.shape) \
                    and not self._joins_heads(user):
                return None
            return self._reads(user.output)
        if elementwise(user):
            if user.output in self.stored or user.output in self.absorbed \
                    or user.output in self.tails:
                return 1 if len(self.users[value]) == 1 else None
            return self._reads(user.output)
        return 1 if name == "rotary_embedding" and user.inputs.count(value) == 1 else None

    def _joins_heads(self, node: Node) -> bool:
        """True if `node` reshapes [n, t, h, d] to [n, t, h * d] and only rotary embeddings of heads
        of d channels read that: their kernels have an axis for heads and one for channels."""
        old, new = node.inputs[0].shape, node.output.shape
        users = self.users.get(node.output, [])
        return len(old) == 4 and new == (*old[:2], old[2] * old[3]) and node.output not in \
            self.outputs and all(user.operation.name == "rotary_embedding"
                                 and user.inputs[0] is node.output
                                 and user.attributes["num_heads"] == old[2] for user in users)
