"""The linear layer."""

from __future__ import annotations

from smalti.graph import Value


def linear(x: Value, name: str, features: int, *, bias: bool = True,
           unit: float = 1.0) -> Value:
    """x @ weight^T + bias: x [..., i] -> [..., features].

    Reads `name.weight` [features, i], as checkpoints store it, and `name.bias` [features]. Where x
    is in a `unit`, so is what is given.
    Raises InputError when x has fewer than two axes.

    >>> from smalti.graph import Graph
    >>> g = Graph()
    >>> linear(g.input("x", (2, 77, 48)), "to_q", 64)
    <result of add f32[2, 77, 64]>
    >>> list(g.parameters.values())
    [<parameter 'to_q.weight' f32[64, 48]>, <parameter 'to_q.bias' f32[64]>]
    """
    g = x.graph
    with g.scope(name):
        weight = g.parameter("weight", (features, x.shape[-1]))
        y = g.apply("mat_mul", x, weight.transpose(1, 0))
        if not bias:
            return y
        added = g.parameter("bias", (features,))
        return y + (added if unit == 1.0 else added * unit)
