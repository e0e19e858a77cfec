"""The factors of products of integers: integers of 8 bits, less their zero points, or of 16."""

from __future__ import annotations

from smalti.fuse.reader import Reader, broadcast
from smalti.fuse.support import CONVOLUTIONS, INTEGER_PRODUCTS, ROUNDED_PRODUCTS
from smalti.graph import Node
from smalti.graph.operations.contraction import WORD_FACTOR, word_steps
from smalti.kernel.build import Whole
from smalti.kernel.form import Call, Const, Expr, Index


def whole(anchor: Node) -> Whole | None:
    """What the factors of a product of integers are; None for one of f32."""
    if anchor.operation.name not in INTEGER_PRODUCTS:
        return None
    a, b, a_zero, *b_zero = anchor.inputs
    if a.dtype == WORD_FACTOR:
        axis = 1 if anchor.operation.name in CONVOLUTIONS else -1
        return Whole(signed=True, zero=None, rounded=True,
                     steps=word_steps(b.type.size // anchor.output.shape[axis]))
    zero = int(a_zero.data.flat[0]) if a_zero.kind == "constant" else None
    return Whole(a.dtype == "i8", zero, int(b_zero[0].data.flat[0]) if b_zero else 0,
                 anchor.operation.name in ROUNDED_PRODUCTS, bool(anchor.attributes.get("paired")))


def centred(read: Reader, anchor: Node, factor: Expr) -> Expr:
    """The first factor of a product, less its zero point where it has one."""
    if anchor.operation.name not in INTEGER_PRODUCTS:
        return factor
    zero = anchor.inputs[2]
    point = read.value(zero, broadcast(zero, (Index(),) * len(zero.shape)))
    return factor if point == Const(0.0) else Call("sub", (factor, point))
