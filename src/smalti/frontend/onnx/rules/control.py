"""Branches and loops.

If the condition of an If is known while importing, the nodes of that branch replace it. A loop with
a small known number of iterations is unrolled. Any other loop runs on the host, which runs its body
in each iteration.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.messages import GraphProto, TensorProto, ValueInfoProto, node
from smalti.frontend.onnx.registry import (
    EXPANDED,
    HostNodeCall,
    NeedsValue,
    NodeCall,
    Results,
    Unsupported,
    host,
    rule,
)
from smalti.frontend.onnx.rules.movement import joined, part
from smalti.frontend.onnx.steps import STANDARD, ScopedNode, same
from smalti.frontend.onnx.tensors import DTYPE_OF
from smalti.graph import Value
from smalti.graph.operation import DTYPES

UNROLLED_STEPS_MAX = 1024
"""The most nodes that a loop may become when it is unrolled, so that it is compiled as a whole. A
longer loop is not unrolled, because compiling it would take long."""
SCANNED_BYTES_MAX = 1 << 33
"""The most bytes of the results that a loop may stack up over its iterations, 8 GiB: stops loops
without end before memory is full."""
OWN = "smalti.import"


@rule("If")
def branch(call: NodeCall) -> Results:
    condition = call.known(0)
    if condition.size != 1:
        raise InputError(f"the condition is {call[0].type}")
    body = call.graph("then_branch" if condition.reshape(())[()] else "else_branch")
    steps, results = call.importer.body(call.step, body, ())
    call.importer.take_next(steps + aliases(call, results))
    return EXPANDED


def aliases(call: NodeCall, results: list[str]) -> list[ScopedNode]:
    """Steps that give the values `results` of a body the names of the node's results."""
    makes = call.step.makes
    if len(results) < len(makes):
        raise InputError(f"its body gives {len(results)} results, {len(makes)} are expected")
    return [same(source, key) for source, key in zip(results, makes) if key]


@rule("Loop")
def loop(call: NodeCall) -> Results:
    body = call.graph("body")
    if call.optional(0) is None or not goes_on(body):
        raise NeedsValue
    times = max(0, int(call.known(0).reshape(-1)[0]))
    if not bool(np.all(call.known_or(1, True))):
        times = 0
    carried = list(call.step.reads[2:])
    count = len(carried)
    if times == 0 and len(body.output) > 1 + count \
            or times * max(1, len(body.node)) > UNROLLED_STEPS_MAX:
        raise NeedsValue
    steps: list[ScopedNode] = []
    scanned: list[list[str]] = [[] for _ in body.output[1 + count:]]
    for i in range(times):
        given = [number(call, f"{i}", np.array(i, np.int64)), number(call, "on", np.array(True))]
        more, (_, *results) = call.importer.body(call.step, body, (*given, *carried))
        steps += more
        carried = results[:count]
        for places, key in zip(scanned, results[count:]):
            places.append(key)
    stacked = [stack(call, places, i) for i, places in enumerate(scanned)]
    keys = carried + [step.makes[0] for step in stacked]
    call.importer.take_next(steps + stacked + aliases(call, keys))
    return EXPANDED


def number(call: NodeCall, name: str, array: np.ndarray) -> str:
    """Add a constant to the importer's values, and return its key."""
    key = f"{call.step.name}#{name}"
    call.importer.values[key] = call.constant(array)
    return key


def goes_on(body: GraphProto) -> bool:
    """True if the condition that the body of a loop returns is the one it was given, or always
    true, so that the number of iterations alone decides."""
    if not body.output or len(body.input) < 2:
        raise InputError("the body of a loop takes a number and a condition, and gives one")
    made = {name: node for node in body.node for name in node.output}
    name = body.output[0].name
    while name in made and made[name].op_type in ("Identity", "Cast") and made[name].input:
        name = made[name].input[0]
    if name == body.input[1].name:
        return True
    tensors = [t for t in body.initializer if t.name == name]
    if name in made and made[name].op_type == "Constant":
        tensors = [a.t for a in made[name].attribute if a.name == "value"]
    return len(tensors) == 1 and tensors[0].data_type == TensorProto.BOOL \
        and bool(tensors[0].raw_data.strip(b"\0") or any(tensors[0].int32_data))


def stack(call: NodeCall, keys: list[str], i: int, axis: int = 0) -> ScopedNode:
    """A step that stacks values along a new axis."""
    made = node("Stack", ["x"], ["y"], f"{call.step.name}#{i}", OWN, axis=axis)
    return ScopedNode(made, STANDARD, tuple(keys), (f"{keys[0]}#stacked{i}",))


def row(call: NodeCall, key: str, i: int, axis: int) -> ScopedNode:
    """A step that takes element `i` along an axis."""
    made = node("Row", ["x"], ["y"], f"{call.step.name}#{i}", OWN, axis=axis, at=i)
    return ScopedNode(made, STANDARD, (key,), (f"{key}#{call.step.name}#{axis}#{i}",))


@rule("Stack", domain=OWN)
def stacked(call: NodeCall) -> Value:
    values = [call[i] for i in range(len(call.operands))]
    rank = len(values[0].shape) + 1
    axis = call.integer("axis")
    if not -rank <= axis < rank:
        raise InputError(f"axis {axis} does not exist")
    axis %= rank
    return joined(call, [v.reshape(*v.shape[:axis], 1, *v.shape[axis:]) for v in values], axis)


@rule("Row", domain=OWN)
def taken_row(call: NodeCall) -> Value:
    x, i = call[0], call.integer("at")
    axis = call.axis(x, call.integer("axis"))
    found = part(call, x, axis, i, i + 1)
    return found.reshape(*x.shape[:axis], *x.shape[axis + 1:])


def scan_plan(call: NodeCall | HostNodeCall, body: GraphProto) -> tuple:
    """How a Scan works: the numbers of its states and of its scanned operands, then axes and
    directions of operands and results."""
    if call.version < 9:
        raise Unsupported("version 8 has a batch and lengths")
    rows = call.integer("num_scan_inputs")
    states = len(call.operands) - rows
    piled = len(body.output) - states
    if rows < 1 or states < 0 or piled < 0:
        raise InputError(f"{rows} of {len(call.operands)} operands are scanned")
    plan = [call.integers(f"scan_{side}_{what}", (0,) * count) for what in ("axes", "directions")
            for side, count in (("input", rows), ("output", piled))]
    if any(len(found) != count for found, count in zip(plan, (rows, piled, rows, piled))):
        raise InputError("axes and directions do not fit the operands and results")
    return (states, rows, *plan)


@rule("Scan")
def scan(call: NodeCall) -> Results:
    body = call.graph("body")
    states, rows, axes, places, directions, ways = scan_plan(call, body)
    values = [call[states + i] for i in range(rows)]
    lengths = {v.shape[call.axis(v, axis)] for v, axis in zip(values, axes)}
    if len(lengths) != 1:
        raise InputError(f"the scanned operands are of lengths {sorted(lengths)}")
    times = lengths.pop()
    if times == 0 or times * max(1, len(body.node)) > UNROLLED_STEPS_MAX:
        raise NeedsValue
    carried, steps = list(call.step.reads[:states]), []
    piles: list[list[str]] = [[] for _ in places]
    for i in range(times):
        taken = [row(call, key, times - 1 - i if back else i, axis) for key, axis, back in
                 zip(call.step.reads[states:], axes, directions)]
        more, results = call.importer.body(
            call.step, body, (*carried, *(step.makes[0] for step in taken)))
        steps += taken + more
        carried = results[:states]
        for pile, key in zip(piles, results[states:]):
            pile.append(key)
    stacks = [stack(call, pile[::-1] if back else pile, i, axis)
              for i, (pile, axis, back) in enumerate(zip(piles, places, ways))]
    keys = carried + [step.makes[0] for step in stacks]
    call.importer.take_next(steps + stacks + aliases(call, keys))
    return EXPANDED


class Piles:
    """Collects the results of the iterations of a loop that are to be stacked."""

    def __init__(self, call: HostNodeCall, values: list[ValueInfoProto]) -> None:
        self.call, self.values = call, values
        self.arrays: list[list[np.ndarray]] = [[] for _ in values]
        self.bytes = 0

    def add(self, results: list[Any]) -> None:
        """Add the results of an iteration. Raises InputError if all exceed `SCANNED_BYTES_MAX`."""
        for pile, array in zip(self.arrays, results, strict=True):
            pile.append(np.asarray(array))
            self.bytes += pile[-1].nbytes
        if self.bytes > SCANNED_BYTES_MAX:
            raise InputError(f"the results of its turns take more than {SCANNED_BYTES_MAX} bytes")

    def stacked(self, i: int, axis: int = 0, back: int = 0) -> np.ndarray:
        """Result `i` of all iterations, stacked along a new axis; in reverse order if `back`."""
        if self.arrays[i]:
            return np.stack(self.arrays[i][::-1] if back else self.arrays[i], axis)
        tensor = self.values[i].type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        shape.insert(axis, 0)
        return np.zeros(shape, DTYPES[DTYPE_OF.get(tensor.elem_type, "f32")])


@host("Loop")
def run_loop(call: HostNodeCall) -> list[Any]:
    body = call.graph("body")
    most, on = call.optional(0), call.optional(1)
    times = None if most is None else int(np.asarray(most).reshape(-1)[0])
    going = on is None or bool(np.all(on))
    carried = list(call.operands[2:])
    piles, i = Piles(call, list(body.output[1 + len(carried):])), 0
    while going and (times is None or i < times):
        going, *results = call.body("body", [np.array(i, np.int64), np.array(True), *carried])
        going = bool(np.all(going))
        carried, more = results[:len(carried)], results[len(carried):]
        piles.add(more)
        i += 1
    return carried + [piles.stacked(k) for k in range(len(piles.arrays))]


@host("Scan")
def run_scan(call: HostNodeCall) -> list[Any]:
    body = call.graph("body")
    states, rows, axes, places, directions, ways = scan_plan(call, body)
    carried = list(call.operands[:states])
    scanned = [np.moveaxis(array, axis, 0)[::-1 if back else 1] for array, axis, back in
               zip(call.operands[states:], axes, directions)]
    lengths = {len(array) for array in scanned}
    if len(lengths) != 1:
        raise InputError(f"the scanned operands are of lengths {sorted(lengths)}")
    piles = Piles(call, list(body.output[states:]))
    for i in range(lengths.pop()):
        results = call.body("body", [*carried, *(array[i] for array in scanned)])
        carried = results[:states]
        piles.add(results[states:])
    return carried + [piles.stacked(k, axis, back)
                      for k, (axis, back) in enumerate(zip(places, ways))]
