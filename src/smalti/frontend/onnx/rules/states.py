"""Layers that carry a state from token to token: causal convolution, linear attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.messages import GraphProto, ValueInfoProto, node
from smalti.frontend.onnx.registry import EXPANDED, NodeCall, Results, rule
from smalti.frontend.onnx.rules.attention import cast
from smalti.frontend.onnx.rules.movement import joined, part
from smalti.frontend.onnx.steps import STANDARD, ScopedNode
from smalti.frontend.onnx.tensors import ELEMENT_OF
from smalti.graph import Value

UPDATES = {"linear": (False, False), "gated": (True, False), "delta": (False, True),
           "gated_delta": (True, True)}
"""Rules by which linear attention updates its state: whether it decays, and whether only what the
state does not hold yet is written (the delta rule)."""


@rule("CausalConvWithState")
def causal_convolution(call: NodeCall) -> list[Value | None]:
    x, w, past, activation = call[0], call[1], call.optional(3), call.text("activation", "none")
    if len(x.shape) != 3 or len(w.shape) != 3 or activation not in ("none", "silu", "swish"):
        raise InputError(f"{x.type} with {w.type}, activation {activation!r}")
    carried = w.shape[2] - 1
    if past is None and carried:
        past = call.filled((*x.shape[:2], carried), 0, x.dtype)
    whole = x if past is None else joined(call, [past, x], 2)
    y = call.standard("Conv", whole, w, call.optional(2), group=x.shape[1])[0]
    if y is not None and activation != "none":
        y = cast(call, call.apply("silu", cast(call, y, "f32")), x.dtype)
    return [y, part(call, whole, 2, whole.shape[2] - carried, whole.shape[2])]


@rule("LinearAttention")
def linear_attention(call: NodeCall) -> Results:
    """The sums are f32. The state is [n, kv_heads, d_k, d_v]; `Scan` runs along the tokens."""
    heads, groups = call.integer("q_num_heads"), call.integer("kv_num_heads")
    update = call.text("update_rule", "gated_delta")
    if update not in UPDATES or groups < 1 or heads < 1 or heads % groups \
            or any(len(call[i].shape) != 3 for i in range(3)):
        raise InputError(f"update_rule {update!r} of {heads} heads of {call[0].type} over {groups} "
                         f"of {call[1].type}")
    decays, corrects = UPDATES[update]
    (n, tokens, width), extent = call[0].shape, call[2].shape[2] // groups
    depth = width // heads
    scale = call.number("scale", 0.0) or 1 / np.sqrt(depth)
    scanned = {
        "q": by_token(call, call[0], groups, heads // groups, depth) * scale,
        "k": by_token(call, call[1], groups, depth, 1),
        "v": by_token(call, call[2], groups, 1, extent),
    }
    if decays:
        scanned["decay"] = call.apply("exp", by_token(call, call[4], groups, -1, 1))
    if corrects:
        scanned["row"] = by_token(call, call[1], groups, 1, depth)
        scanned["beta"] = by_token(call, call[5], call[5].shape[2], 1, 1)
    past = call.optional(3)
    state = call.filled((n, groups, depth, extent), 0, "f32") if past is None \
        else cast(call, past, "f32")
    keys = {name: f"{call.step.name}#{name}" for name in (*scanned, "state", "end", "reads", "y")}
    call.importer.values.update({keys[name]: x for name, x in scanned.items()})
    call.importer.values[keys["state"]] = state
    body = recurrence(tuple(scanned))
    scan = node("Scan", ["state", *scanned], ["end", "reads"], call.step.name, body=body,
                num_scan_inputs=len(scanned))
    y, end = (*call.step.makes, "")[:2]
    shape = f"{call.step.name}#shape"
    call.importer.values[shape] = call.constant([n, tokens, heads * extent], "i64")
    steps = [
        ScopedNode(scan, STANDARD, tuple(keys[name] for name in ("state", *scanned)),
                   (keys["end"], keys["reads"])),
        following(call, "Transpose", (keys["reads"],), keys["y"], perm=(1, 0, 2, 3, 4)),
        following(call, "Reshape", (keys["y"], shape), f"{shape}d"),
        following(call, "Cast", (f"{shape}d",), y, to=ELEMENT_OF[call[0].dtype]),
        following(call, "Cast", (keys["end"],), end,
                  to=ELEMENT_OF[call[0].dtype if past is None else past.dtype]),
    ]
    call.importer.take_next([step for step in steps if any(step.makes)])
    return EXPANDED


def by_token(call: NodeCall, x: Value, groups: int, *rest: int) -> Value:
    """[n, tokens, groups * rest] as f32 [tokens, n, groups, *rest]."""
    apart = cast(call, x, "f32").reshape(*x.shape[:2], groups, *rest)
    return apart.transpose(1, 0, *range(2, len(apart.shape)))


def following(call: NodeCall, operator: str, reads: tuple[str, ...], makes: str,
              **fields: Any) -> ScopedNode:
    """A step of an operator of the standard."""
    made = node(operator, ["x"] * len(reads), ["y"], f"{call.step.name}#{operator}", **fields)
    return ScopedNode(made, STANDARD, reads, (makes,))


def recurrence(scanned: tuple[str, ...]) -> GraphProto:
    """What is done for one token: the state decays, gets the product of key and value, and is read
    by the query."""
    nodes, state, value = [], "state", "v"
    if "decay" in scanned:
        nodes.append(node("Mul", [state, "decay"], ["decayed"]))
        state = "decayed"
    if "beta" in scanned:
        nodes += [node("MatMul", ["row", state], ["held"]), node("Sub", ["v", "held"], ["new"]),
                  node("Mul", ["beta", "new"], ["written"])]
        value = "written"
    nodes += [node("Mul", ["k", value], ["product"]), node("Add", [state, "product"], ["end"]),
              node("MatMul", ["q", "end"], ["read"])]
    return GraphProto(
        node=nodes, input=[ValueInfoProto(name=name) for name in ("state", *scanned)],
        output=[ValueInfoProto(name=name) for name in ("end", "read")])
