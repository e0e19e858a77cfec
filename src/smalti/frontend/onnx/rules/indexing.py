"""Operators that gather and scatter elements, and those about order along an axis."""

from __future__ import annotations

import math

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.frontend.onnx.rules.movement import part
from smalti.graph import Value


@rule("GatherElements")
def gather_elements(call: NodeCall) -> Value:
    return call.apply("gather_elements", call[0], call[1], axis=call.integer("axis", 0))


@rule("GatherND")
def gather_nd(call: NodeCall) -> Value:
    return call.apply("gather_nd", call[0], call[1], batch_dims=call.integer("batch_dims", 0))


@rule("ScatterElements", "Scatter")
def scatter_elements(call: NodeCall) -> Value:
    return call.apply("scatter_elements", call[0], call[1], call[2], axis=call.integer("axis", 0),
                      reduction=call.text("reduction", "none"))


@rule("ScatterND")
def scatter_nd(call: NodeCall) -> Value:
    return call.apply("scatter_nd", call[0], call[1], call[2],
                      reduction=call.text("reduction", "none"))


@rule("TensorScatter")
def tensor_scatter(call: NodeCall) -> Value:
    """Write rows into a cache [batch, …, rows, …], from row `start[b]` of each batch b on."""
    cache, update, start = call[0], call[1], call.optional(2)
    axis, mode = call.axis(cache, call.integer("axis", -2)), call.text("mode", "linear")
    if len(update.shape) != len(cache.shape) or axis == 0 or mode not in ("linear", "circular"):
        raise InputError(f"{update.type} in place of rows of {cache.type} along axis {axis}, "
                         f"{mode!r}")
    rows, fresh, rank = cache.shape[axis], update.shape[axis], len(cache.shape)
    along = call.constant(call.counted(rows).reshape(rows, *(1,) * (rank - 1 - axis)), "i64")
    if start is not None:
        start = call.apply("cast", start, to="i64") if start.dtype != "i64" else start
        along = along - start.reshape(start.shape[0], *(1,) * (rank - 1))
        if mode == "circular":
            along = call.apply("mod", along, call.constant(rows, "i64"))
    last = call.constant(fresh - 1, "i64")
    inside = call.apply("and", call.apply("greater_or_equal", along, call.constant(0, "i64")),
                        call.apply("less_or_equal", along, last))
    places = call.apply("max", call.apply("min", along, last), call.constant(0, "i64"))
    places = call.apply("expand", places, shape=cache.shape)
    return call.apply("where", inside, call.apply("gather_elements", update, places, axis=axis),
                      cache)


@rule("ReverseSequence")
def reverse_sequence(call: NodeCall) -> Value:
    return call.apply("reverse_sequence", call[0], call[1], batch_axis=call.integer("batch_axis"),
                      time_axis=call.integer("time_axis"))


def counted(call: NodeCall, count: int, behind: int) -> Value:
    """0, 1, …, count - 1 along an axis that is followed by `behind` axes of extent 1."""
    return call.constant(call.counted(count).reshape(count, *(1,) * behind), "i64")


@rule("OneHot")
def one_hot(call: NodeCall) -> Value:
    indices, values = call[0], call[2]
    depth = call.known_integers(1)
    rank, axis = len(indices.shape) + 1, call.integer("axis")
    if values.shape != (2,) or len(depth) != 1 or depth[0] < 0 or not -rank <= axis < rank:
        raise InputError(f"{indices.type} of {depth} places along axis {axis}, off and on "
                         f"{values.type}")
    axis %= rank
    places = indices if indices.dtype == "i64" else call.apply("cast", indices, to="i64")
    places = places.reshape(*places.shape[:axis], 1, *places.shape[axis:])
    count = call.constant(depth[0], "i64")
    behind = call.apply("less", places, call.constant(0, "i64"))
    places = call.apply("where", behind, places + count, places)
    off, on = (part(call, values, 0, i, i + 1).reshape() for i in range(2))
    hit = call.apply("equal", places, counted(call, depth[0], rank - 1 - axis))
    return call.apply("where", hit, on, off)


@rule("ArgMax", "ArgMin")
def extreme(call: NodeCall) -> Value:
    return call.apply("arg_max" if call.operator == "ArgMax" else "arg_min", call[0],
                      axis=call.integer("axis"), keepdims=call.integer("keepdims"),
                      select_last_index=call.integer("select_last_index", 0))


@rule("Hardmax", since=13)
def hardmax(call: NodeCall) -> Value:
    return first_best(call, call[0], call.axis(call[0], call.integer("axis")))


@rule("Hardmax")
def flat_hardmax(call: NodeCall) -> Value:
    """Before version 13, Hardmax is over all axes from `axis` on together."""
    x = call[0]
    axis = call.axis(x, call.integer("axis", 1))
    flat = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    return first_best(call, flat, 1).reshape(*x.shape)


def first_best(call: NodeCall, x: Value, axis: int) -> Value:
    """1 at the first of the largest elements along `axis`, 0 elsewhere."""
    best = call.apply("arg_max", x, axis=axis, keepdims=1)
    hit = call.apply("equal", best, counted(call, x.shape[axis], len(x.shape) - 1 - axis))
    return call.apply("cast", hit, to=x.dtype)


@rule("TopK")
def top_k(call: NodeCall) -> list[Value]:
    x = call[0]
    k = call.integer("k") if "k" in call else call.known_integer(1)
    axis = call.axis(x, call.integer("axis"))
    places = call.apply("top_k_indices", x, axis=axis, k=k, largest=call.integer("largest", 1))
    return [call.apply("gather_elements", x, places, axis=axis), places]


@rule("CumSum", "CumProd")
def running(call: NodeCall) -> Value:
    axis = call.known_integer(1)
    return call.apply("cum_sum" if call.operator == "CumSum" else "cum_prod", call[0], axis=axis,
                      exclusive=call.integer("exclusive"), reverse=call.integer("reverse"))
