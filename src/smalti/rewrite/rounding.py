"""Products of numbers by integers of 8 bits, or of 16: what precision "int8" makes of a graph.

    mat_mul(x, w)        mat_mul_rounded(integers, w, 128) * scale
                             scale = max(reduce_max(abs(x)) / 127, least), one for each row of x
                             integers = cast(round(x / scale) + 128, to=u8)

Layers that do not stand 8 bits have 16, where products of these are computed: x becomes integers up
to so many steps that 32 bits hold a sum of their products, and so does w (`word_steps`). A
convolution of one pixel has a scale for each pixel, one of 3 x 3 a scale for each image. Weights
are rounded as they are packed, each output channel with a scale of its own. What is rounded has the
largest sums of a model; these stay:

* the first layers, which read an input, and the last, which make an output;
* those of few rows, as of the time step, and of few channels: rounding them saves nothing;
* convolutions of 3 x 3 where bytes are not multiplied: Winograd's algorithm takes a quarter of the
  products, which is more than words gain; and those behind an enlargement, which it reads in place;
* those whose weights are said to stay, as what does not stand it by measuring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import numpy as np

from smalti.dataclass import dataclass
from smalti.graph import Graph, Node, Value
from smalti.graph.operations.contraction import SCALE_MIN, WORD_FACTOR, word_steps
from smalti.rewrite.rules import Made, Procedure

ROWS_MIN = 32
"""The fewest rows, or pixels, for which a layer is of integers: with fewer its time is that of
reading its weights, and what is computed of a time step or a whole prompt affects everything."""
CHANNELS_MIN = 64
"""The fewest input and output channels: a guess. With fewer, finding the largest magnitude of a row
takes as long as the sums that it serves."""
WINDOWS = ((1, 1), (3, 3))
"""Convolutions that are rounded."""


@dataclass(frozen=True)
class Steps:
    """How numbers become integers, which are multiplied where they lie: `zero` stands for 0, and
    the largest number for `largest`. None is below -`low`, where that is not 0. The usual ones are
    bytes without a sign."""

    zero: int = 128
    low: float = 0.0
    largest: int = 255

    @property
    def above(self) -> int:
        """Steps from 0 to the largest number."""
        return self.largest - self.zero

    @property
    def scale_min(self) -> float:
        """The least scale, by which -`low` is a byte."""
        return max(self.low / self.zero, SCALE_MIN) if self.low else SCALE_MIN

    def scales(self, x: np.ndarray) -> np.ndarray:
        """The scale of each image of x [n, ...]."""
        size = x if self.low else np.abs(x)
        top = size.max(axis=tuple(range(1, x.ndim)))
        return np.maximum(top / np.float32(self.above), np.float32(self.scale_min))


BEHIND_SILU = Steps(16, 0.2785)
"""SiLU has no value below -0.2785, so that nearly twice as many steps are left above 0: what images
read that have one scale halves its error so. Rows, whose largest number may be small, would lose by
it."""
VIEWS = ("reshape", "transpose", "slice", "expand", "cast", "concat", "gather")
"""Operations that make no other numbers."""


def candidates(graph: Graph, windows: bool = False,
               rows_min: int = ROWS_MIN) -> tuple[str, ...]:
    """The names of the weights whose layers may be computed in integers, in the order of layers;
    with `windows` also those of convolutions of 3 x 3. Layers have at least `rows_min` rows, fewer
    where the graph is one of a smaller picture than will be made.

    >>> g = Graph()
    >>> x = g.input("x", (1, 64, 96))
    >>> for name in ("first", "second", "third"):
    ...     x = g.apply("tanh", g.apply("mat_mul", x, g.parameter(name, (96, 96))))
    >>> g.output("y", x.reshape(64, 96))
    >>> candidates(g)
    ('second',)
    """
    last, users = _last(graph), graph.users()
    found: dict[str, bool] = {}
    for node in graph.nodes:
        if node.operation.name not in ("conv", "mat_mul") or not users.get(node.output):
            continue
        name = weight_name(node)
        if name is not None:
            fits = _fits(node, rows_min) and (windows or not windowed(node))
            found[name] = found.get(name, True) and node not in last and fits
    return tuple(name for name, fits in found.items() if fits)


def held_windows(graph: Graph, group: int) -> tuple[str, ...]:
    """The names of the weights of convolutions of 3 x 3 that may be held in fewer bits where no
    integers are for them: those with whole groups of `group` input channels, but for the first and
    last layers.

    >>> g = Graph()
    >>> x = g.input("x", (1, 64, 8, 8))
    >>> for name in ("first", "second", "third"):
    ...     weight = g.parameter(name, (64, 64, 3, 3))
    ...     x = g.apply("tanh", g.apply("conv", x, weight, pads=(1, 1, 1, 1)))
    >>> g.output("y", x)
    >>> held_windows(g, 32), held_windows(g, 48)
    (('second',), ())
    """
    last, users, found = _last(graph), graph.users(), dict[str, bool]()
    for node in graph.nodes:
        name = weight_name(node) if node.operation.name in ("conv", "mat_mul") else None
        if name is None or not users.get(node.output):
            continue
        x, shape = _seen(node.inputs[0]), node.inputs[1].shape
        fits = windowed(node) and node.inputs[1].kind == "parameter" and shape[2:] in WINDOWS \
            and node.attributes["group"] == 1 and shape[1] % group == 0 \
            and min(shape[:2]) >= CHANNELS_MIN and x.node is not None
        found[name] = found.get(name, True) and node not in last and fits
    return tuple(name for name, fits in found.items() if fits)


def weight_name(node: Node) -> str | None:
    """The parameter that is the weight of a product or convolution; None if it is computed."""
    weight = node.inputs[1]
    while weight.node is not None and weight.node.operation.name in ("transpose", "reshape"):
        weight = weight.node.inputs[0]
    return weight.name if weight.kind == "parameter" else None


def _fits(node: Node, rows_min: int = ROWS_MIN) -> bool:
    """True if the layer has the shape for it, and does not read an input."""
    (x, weight, *_), shape = node.inputs, node.output.shape
    images = node.operation.name == "conv"
    if len(weight.shape) != (4 if images else 2) or images and (
            node.attributes["group"] > 1 or _is(x, "resize") or weight.shape[2:] not in
            WINDOWS or weight.shape[2:] == (1, 1) and {*node.attributes["pads"], *(
                step - 1 for step in node.attributes["strides"])} != {0}):
        return False
    depth, width = weight.shape[:2][::-1] if images else weight.shape
    rows = math.prod(shape) // width
    return rows >= rows_min and min(depth, width) >= CHANNELS_MIN and _seen(x).node is not None


def _seen(value: Value) -> Value:
    """What a value shows, which is no view."""
    while value.node is not None and value.node.operation.name in VIEWS:
        value = value.node.inputs[0]
    return value


def byte_steps(node: Node) -> Steps:
    """How what a layer reads becomes bytes."""
    x = node.inputs[0]
    return BEHIND_SILU if windowed(node) and _is(x, "silu") else Steps()


def word_steps_of(node: Node) -> Steps:
    """How what a layer reads becomes integers of 16 bits, with a sign."""
    axis = 1 if node.operation.name == "conv" else -1
    return Steps(0, largest=word_steps(node.inputs[1].type.size // node.output.shape[axis]))


def windowed(node: Node) -> bool:
    """True for a convolution of more than one pixel."""
    return node.operation.name == "conv" and node.inputs[1].shape[2:] != (1, 1)


def _is(value: Value, name: str) -> bool:
    return value.node is not None and value.node.operation.name == name


def _last(graph: Graph) -> set[Node]:
    """The layers whose results are outputs, but for a bias and for what each element becomes by
    itself."""
    found, pending = set(), [value for value in graph.outputs.values()]
    while pending:
        node = pending.pop().node
        if node is None:
            continue
        if node.operation.name in ("conv", "mat_mul"):
            found.add(node)
        elif node.operation.name in VIEWS or node.operation.pointwise:
            computed = [value for value in node.inputs if value.node is not None
                        or value.kind == "input"]
            if len(computed) == 1:
                pending.extend(computed)
    return found


def rounding(chosen: Collection[str], computes: Callable[[Node], bool], paired: bool = False,
             words: Collection[str] = ()) -> Procedure:
    """The rule that computes the layers whose weights are `chosen` in integers, for a target whose
    kernels compute such products; `paired` says that it adds two of them in 16 bits. Those among
    `words` have integers of 16 bits."""
    def applied(value: Value, made: Made) -> Value | None:
        node, g = value.node, value.graph
        name = weight_name(node)
        if name not in chosen or not _fits(node):
            return None
        x, weight, *bias = node.inputs
        images, wide = node.operation.name == "conv", name in words
        axes = (1, 2, 3) if windowed(node) else (1,) if images else (len(x.shape) - 1,)
        steps = word_steps_of(node) if wide else byte_steps(node)
        size = x if steps.low else made(g.apply("abs", x))
        top = made(g.apply("reduce_max", size, axes=axes, keepdims=True))
        scale = made(g.apply("max", made(top * g.constant(1 / steps.above)),
                             g.constant(steps.scale_min)))
        whole = made(g.apply("round", made(x * made(g.apply("reciprocal", scale)))))
        if steps.zero:
            whole = made(whole + g.constant(float(steps.zero)))
        dtype = WORD_FACTOR if wide else "u8"
        sums = g.apply("conv_rounded" if images else "mat_mul_rounded",
                       made(g.apply("cast", whole, to=dtype)), weight,
                       g.constant(steps.zero, dtype), paired=int(paired and not wide),
                       **node.attributes)
        if not computes(sums.node):
            return None
        result = made(made(sums) * scale)
        if bias:
            result = made(result + made(bias[0].reshape(*bias[0].shape, 1, 1)))
        return result

    return Procedure(("conv", "mat_mul"), applied)
