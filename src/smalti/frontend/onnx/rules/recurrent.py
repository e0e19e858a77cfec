"""Recurrent layers."""

from __future__ import annotations

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.frontend.onnx.rules.movement import part
from smalti.graph import Value
from smalti.graph.operations.recurrent import DIRECTIONS

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
USUAL = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
ALPHAS = {"leakyrelu": 0.01, "thresholdedrelu": 1.0, "hardsigmoid": 0.2, "elu": 1.0,
          "affine": 1.0, "scaledtanh": 1.0}
BETAS = {"hardsigmoid": 0.5, "affine": 0.0, "scaledtanh": 1.0}


def activations(call: NodeCall) -> dict[str, tuple]:
    """The attributes "activations", "alphas" and "betas", with an entry for each function.

    As in the standard, the numbers given are handed out in order to the functions that take one.
    """
    usual = USUAL[call.operator] * DIRECTIONS.get(call.text("direction"), 1)
    names = tuple(name.lower() for name in call.texts("activations", usual))
    if len(names) > len(usual):  # the default of RNN is for two directions
        names = names[:len(usual)]
    fields: dict[str, tuple] = {"activations": names}
    for name, attribute, defaults in (("alphas", "activation_alpha", ALPHAS),
                                      ("betas", "activation_beta", BETAS)):
        given = iter(call.numbers(attribute, ()))
        fields[name] = tuple(next(given, defaults[f]) if f in defaults else 0.0 for f in names)
    return fields


@rule("RNN", "GRU", "LSTM")
def layer(call: NodeCall) -> list[Value | None]:
    x, w, r, cells = call[0], call[1], call[2], call.operator == "LSTM"
    if len(x.shape) != 3 or len(r.shape) != 3 or r.shape[1] != GATES[call.operator] * r.shape[2]:
        raise InputError(f"{x.type} with recurrent weights {r.type}")
    d, hidden, batch_first = r.shape[0], r.shape[2], bool(call.integer("layout", 0))
    if call.integer("hidden_size", hidden) != hidden:
        raise InputError(f"hidden_size {call.integer('hidden_size')} with weights {r.type}")
    x = x.transpose(1, 0, 2) if batch_first else x
    time, batch, _ = x.shape

    def operand(i: int, *shape: int, turned: bool = False) -> Value:
        given = call.optional(i)
        if given is None:
            return call.filled(shape, 0, x.dtype)
        return given.transpose(1, 0, 2) if turned and len(given.shape) == 3 else given

    lengths = call.optional(4)
    whole = lengths is None
    operands = [x, w, r, operand(3, d, 2 * GATES[call.operator] * hidden),
                call.filled((batch,), time, "i32") if lengths is None else lengths,
                operand(5, d, batch, hidden, turned=batch_first)]
    if cells:
        operands += [operand(6, d, batch, hidden, turned=batch_first), operand(7, d, 3 * hidden)]
    extra = {"GRU": "linear_before_reset", "LSTM": "input_forget"}.get(call.operator)
    fields = {extra: call.integer(extra, 0)} if extra else {}
    found = call.apply(call.operator.lower(), *operands, direction=call.text("direction"),
                       clip=call.number("clip", 0.0), **activations(call), **fields)
    states = [found]
    if cells:
        states = [part(call, found, 0, i, i + 1).reshape(time, d, batch, hidden)
                  for i in range(2)]
    last = [last_state(call, state, None if whole else lengths) for state in states]
    y = states[0]
    if batch_first:
        y, last = y.transpose(2, 0, 1, 3), [state.transpose(1, 0, 2) for state in last]
    return [y, *last]


def last_state(call: NodeCall, states: Value, lengths: Value | None) -> Value:
    """The state after the last step of each sequence: states [time, directions, batch, h] ->
    [directions, batch, h]."""
    time, d, batch, hidden = states.shape
    first = part(call, states, 0, 0, 1).reshape(d, batch, hidden)
    if call.text("direction") == "reverse":
        return first
    if lengths is None:
        final = part(call, states, 0, time - 1, time)
    else:
        steps = call.apply("cast", lengths, to="i64").reshape(batch, 1)
        places = call.apply("max", steps - call.constant(1, "i64"), call.constant(0, "i64"))
        places = call.apply("expand", places, shape=(1, d, batch, hidden))
        final = call.apply("gather_elements", states, places, axis=0)
    final = final.reshape(d, batch, hidden)
    if d == 1:
        return final
    return call.apply("concat", part(call, final, 0, 0, 1), part(call, first, 0, 1, 2), axis=0)
