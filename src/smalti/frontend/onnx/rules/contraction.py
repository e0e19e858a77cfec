"""Sums of products: convolution, matrix products, Einstein sums."""

from __future__ import annotations

from collections.abc import Sequence

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, Unsupported, rule
from smalti.graph import Value

STEP_MAX = 1 << 20
"""The largest strides, dilations, kernels and pads: addresses in kernels have 32 bits."""


def window_pads(call: NodeCall, extents: Sequence[int], kernel: Sequence[int],
                strides: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    """The pads of each axis, by `pads` or `auto_pad`: all leading, then all trailing ones."""
    mode, rank = call.text("auto_pad", "NOTSET"), len(extents)
    if mode == "VALID":
        return (0,) * (2 * rank)
    if mode == "NOTSET":
        pads = call.integers("pads", (0,) * (2 * rank))
        if len(pads) != 2 * rank or any(not 0 <= n <= STEP_MAX for n in pads):
            raise InputError(f"pads {list(pads)} do not fit {rank} axes")
        return pads
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise InputError(f"auto_pad {mode!r} is unknown")
    total = [max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
             for n, k, s, d in zip(extents, kernel, strides, dilations, strict=True)]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return (*less, *more) if mode == "SAME_UPPER" else (*more, *less)


def window(call: NodeCall, kernel: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides and dilations of the node. Raises InputError if they do not fit the kernel."""
    ones = (1,) * len(kernel)
    strides, dilations = call.integers("strides", ones), call.integers("dilations", ones)
    if not len(strides) == len(dilations) == len(kernel) \
            or min((*strides, *dilations, *kernel), default=1) < 1:
        raise InputError(f"strides {list(strides)} and dilations {list(dilations)} do not fit a "
                         f"kernel of {list(kernel)}")
    if max((*strides, *dilations, *kernel), default=1) > STEP_MAX:
        raise Unsupported(f"strides {list(strides)} and dilations {list(dilations)} of a kernel of "
                          f"{list(kernel)}; at most {STEP_MAX} is compiled")
    return strides, dilations


@rule("Conv")
def conv(call: NodeCall) -> Value:
    bias = call.optional(2)
    return conv_of(call, call[0], call[1], *([] if bias is None else [bias]))


def conv_of(call: NodeCall, x: Value, w: Value, *others: Value, operation: str = "conv") -> Value:
    """A convolution along any number of axes, as the node's attributes say; `others` are operands
    of the operation besides x and w."""
    rank = len(x.shape) - 2
    if rank < 1 or len(w.shape) != len(x.shape):
        raise InputError(f"{x.type} with {w.type}")
    kernel = call.integers("kernel_shape", w.shape[2:])
    if tuple(kernel) != w.shape[2:]:
        raise InputError(f"kernel_shape {list(kernel)} with a weight of {w.type}")
    strides, dilations = window(call, kernel)
    pads = window_pads(call, x.shape[2:], kernel, strides, dilations)
    operands = [x, w, *others]
    if rank == 1:  # an image of one row
        operands = [v.reshape(*v.shape[:2], 1, v.shape[2]) if len(v.shape) == 3 else v
                    for v in operands]
        strides, dilations = (1, *strides), (1, *dilations)
        pads = (0, pads[0], 0, pads[1])
    y = call.apply(operation, *operands, strides=strides, pads=pads, dilations=dilations,
                   group=call.integer("group"))
    return y.reshape(*y.shape[:2], y.shape[3]) if rank == 1 else y


@rule("MatMul")
def mat_mul(call: NodeCall) -> Value:
    return product(call, call[0], call[1])


def product(call: NodeCall, a: Value, b: Value, *others: Value,
            operation: str = "mat_mul") -> Value:
    """The product as numpy.matmul has it: a vector is a matrix of one row or one column. `others`
    are operands of the operation besides a and b."""
    if not a.shape or not b.shape:
        raise InputError(f"{a.type} times {b.type}")
    row, column = len(a.shape) == 1, len(b.shape) == 1
    left = a.reshape(1, *a.shape) if row else a
    right = b.reshape(*b.shape, 1) if column else b
    y = call.apply(operation, left, right, *others)
    if not row and not column:
        return y
    shape = list(y.shape)
    if column:
        del shape[-1]
    if row:
        del shape[-1 if column else -2]
    return y.reshape(*shape)


@rule("Gemm")
def gemm(call: NodeCall) -> Value:
    a, b, c = call[0], call[1], call.optional(2)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise InputError(f"{a.type} times {b.type}; matrices are expected")
    a = a.transpose(1, 0) if call.integer("transA") else a
    b = b.transpose(1, 0) if call.integer("transB") else b
    y = call.apply("mat_mul", a, b)
    alpha, beta = call.number("alpha"), call.number("beta")
    y = y if alpha == 1 else y * alpha
    if c is None or beta == 0:
        return y
    return y + (c if beta == 1 else c * beta)
