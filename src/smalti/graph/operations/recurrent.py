"""Recurrent layers: RNN, GRU (Cho et al. 2014) and LSTM (Hochreiter & Schmidhuber 1997).

Operands are those of ONNX, none left out: x [time, batch, in], w [directions, gates * h, in],
r [directions, gates * h, h], b [directions, 2 * gates * h], lengths [batch], initial states
[directions, batch, h]. After the end of a sequence that is shorter than others, results are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.graph.operation import FLOATS, REQUIRED, Type, define
from smalti.graph.operations.indexing import INDICES, reverse_sequence
from smalti.graph.operations.pointwise import sigmoid

Activation = Callable[[np.ndarray], np.ndarray]
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
ACTIVATIONS: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "relu": lambda x, a, b: np.maximum(x, 0),
    "tanh": lambda x, a, b: np.tanh(x),
    "sigmoid": lambda x, a, b: sigmoid(x),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "thresholdedrelu": lambda x, a, b: np.where(x >= a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
}
"""The activation functions, of x, alpha and beta, by name in lower case."""
ATTRIBUTES = {"direction": "forward", "activations": REQUIRED, "alphas": REQUIRED,
              "betas": REQUIRED, "clip": 0.0}


def _rule_of(name: str, gates: int, functions: int, states: int) -> Callable[..., Type]:
    def rule(types: Sequence[Type], attributes: Mapping[str, Any]) -> Type:
        x, w, r, b, lengths, *first = types
        d = DIRECTIONS.get(attributes["direction"], 0)
        given = [tuple(attributes[key]) for key in ("activations", "alphas", "betas")]
        if not d or any(len(part) != d * functions for part in given) or \
                not set(given[0]) <= set(ACTIVATIONS):
            raise InputError(f"{name}: a direction of {sorted(DIRECTIONS)} and, for each, "
                             f"{functions} of the activations {sorted(ACTIVATIONS)} are expected, "
                             f"got {attributes['direction']!r} and {given}")
        hidden = r.shape[-1] if r.shape else 0
        time, batch, width = x.shape if len(x.shape) == 3 else (0, 0, 0)
        expected = [(d, gates * hidden, width), (d, gates * hidden, hidden),
                    (d, 2 * gates * hidden), (batch,)] + [(d, batch, hidden)] * states
        found = [t.shape for t in types[1:5 + states]]
        floats = {t.dtype for t in (x, w, r, b, *first)}
        if (len(x.shape) != 3 or not hidden or found != expected or lengths.dtype not in INDICES
                or len(floats) > 1 or x.dtype not in FLOATS
                or any(t.shape != (d, 3 * hidden) for t in first[states:])):
            raise InputError(f"{name} of {x} with {[str(t) for t in types[1:]]}: "
                             f"{[list(s) for s in expected]} are expected")
        result = (time, d, batch, hidden)
        return Type((states, *result) if states > 1 else result, x.dtype)
    return rule


def _cost(types: Sequence[Type], result: Type, attributes: Mapping[str, Any]) -> int:
    steps = types[0].shape[0] * types[0].shape[1]
    return 2 * steps * (types[1].size + types[2].size) + 10 * result.size


def _layer(x: np.ndarray, lengths: np.ndarray, direction: str, first: Sequence[np.ndarray],
           step_of: Callable[[int, np.ndarray], Callable[..., tuple[np.ndarray, ...]]]
           ) -> np.ndarray:
    """The states after each step: [states, time, directions, batch, h].

    `first` are the initial states. `step_of(d, x)` gives the function that makes a step of
    direction d over the inputs x: from its number and the states before to the states after.
    """
    time, batch, _ = x.shape
    if (lengths < 0).any() or (lengths > time).any():
        raise InputError(f"lengths {lengths.min()} to {lengths.max()} of {time} steps")
    directions, _, hidden = first[0].shape
    y = np.zeros((len(first), time, directions, batch, hidden), x.dtype)
    order, least = {"batch_axis": 1, "time_axis": 0}, int(lengths.min(initial=time))
    for d in range(directions):
        backward = direction == "reverse" or d == 1
        step = step_of(d, reverse_sequence(x, lengths, **order) if backward else x)
        states = tuple(state[d] for state in first)
        for t in range(time):
            after = step(t, *states)
            if t < least:  # no sequence has ended
                states = after
                y[:, t, d] = after
                continue
            alive = (t < lengths)[:, None]
            states = tuple(np.where(alive, *both) for both in zip(after, states, strict=True))
            for found, state in zip(y, states, strict=True):
                found[t, d] = np.where(alive, state, 0)
        if backward:
            for found in y:
                found[:, d] = reverse_sequence(found[:, d], lengths, **order)
    return y


def _functions(d: int, count: int, activations: Sequence[str], alphas: Sequence[float],
               betas: Sequence[float], clip: float) -> list[Activation]:
    """The activations of direction d; operands are clipped to [-clip, clip] if clip is not 0."""
    def one(name: str, alpha: float, beta: float) -> Activation:
        def apply(x: np.ndarray) -> np.ndarray:
            bounded = np.clip(x, -clip, clip) if clip else x
            return ACTIVATIONS[name](bounded, alpha, beta).astype(x.dtype, copy=False)
        return apply
    part = slice(d * count, (d + 1) * count)
    return [one(*numbers) for numbers
            in zip(activations[part], alphas[part], betas[part], strict=True)]


def rnn(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, lengths: np.ndarray,
        h: np.ndarray, *, direction: str, **functions: Any) -> np.ndarray:
    """The states h = f(x w' + h r' + b) of a plain layer: [time, directions, batch, h]."""
    hidden = r.shape[2]

    def step_of(d: int, steps: np.ndarray) -> Callable[..., tuple[np.ndarray, ...]]:
        (f,) = _functions(d, 1, **functions)
        read = steps @ w[d].T + b[d, :hidden] + b[d, hidden:]
        return lambda t, state: (f(read[t] + state @ r[d].T),)

    return _layer(x, lengths, direction, [h], step_of)[0]


def gru(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, lengths: np.ndarray,
        h: np.ndarray, *, direction: str, linear_before_reset: int,
        **functions: Any) -> np.ndarray:
    """The states of a GRU, [time, directions, batch, h]; gates: update, reset, hidden."""
    hidden = r.shape[2]

    def step_of(d: int, steps: np.ndarray) -> Callable[..., tuple[np.ndarray, ...]]:
        f, g = _functions(d, 2, **functions)
        bias, recurrent_bias = b[d, :3 * hidden], b[d, 3 * hidden:]
        read = steps @ w[d].T + bias
        gates, candidate = np.split(r[d], [2 * hidden])

        def step(t: int, state: np.ndarray) -> tuple[np.ndarray]:
            both = f(read[t, :, :2 * hidden] + state @ gates.T + recurrent_bias[:2 * hidden])
            update, reset = both.reshape(-1, 2, hidden).swapaxes(0, 1)
            if linear_before_reset:
                past = reset * (state @ candidate.T + recurrent_bias[2 * hidden:])
            else:
                past = (reset * state) @ candidate.T + recurrent_bias[2 * hidden:]
            return ((1 - update) * g(read[t, :, 2 * hidden:] + past) + update * state,)

        return step

    return _layer(x, lengths, direction, [h], step_of)[0]


def lstm(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, lengths: np.ndarray,
         h: np.ndarray, c: np.ndarray, p: np.ndarray, *, direction: str, input_forget: int,
         **functions: Any) -> np.ndarray:
    """The hidden states and then the cell states of an LSTM, [2, time, directions, batch, h].

    Gates are in the order input, output, forget, cell; peepholes p [directions, 3 * h].
    """
    hidden = r.shape[2]

    def step_of(d: int, steps: np.ndarray) -> Callable[..., tuple[np.ndarray, ...]]:
        f, g, out = _functions(d, 3, **functions)
        read = steps @ w[d].T + b[d, :4 * hidden] + b[d, 4 * hidden:]
        peep_input, peep_output, peep_forget = np.split(p[d], 3)

        def step(t: int, state: np.ndarray, cell: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            gates = read[t] + state @ r[d].T
            i, o, forget, fresh = gates.reshape(-1, 4, hidden).swapaxes(0, 1)
            i = f(i + peep_input * cell)
            forget = 1 - i if input_forget else f(forget + peep_forget * cell)
            cell = forget * cell + i * g(fresh)
            return f(o + peep_output * cell) * out(cell), cell

        return step

    return _layer(x, lengths, direction, [h, c], step_of)


define(name="rnn", inputs=(6, 6), shape=_rule_of("rnn", 1, 1, 1), meaning=rnn, flops=_cost,
       attributes=ATTRIBUTES)
define(name="gru", inputs=(6, 6), shape=_rule_of("gru", 3, 2, 1), meaning=gru, flops=_cost,
       attributes={**ATTRIBUTES, "linear_before_reset": 0})
define(name="lstm", inputs=(8, 8), shape=_rule_of("lstm", 4, 3, 2), meaning=lstm, flops=_cost,
       attributes={**ATTRIBUTES, "input_forget": 0})
