"""Unrolls recurrent layers (RNN, GRU, LSTM) over short sequences: each time step becomes a matrix
product and pointwise operations.

The products with the inputs do not depend on the state, so one matrix product computes them for all
steps. The states are operands of one concat, so that each step writes its state into its place:

    read[t, b, gates * h] = x w' + b
    state[t] = cell(read[t] + state[t - 1] r')      in the order of the direction
    y = concat(state[0], state[1], ..., axis=0)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from smalti.graph import Graph, Node, Value
from smalti.graph.operations.recurrent import DIRECTIONS

STEPS_MAX = 256
"""The most steps, of both directions, to unroll: each takes milliseconds to compile."""

Activation = Callable[[Value], Value]
States = tuple[Value, ...]


def unrolled(g: Graph, node: Node, *operands: Value) -> Value | None:
    """The results of an rnn, gru or lstm node, unrolled; None if it has more than `STEPS_MAX`
    steps, its sequences differ in length, or it is not f32 or has an activation not in
    `ACTIVATIONS`."""
    x, _, _, _, lengths, *_ = operands
    time, whole = x.shape[0], node.output.shape
    full = lengths.kind == "constant" and bool((lengths.data == time).all())
    layer = _Layer(g, node, operands)
    count = DIRECTIONS[node.attributes["direction"]]
    if not full or not layer.known or not 0 < time * count <= STEPS_MAX or x.dtype != "f32":
        return None
    directions = [layer.direction(d) for d in range(count)]
    states = [g.apply("concat", *(part.reshape(time, 1, *part.shape[1:]) for part in parts), axis=1)
              for parts in zip(*directions, strict=True)]
    if node.operation.name != "lstm":
        return states[0]
    return g.apply("concat", *(state.reshape(1, *whole[1:]) for state in states), axis=0)


class _Layer:
    def __init__(self, g: Graph, node: Node, operands: Sequence[Value]) -> None:
        self.g, self.attributes, self.name = g, node.attributes, node.operation.name
        self.x, self.w, self.r, self.b, _, *self.first = operands
        self.hidden = self.r.shape[2]

    @property
    def known(self) -> bool:
        """True if all activations are in `ACTIVATIONS`."""
        return set(self.attributes["activations"]) <= set(ACTIVATIONS)

    def part(self, x: Value, axis: int, start: int, end: int) -> Value:
        return self.g.apply("slice", x, axis=axis, start=start, end=end)

    def direction(self, d: int) -> list[Value]:
        """Hidden (and, of an lstm, cell) states after each step of direction d, [time, b, h]."""
        g, time = self.g, self.x.shape[0]
        w, r, b = (self.part(v, 0, d, d + 1).reshape(*v.shape[1:])
                   for v in (self.w, self.r, self.b))
        gates = w.shape[0]
        bias, behind = self.part(b, 0, 0, gates), self.part(b, 0, gates, 2 * gates)
        if self.name != "gru":  # a gru adds the second bias in its steps
            bias = bias + behind
        read = g.apply("mat_mul", self.x, w.transpose(1, 0)) + bias
        cell = {"rnn": self.rnn, "gru": self.gru, "lstm": self.lstm}[self.name](
            d, r.transpose(1, 0), behind)
        states = tuple(self.part(v, 0, d, d + 1)
                       for v in self.first[:2 if self.name == "lstm" else 1])
        backward = self.attributes["direction"] == "reverse" or d == 1
        found: list[States] = []
        for t in reversed(range(time)) if backward else range(time):
            states = cell(self.part(read, 0, t, t + 1), *states)
            found.append(states)
        ordered = found[::-1] if backward else found
        return [g.apply("concat", *steps, axis=0) for steps in zip(*ordered, strict=True)]

    def activations(self, d: int) -> list[Activation]:
        """The activation functions of direction d, one for each gate in ONNX's order."""
        a = self.attributes
        count = len(a["activations"]) // DIRECTIONS[a["direction"]]

        def one(name: str, alpha: float, beta: float) -> Activation:
            def apply(x: Value) -> Value:
                if a["clip"]:
                    x = self.within(x, -a["clip"], a["clip"])
                return ACTIVATIONS[name](self, x, alpha, beta)
            return apply

        part = slice(d * count, (d + 1) * count)
        numbers = [a[name][part] for name in ("activations", "alphas", "betas")]
        return [one(*each) for each in zip(*numbers, strict=True)]

    def within(self, x: Value, low: float, high: float) -> Value:
        """x bounded to [low, high]."""
        return self.g.apply("max", self.g.apply("min", x, self.g.constant(high)),
                            self.g.constant(low))

    def gates(self, x: Value, count: int) -> list[Value]:
        """`x` [..., count * h] split along its last axis into `count` gates."""
        return [self.part(x, 2, k * self.hidden, (k + 1) * self.hidden) for k in range(count)]

    # ------------------------------------------------------------------ one step

    def rnn(self, d: int, r: Value, behind: Value) -> Callable[..., States]:
        (f,) = self.activations(d)
        return lambda read, state: (f(self.g.apply("mat_mul", state, r) + read),)

    def gru(self, d: int, r: Value, behind: Value) -> Callable[..., States]:
        f, tanh, h = *self.activations(d), self.hidden
        near, far = self.part(r, 1, 0, 2 * h), self.part(r, 1, 2 * h, 3 * h)

        def step(read: Value, state: Value) -> States:
            product = functools.partial(self.g.apply, "mat_mul")
            if self.attributes["linear_before_reset"]:
                update, reset, past = self.gates(product(state, r) + behind, 3)
            else:
                update, reset = self.gates(product(state, near) + self.part(behind, 0, 0, 2 * h), 2)
            read_update, read_reset, read_fresh = self.gates(read, 3)
            update, reset = f(read_update + update), f(read_reset + reset)
            if self.attributes["linear_before_reset"]:
                past = reset * past
            else:
                past = product(reset * state, far) + self.part(behind, 0, 2 * h, 3 * h)
            fresh = tanh(read_fresh + past)
            return ((1.0 - update) * fresh + update * state,)

        return step

    def lstm(self, d: int, r: Value, behind: Value) -> Callable[..., States]:
        f, tanh, out = self.activations(d)
        p, h = self.part(self.first[2], 0, d, d + 1).reshape(3 * self.hidden), self.hidden
        peeps = [self.part(p, 0, k * h, (k + 1) * h) for k in range(3)]
        if self.first[2].kind == "constant" and not self.first[2].data.any():
            peeps = []

        def step(read: Value, state: Value, cell: Value) -> States:
            i, o, forget, fresh = self.gates(self.g.apply("mat_mul", state, r) + read, 4)
            if peeps:
                i, forget = i + peeps[0] * cell, forget + peeps[2] * cell
            i = f(i)
            forget = 1.0 - i if self.attributes["input_forget"] else f(forget)
            cell = forget * cell + i * tanh(fresh)
            return f(o + peeps[1] * cell if peeps else o) * out(cell), cell

        return step


ACTIVATIONS: dict[str, Callable[[_Layer, Value, float, float], Value]] = {
    "relu": lambda layer, x, a, b: layer.g.apply("relu", x),
    "tanh": lambda layer, x, a, b: layer.g.apply("tanh", x),
    "sigmoid": lambda layer, x, a, b: layer.g.apply("sigmoid", x),
    "affine": lambda layer, x, a, b: x * a + b,
    "hardsigmoid": lambda layer, x, a, b: layer.within(x * a + b, 0.0, 1.0),
    "softsign": lambda layer, x, a, b: x / (layer.g.apply("abs", x) + 1.0),
}
"""The activations that can be written with operations; each takes ONNX's alpha and beta."""
