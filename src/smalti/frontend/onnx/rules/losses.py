"""The losses of training, which exports of a training step compute at their end."""

from __future__ import annotations

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.frontend.onnx.rules.movement import taken
from smalti.graph import Value


@rule("NegativeLogLikelihoodLoss")
def negative_log_likelihood(call: NodeCall) -> Value:
    return likelihood_loss(call, call[0])


@rule("SoftmaxCrossEntropyLoss")
def cross_entropy(call: NodeCall) -> list[Value | None]:
    shares = call.standard("LogSoftmax", call[0], axis=1)[0]
    if shares is None:
        raise InputError(f"{call[0].type} has no axis of classes")
    return [likelihood_loss(call, shares), shares]


def likelihood_loss(call: NodeCall, logs: Value) -> Value:
    """The loss of logarithms of probabilities [n, classes, ...] for the classes that operand 1
    names [n, ...], each weighted by operand 2 [classes], reduced as the node says."""
    target, weight = call.apply("cast", call[1], to="i64"), call.optional(2)
    if len(logs.shape) < 2 or target.shape != (logs.shape[0], *logs.shape[2:]):
        raise InputError(f"classes {call[1].type} for {logs.type}")
    hidden, ignored = None, call.integer("ignore_index", None)
    if ignored is not None:
        hidden = call.apply("equal", target, call.constant(ignored, "i64"))
        target = call.apply("where", hidden, call.constant(0, "i64"), target)
    zero = call.constant(0, logs.dtype)
    places = target.reshape(logs.shape[0], 1, *logs.shape[2:])
    found = call.apply("gather_elements", logs, places, axis=1).reshape(*target.shape)
    loss = call.apply("neg", found)
    shares = None if weight is None else taken(call, weight, 0, target)
    if hidden is not None:
        loss = call.apply("where", hidden, zero, loss)
        shares = call.apply("where", hidden, zero,
                            call.constant(1, logs.dtype) if shares is None else shares)
    loss = loss if shares is None else loss * shares
    reduction = call.text("reduction", "mean")
    axes = tuple(range(len(loss.shape)))
    match reduction:
        case "none":
            return loss
        case "sum":
            return call.apply("reduce_sum", loss, axes=axes, keepdims=0)
        case "mean" if shares is None:
            return call.apply("reduce_mean", loss, axes=axes, keepdims=0)
        case "mean":
            return call.apply("reduce_sum", loss, axes=axes, keepdims=0) \
                / call.apply("reduce_sum", shares, axes=axes, keepdims=0)
    raise InputError(f"reduction {reduction!r}; none, sum or mean is expected")
