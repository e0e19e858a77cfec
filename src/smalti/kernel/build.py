"""Builds kernels: one function for each form, called by the emitters in `fuse/emit/`.

| form              | stages                                                                     |
| ----------------- | -------------------------------------------------------------------------- |
| map               | out = expression                                                           |
| reduction         | total = sum or max of an expression, out = expression of total             |
| contraction       | patch = expression (guarded), sum = patch * weight, out = expression of sum |
| depthwise         | the same with one input channel for each output channel                    |
| pooling           | patch, sum = sum or max of it over a window, out = expression of sum       |
| attention         | score, top, weight, total, out                                             |
| group_scale_shift | mean, variance, scale, shift: normalising is then x * scale + shift        |
| layer_scale_shift | mean, variance, scale, shift for each row                                  |
| rms_scale         | mean square, scale for each head of each row                               |

Contractions have the axes b, y, x and o, reduced over r, s and c: a matrix product is a
convolution with a window of one pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smalti.dataclass import dataclass
from smalti.kernel.form import Buffer, Call, Const, Expr, Index, Kernel, Load, Stage, axis

LOWEST = -1e30
"""Stands for minus infinity: scores of attention that are masked become this number."""
TOTAL_MIN = 2.0 ** -60
"""A lower bound of the sum of a row's softmax weights, by which they are divided. The largest
weight is 1 unless all scores of the row are masked; then all weights are 0, and so is the
result."""
MASK_SLACK = 64
"""Elements after the end of a mask that kernels may read: they load whole groups of queries, of
which the widest is 4 vectors of 16."""


@dataclass(frozen=True)
class Window:
    """The shapes of a convolution or pooling: which input pixels each output pixel reads.

    `rows` and `columns` are the extents of the window; strides, dilations and leading pads (top,
    left) are for rows and columns.
    """

    batch: int
    in_height: int
    in_width: int
    channels: int
    out_height: int
    out_width: int
    out_channels: int
    rows: int = 1
    columns: int = 1
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)

    @property
    def patch_height(self) -> int:
        """Rows of the padded input that all outputs read."""
        return (self.out_height - 1) * self.stride[0] + (self.rows - 1) * self.dilation[0] + 1

    @property
    def patch_width(self) -> int:
        """Columns of the padded input that all outputs read."""
        return (self.out_width - 1) * self.stride[1] + (self.columns - 1) * self.dilation[1] + 1


@dataclass(frozen=True)
class Whole:
    """The factors of a contraction whose patch and weights are integers of 8 bits.

    `signed` says whether those of the patch have a sign; `zero` is their zero point, which the
    expression of the patch subtracts (None if it is computed), `weight_zero` that of the weights.
    Where weights are `rounded` they are numbers, which become integers as they are packed, each
    output channel with a scale of its own, by which its sums are multiplied; `paired`, the scale is
    such that two products of neighbouring channels add up to 16 bits. With `steps` both factors
    have 16 bits and no zero point, and that is the largest that weights are rounded to.
    """

    signed: bool
    zero: int | None
    weight_zero: int = 0
    rounded: bool = False
    paired: bool = False
    steps: int = 0

    @property
    def options(self) -> tuple[tuple[str, float], ...]:
        """The same as options of the kernel."""
        known = () if self.zero is None else (("zero", self.zero),)
        of_weights = ("rounded", 1) if self.rounded else ("weight_zero", self.weight_zero)
        pairs = (("paired", 1),) if self.paired else ()
        steps = (("steps", self.steps),) if self.steps else ()
        return ("signed", int(self.signed)), *known, of_weights, *pairs, *steps


def contraction(window: Window, patch: Expr, result: Expr, buffers: Sequence[Buffer],
                parts: int = 1, whole: Whole | None = None) -> Kernel:
    """The kernel of a convolution or matrix product.

    `patch` is the expression of the input at pixel (y - pad, x - pad) of the axes b, y, x, c;
    `result` is the expression of an element of the result, in terms of `sum` at b, y, x, o.
    `buffers` are those that both read, and "weight" [o, c, r, s] and "out" [b, y, x, o]. A weight
    [b, y, o, c, r, s] has another value for each b and y.

    Each element of the result may be made of several channels of `sum`: with `parts` 2 and n
    channels in the result, of channels o and o + n, as in GEGLU.

    With `whole` the patch and the weights are whole numbers, and sums are i32: of the patch times
    the weights less their zero point. Weights that are rounded are whole numbers times the scale of
    their channel, and so are sums.
    """
    o, r, s, c = map(axis, "orsc")
    own = len(next(b for b in buffers if b.name == "weight").shape) == 6
    weight = Load("weight", (*map(axis, "by" * own), o, c, r, s))
    kernel = _windowed("contraction", window, patch, result, buffers, c, weight,
                       (("c", window.channels),), parts)
    return kernel if whole is None else _of_integers(kernel, whole)


def _of_integers(kernel: Kernel, whole: Whole) -> Kernel:
    """The contraction `kernel` of integers: with sums of i32, of weights less their zero point, or
    of rounded weights."""
    if whole.rounded:
        return replace(kernel, options=whole.options)
    patch, total, out = kernel.stages
    assert isinstance(total.value, Call), total
    at, weight = total.value.arguments
    if whole.weight_zero:
        weight = Call("sub", (weight, Const(whole.weight_zero)))
    stages = patch, replace(total, value=Call("mul", (at, weight))), out
    buffers = (replace(b, dtype="i32") if b.name == "sum" else b for b in kernel.buffers)
    return replace(kernel, buffers=tuple(buffers), stages=stages, options=whole.options)


def depthwise(window: Window, patch: Expr, result: Expr, buffers: Sequence[Buffer]) -> Kernel:
    """The kernel of a convolution of each channel by itself; arguments as for `contraction`, but
    "weight" is [o, 1, r, s]."""
    o, r, s = map(axis, "ors")
    return _windowed("depthwise", window, patch, result, buffers, o,
                     Load("weight", (o, Index(), r, s)), ())


def pooling(window: Window, patch: Expr, reducer: str, result: Expr,
            buffers: Sequence[Buffer]) -> Kernel:
    """The kernel of the sum or max of each channel over windows; pixels outside of the image are
    left out.

    `patch` and `result` are as for `contraction`; the sum or max of a window is called `sum`.
    """
    kernel = _windowed("pooling", window, patch, result, buffers, axis("o"), None, ())
    padded, total, out = kernel.stages
    if reducer == "max" and padded.guards:
        padded = replace(padded, outside=float("-inf"))
    return replace(kernel, stages=(padded, replace(total, reducer=reducer), out))


def _windowed(form: str, window: Window, patch: Expr, result: Expr, buffers: Sequence[Buffer],
              channel: Index, weight: Load | None, reduced: tuple[tuple[str, int], ...],
              parts: int = 1) -> Kernel:
    w = window
    b, y, x = map(axis, "byx")
    height, width = w.patch_height, w.patch_width
    guards = []
    for name, extent, pad, inner in (("y", height, w.pad[0], w.in_height),
                                     ("x", width, w.pad[1], w.in_width)):
        if pad or extent > inner:
            guards.append((axis(name).plus(-pad), inner))
    at = Load("patch", (b, Index((("y", w.stride[0]), ("r", w.dilation[0]))),
                        Index((("x", w.stride[1]), ("s", w.dilation[1]))), channel))
    axes = (("b", w.batch), ("y", w.out_height), ("x", w.out_width), ("o", w.out_channels))
    stages = (
        Stage("patch", (("b", w.batch), ("y", height), ("x", width), ("c", w.channels)), patch,
              guards=tuple(guards)),
        Stage("sum", axes, at if weight is None else Call("mul", (at, weight)),
              (("r", w.rows), ("s", w.columns), *reduced), "sum"),
        Stage("out", (*axes[:3], ("o", w.out_channels // parts)), result),
    )
    local = (Buffer("patch", "local", (w.batch, height, width, w.channels)),
             Buffer("sum", "local", (w.batch, w.out_height, w.out_width, w.out_channels)))
    return Kernel(form, (*buffers, *local), stages)


def map_over(axes: Sequence[tuple[str, int]], value: Expr, buffers: Sequence[Buffer]) -> Kernel:
    """The kernel of out[axes] = value; `axes` are (name, extent) pairs."""
    return Kernel("map", tuple(buffers), (Stage("out", tuple(axes), value),))


def reduction(axes: Sequence[tuple[str, int]], reduced: Sequence[tuple[str, int]], reducer: str,
              value: Expr, result: Expr, buffers: Sequence[Buffer]) -> Kernel:
    """The kernel of out[axes] = result, an expression of `total`, which is the sum or max of
    `value` over the axes `reduced`."""
    stages = (Stage("total", tuple(axes), value, tuple(reduced), reducer),
              Stage("out", tuple(axes), result))
    local = Buffer("total", "local", tuple(extent for _, extent in axes))
    return Kernel("reduction", (*buffers, local), stages)


def attention(q: Buffer, k: Buffer, v: Buffer, out: Buffer, scale: float, causal: bool,
              mask: Buffer | None = None) -> Kernel:
    """The kernel of softmax(q k^T * scale + mask) v for q [n, t, h, d], k [n, s, h, d] and
    v [n, s, h, e]; k and v may have fewer heads, each for as many heads of q.

    The mask is [n, h, s, t]: keys, then queries. Its stride along t is 1, or 0 where it is the same
    for all queries; other axes may have a stride of 0, too. Kernels may read `MASK_SLACK` elements
    after its last one.
    """
    n, t, h, d, s, e = map(axis, "nthdse")
    group = q.shape[2] // k.shape[2]
    shared = Index((("h", 1),), 0, group)
    rows = tuple(zip("nht", (q.shape[0], q.shape[2], q.shape[1])))
    keys = ("s", k.shape[1])
    score = Call("mul", (Call("mul", (Load("q", (n, t, h, d)), Load("k", (n, s, shared, d)))),
                         Const(scale)))
    at: Expr = Load("score", (n, h, t, s))
    top: Expr = at
    total: Expr = Load("total", (n, h, t))
    if mask is not None:
        at = Call("max", (Call("add", (at, Load("mask", (n, h, s, t)))), Const(2 * LOWEST)))
        top, total = Call("max", (at, Const(LOWEST))), Call("max", (total, Const(TOTAL_MIN)))
    weight = Call("exp", (Call("sub", (at, Load("top", (n, h, t)))),))
    share = Call("div", (Load("weight", (n, h, t, s)), total))
    past = ((Index((("t", 1), ("s", -1))), q.shape[1] + k.shape[1]),) if causal else ()
    stages = (
        Stage("score", (*rows, keys), score, (("d", q.shape[3]),), "sum"),
        Stage("top", rows, top, (keys,), "max"),
        Stage("weight", (*rows, keys), weight, guards=past),
        Stage("total", rows, Load("weight", (n, h, t, s)), (keys,), "sum"),
        Stage("out", (("n", q.shape[0]), ("t", q.shape[1]), ("h", q.shape[2]), ("e", v.shape[3])),
              Call("mul", (share, Load("v", (n, s, shared, e)))), (keys,), "sum"),
    )
    extents = tuple(extent for _, extent in rows)
    local = (Buffer("score", "local", (*extents, keys[1])), Buffer("top", "local", extents),
             Buffer("weight", "local", (*extents, keys[1])), Buffer("total", "local", extents))
    given = (q, k, v, out) if mask is None else (q, k, v, mask, out)
    return Kernel("attention", (*given, *local), stages,
                  (("scale", scale), ("causal", int(causal))))


def _mean_and_variance(axes, reduced, at: Load, count: int) -> tuple[Stage, Stage]:
    """The stages that compute mean and variance of the `count` elements `at` over `reduced`."""
    names = tuple(axis(name) for name, _ in axes)
    mean = Call("mul", (at, Const(1 / count)))
    centred = Call("sub", (at, Load("mean", names)))
    spread = Call("mul", (Call("mul", (centred, centred)), Const(1 / count)))
    return (Stage("mean", axes, mean, reduced, "sum"),
            Stage("variance", axes, spread, reduced, "sum"))


def _inverse_deviation(index: tuple[Index, ...], epsilon: float) -> Call:
    """1 / sqrt(variance[index] + epsilon)."""
    return Call("reciprocal", (
        Call("sqrt", (Call("add", (Load("variance", index), Const(epsilon))),)),))


def group_scale_shift(x: Buffer, groups: int, epsilon: float,
                      buffers: Sequence[Buffer]) -> Kernel:
    """The kernel of scale[n, c] and shift[n, c] by which x * scale + shift is x group-normalised.

    x is [n, c, p], p the pixels; `buffers` holds gamma, beta [c], scale and shift [n, c].
    """
    batch, channels, pixels = x.shape
    each = channels // groups
    n, c, p = axis("n"), axis("c"), axis("p")
    at = Load("x", (n, Index((("g", each), ("i", 1))), p))
    over = (("i", each), ("p", pixels))
    mean, variance = _mean_and_variance((("n", batch), ("g", groups)), over, at, each * pixels)
    group = (n, Index((("c", 1),), 0, each))
    axes = (("n", batch), ("c", channels))
    scale = Call("mul", (Load("gamma", (c,)), _inverse_deviation(group, epsilon)))
    shift = Call("sub", (Load("beta", (c,)),
                         Call("mul", (Load("mean", group), Load("scale", (n, c))))))
    local = (Buffer("mean", "local", (batch, groups)), Buffer("variance", "local", (batch, groups)))
    return Kernel("group_scale_shift", (x, *buffers, *local),
                  (mean, variance, Stage("scale", axes, scale), Stage("shift", axes, shift)),
                  (("groups", groups), ("epsilon", epsilon)))


def layer_scale_shift(x: Buffer, epsilon: float, buffers: Sequence[Buffer]) -> Kernel:
    """The kernel of scale[r] and shift[r] by which each row of x * scale + shift has mean 0 and
    variance 1.

    x is [r, c]; `buffers` holds scale and shift [r].
    """
    rows, channels = x.shape
    r = axis("r")
    axes = (("r", rows),)
    mean, variance = _mean_and_variance(axes, (("c", channels),), Load("x", (r, axis("c"))),
                                        channels)
    shift = Call("neg", (Call("mul", (Load("mean", (r,)), Load("scale", (r,)))),))
    local = (Buffer("mean", "local", (rows,)), Buffer("variance", "local", (rows,)))
    return Kernel("layer_scale_shift", (x, *buffers, *local),
                  (mean, variance, Stage("scale", axes, _inverse_deviation((r,), epsilon)),
                   Stage("shift", axes, shift)), (("epsilon", epsilon),))


def rms_scale(x: Buffer, epsilon: float, buffers: Sequence[Buffer]) -> Kernel:
    """The kernel of scale[b, r, h] by which each head h of each row r of x * scale has a mean
    square of 1.

    x is [b, r, h, c]; `buffers` holds scale [b, r, h].
    """
    channels, names = x.shape[3], tuple(map(axis, "brh"))
    axes, at = tuple(zip("brh", x.shape)), Load("x", (*names, axis("c")))
    square = Call("mul", (Call("mul", (at, at)), Const(1 / channels)))
    return Kernel("rms_scale", (x, *buffers, Buffer("variance", "local", x.shape[:3])),
                  (Stage("variance", axes, square, (("c", channels),), "sum"),
                   Stage("scale", axes, _inverse_deviation(names, epsilon))),
                  (("epsilon", epsilon),))
