"""Which layers of a denoiser stand integers of 8 bits: measured once for a checkpoint.

What a layer loses hangs on the numbers that it gets: a token with one channel that is a hundred
times as large as all others has two digits left for these. So a small evaluation is run on seeded
noise, rows of what each layer reads come out of it, and the layer is computed from them in numpy
both ways. Those that are off by more than `ERROR_MAX` stay as they are. Nothing here depends on a
prompt or on adapters, so that a picture does not depend on what was made before.

Where products of pairs are added in 16 bits, all layers together may be off by `STEP_ERROR_MAX` as
well: how much of what each is off by reaches the result is measured, too (`influence`), and layers
whose squared error counts most for the time that it saves multiply integers of 16 bits instead,
until that holds. There convolutions of 3 x 3 multiply f32, by Winograd's algorithm, and their
weights are held in 8 bits, with a scale for each 32 of them (`STORED`), where they stand it by the
same measure: half the memory of f16. What that makes them off by counts among all.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from types import MappingProxyType

import numpy as np

from smalti.codegen.target import Target
from smalti.dataclass import dataclass
from smalti.fuse.support import WORDS
from smalti.graph import Graph, Node, Value
from smalti.graph.operation import OPERATIONS
from smalti.graph.operations.contraction import (
    SCALE_MIN,
    STEPS,
    WORD_FACTOR,
    rounded,
    word_steps,
)
from smalti.graph.quantised import quantised
from smalti.rewrite.rounding import WINDOWS, Steps, byte_steps, weight_name, windowed

ERROR_MAX = 0.02
"""The largest error of a layer, relative to its result in the Euclidean norm. Of normally
distributed numbers it is 0.010 to 0.014. A step of the model that ships is off by less than that
together, since most of what a layer adds to is not its own; with 0.03 it would be 0.023."""
STEP_ERROR_MAX = 0.026
"""The largest error of a step, in the same sense, that all layers together may make as far as their
shares tell (`influence`), which is more than they do make, so that 2 % are kept: of the UNet of
Stable Diffusion 1.5 with seeded weights they say 6.2 % where all layers are in bytes, and it is
4.6 % off; where they say 2.0 and 2.6 %, it is 1.4 and 1.9 %."""
SHARED_ERROR_MAX = 0.05
"""The largest error of a layer where its share of that is known: a guess, beyond which errors of
layers may not be independent any more."""
BYTES = "u8"
"""What layers are computed in that stand it."""
STORED = "q8"
"""What weights of convolutions of 3 x 3 are held as that stand it, where no bytes are multiplied:
0.5 % of normally distributed numbers is lost."""
NOTHING: Mapping[Value, float] = MappingProxyType({})
"""No influences: none are known."""
ROWS_MAX, OUTPUTS_MAX = 64, 128
"""From how many rows of what a layer reads, and how many of its output channels, the error is
estimated."""
SIDE = 32
"""Of the latent of noise: 16 x 16 tokens of most transformers, 4 x 4 pixels in the middle of a
UNet."""
TIME, TIME_OF_EDM = 500.0, 0.0
"""The middle of training, as networks are told of it."""
STEADY = {"guidance": 3.5, "mask": 1.0, "keep": 1.0, "target": TIME}
"""Inputs that are no noise."""
COSTS = {STORED: 0.95, BYTES: 0.49, WORD_FACTOR: 0.66, "f32": 1.0}
"""Seconds of a layer in what it may be computed in, in those of f32: measured with AVX2 on Zen 3,
1024 x 1280 x 1280. Weights that are held in 8 bits save no time; that they take half the memory is
counted as a little: the layers of most pixels, which have the fewest weights, leave first."""
ROWS_MIN = 2
"""The fewest rows of a layer in the small evaluation that may be computed in integers in a larger
one; of a time step there is one for each picture."""
Floats = np.ndarray


@dataclass(frozen=True)
class LayerRows:
    """Where what a layer reads comes out of a graph: rows [rows, channels], of a convolution of
    3 x 3 images [n, h, w, channels], which become bytes in `steps`. `layer` reads them. `weight`
    makes the matrix [channels, outputs], or [9 channels, outputs], by which they are multiplied, of
    the parameter `name`; `stored` says that these are of f32, and that the weight may be held in
    fewer bits."""

    output: str
    name: str
    layer: Node
    weight: Callable[[Floats], Floats]
    steps: Steps | None = None
    stored: bool = False

    @property
    def least(self) -> str:
        """What the layer is computed in, or its weight held as, where it stands it."""
        return STORED if self.stored else BYTES

    def error(self, read: Floats, weight: Floats, codes: bool = False, paired: bool = False,
              words: bool = False) -> float:
        """How far the layer is off in integers of 8 bits, or of 16, or with its weight held in 8
        bits; `codes`, `paired` and `words` are those of `error`."""
        if self.steps is None:
            return error(read, self.weight(weight), None, codes, paired, words)
        n, h, w, _ = read.shape
        rng = np.random.default_rng(0)
        image, row, column = (rng.integers(0, extent, ROWS_MAX) for extent in (n, h - 2, w - 2))
        rows = np.stack([read[image, row + r, column + s] for r in range(3) for s in range(3)], 1)
        rows = rows.reshape(ROWS_MAX, -1)
        if self.stored:
            return holding_error(rows, weight)
        return error(rows, self.weight(weight), self.steps.scales(read)[image][:, None])


def enlarged(smallest: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that is measured, from the smallest one of a denoiser: (pictures, height, width,
    tokens of the prompt).

    >>> enlarged((1, 2, 2, 1)), enlarged((1, 24, 24, 77))
    ((1, 32, 32, 32), (1, 48, 48, 77))
    """
    pictures, height, width, tokens, *rest = smallest
    return (pictures, height * -(-SIDE // height), width * -(-SIDE // width), max(tokens, SIDE),
            *rest)


def tapped(graph: Graph, windows: bool = True, stored: Container[str] = ()) -> list[LayerRows]:
    """Make rows of what the layers of `graph` read, whose weights are parameters, outputs of it;
    without `windows` not of convolutions of 3 x 3, which no integers are for where bytes are not
    multiplied (see `rewrite.rounding`), but of those whose weights are among `stored`."""
    found: list[LayerRows] = []
    for node in graph.nodes:
        images = node.operation.name == "conv"
        if not images and node.operation.name != "mat_mul":
            continue
        name, (x, weight, *_) = weight_name(node), node.inputs
        if name is None or len(weight.shape) != (4 if images else 2) \
                or images and weight.shape[2:] not in WINDOWS:
            continue
        if windowed(node) and not windows and name not in stored:
            continue
        if images:
            x = x.transpose(0, 2, 3, 1)
        if windowed(node):
            if min(x.shape[1:3]) < 3:
                continue
            found.append(LayerRows(f"layer {len(found)}", name, node, _matrix_of(node, images),
                                   byte_steps(node), name in stored))
            graph.output(found[-1].output, x)
            continue
        rows = x.type.size // x.shape[-1]
        some = min(rows, ROWS_MAX)
        first = (rows - some) // 2
        x = graph.apply("gather", x.reshape(rows, x.shape[-1]),  # of a slice all of x would stay
                        graph.constant(np.arange(first, first + some, dtype=np.int32)))
        found.append(LayerRows(f"layer {len(found)}", name, node, _matrix_of(node, images)))
        graph.output(found[-1].output, x)
    return found


def at_once(graph: Graph, added: int) -> None:
    """Move the last `added` nodes of `graph`, by which outputs were made of others, to right behind
    what they read: of what each layer reads only some rows are in memory until the end then.

    >>> g = Graph()
    >>> x = g.input("x", (4,))
    >>> y = g.apply("tanh", g.apply("exp", x))
    >>> g.output("squares", y.node.inputs[0] * y.node.inputs[0])
    >>> at_once(g, 1)
    >>> [node.operation.name for node in g.nodes]
    ['exp', 'mul', 'tanh']
    """
    own = len(graph.nodes) - added
    places = {node: place for place, node in enumerate(graph.nodes[:own])}
    for node in graph.nodes[own:]:
        places[node] = max((places[value.node] for value in node.inputs
                            if value.node is not None), default=-1)
    graph.nodes.sort(key=places.__getitem__)


@dataclass(frozen=True)
class LayerChoice:
    """A layer, or layers with the same weight: its operations, and its squared error in the result
    of the network by what it is computed in, what takes least first."""

    name: str
    flops: int
    squares: Mapping[str, float]

    @property
    def least(self) -> str:
        """What the layer has that takes least."""
        return next(iter(self.squares))

    def beside(self, other: LayerChoice | None) -> LayerChoice:
        """Both as one, in what both may be computed in."""
        if other is None:
            return self
        return LayerChoice(self.name, self.flops + other.flops, {
            dtype: self.squares[dtype] + other.squares[dtype]
            for dtype in self.squares if dtype in other.squares})


def within(choices: Iterable[LayerChoice], error_max: float,
           given: Mapping[str, str]) -> dict[str, str]:
    """What layers are computed in that all together are off by `error_max` at most: `given` for
    some, what takes least for others as far as that will do.

    >>> few, many = (LayerChoice(name, flops, {"u8": 4e-4, "i16": 1e-6, "f32": 0.0})
    ...              for name, flops in (("few", 10), ("many", 100)))
    >>> within((many, few), 0.03, {}), within((many, few), 0.0201, {})
    ({}, {'few': 'i16'})
    """
    found, left = dict(given), {each.name: each for each in choices}
    while sum(each.squares[found.get(each.name, each.least)]
              for each in left.values()) > error_max ** 2:
        best, most = None, 0.0
        for each in left.values():
            now = found.get(each.name, each.least)
            for dtype, square in each.squares.items():
                if COSTS[dtype] > COSTS[now] and each.squares[now] > square:
                    gain = (each.squares[now] - square) / (
                        each.flops * (COSTS[dtype] - COSTS[now]))
                    if gain > most:
                        best, most = (each.name, dtype), gain
        if best is None:
            break
        found[best[0]] = best[1]
    return found


def _matrix_of(node: Node, images: bool) -> Callable[[Floats], Floats]:
    """What makes the matrix [channels, outputs] of a layer of its parameter."""
    steps, value = [], node.inputs[1]
    while value.node is not None:
        steps.append(value.node)
        value = value.node.inputs[0]

    def matrix(values: Floats) -> Floats:
        values = values.reshape(value.shape)
        for step in reversed(steps):
            values = OPERATIONS[step.operation.name].meaning(values, **step.attributes)
        if images:
            values = values.transpose(0, 2, 3, 1)  # as rows of windows are, channels last
        return values.reshape(len(values), -1).T if images else values

    return matrix


def noise(graph: Graph, time: float) -> dict[str, Floats]:
    """Seeded inputs for a denoiser at a time of its training."""
    steady = {**STEADY, "timesteps": time}
    random = np.random.default_rng(0)
    return {name: np.full(value.shape, steady[name], np.float32) if name in steady
            else random.standard_normal(value.shape, np.float32)
            for name, value in graph.inputs.items()}


def error(x: Floats, weight: Floats, row_scales: Floats | None = None,
          codes: bool = False, paired: bool = False, words: bool = False) -> float:
    """How far x @ weight is off in integers of 8 bits: a scale for each row of x, those that are
    given or its own, and one for each column of the weight, unless that is of `codes` already, as
    it is in a file; where products are `paired`, one by which two of them fit 16 bits. As `words`
    both factors have integers of 16 bits.

    >>> x = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    >>> round(error(x, x.T), 3)
    0.004
    >>> x[:, 3] *= 1000
    >>> error(x, np.ones((256, 1), np.float32) / (1 + abs(x).max(0))[:, None]) > 0.1
    True
    """
    weight = np.ascontiguousarray(weight[:, _some(weight.shape[1])], np.float32)
    truth = x @ weight
    steps = word_steps(len(weight)) if words else STEPS
    columns, scales = (weight, np.float32(1)) if codes and not words else rounded(
        weight, (0,), 0 if paired and not words else None, steps)
    if row_scales is None:
        rows, row_scales = rounded(x, (1,), None, steps)
    else:
        rows = np.rint(x / np.maximum(row_scales, SCALE_MIN))
    return _relative((rows @ columns) * row_scales * scales - truth, truth)


def holding_error(x: Floats, weight: Floats) -> float:
    """How far the sums of windows x [rows, 9 channels] by a weight [o, c, 3, 3] are off where that
    is held as `STORED`.

    >>> rng = np.random.default_rng(0)
    >>> x, weight = rng.standard_normal((64, 288)), rng.standard_normal((48, 32, 3, 3))
    >>> round(holding_error(x, weight), 4)
    0.0053
    """
    weight = np.asarray(weight[_some(len(weight))], np.float32)
    x = x.reshape(len(x), 9, -1).transpose(0, 2, 1).reshape(len(x), -1)  # as the weight lies
    truth, off = (x @ values.reshape(len(values), -1).T
                  for values in (weight, quantised(weight, STORED).floats() - weight))
    return _relative(off, truth)


def _some(outputs: int) -> np.ndarray:
    """The output channels from which an error is estimated."""
    return np.linspace(0, outputs - 1, min(OUTPUTS_MAX, outputs)).astype(int)


def _relative(off: Floats, truth: Floats) -> float:
    size = np.linalg.norm(truth)
    return float(np.linalg.norm(off) / size) if size else 0.0


def words_help(target: Target) -> bool:
    """True if layers that do not stand 8 bits have 16 on a target: it multiplies these, and f32
    otherwise. Pairs of bf16 have as many bytes and need no scales, and are 0.2 % off whatever a
    layer reads, where 16 bits are 1.9 % off if one of 400 channels is 20 times as large."""
    return WORDS in target.functions and target.beside_integers == "f32"


def too_imprecise(taps: Iterable[LayerRows], outputs: Mapping[str, Floats],
                  floats: Callable[[str], Floats], drop: Callable[[str], None],
                  codes: Container[str] = (), paired: bool = False, words: bool = False,
                  error_max: float | None = None, reached: Mapping[Value, float] = NOTHING,
                  chosen: Container[str] = ()) -> dict[str, str]:
    """The names of the weights whose layers are off by more than `error_max`, else `ERROR_MAX`, and
    what these are computed in: integers of 16 bits where there are `words` and that is enough, else
    f32; of those that are held in 8 bits, those that are not to be. `floats(name)` gives a weight,
    `drop(name)` lets go of it, those among `codes` are multiplied by their codes, or stay in
    blocks, and `paired` is as of `error`. Where it is known what a squared error of each value has
    become when it has `reached` the results, those of all layers with `chosen` weights are within
    `STEP_ERROR_MAX` together, and each of them may be off
    by `SHARED_ERROR_MAX`."""
    found: dict[str, str] = {}
    choices: dict[str, LayerChoice] = {}
    most = ERROR_MAX if error_max is None else error_max
    for tap in taps:
        read, weight = outputs[tap.output], floats(tap.name)
        errors = {tap.least: tap.error(read, weight, tap.name in codes, paired), "f32": 0.0}
        if words and tap.steps is None and tap.name not in codes:
            errors[WORD_FACTOR] = tap.error(read, weight, words=True)
        drop(tap.name)
        counted = tap.name in chosen and tap.layer.output in reached
        bound = max(most, SHARED_ERROR_MAX) if counted else most
        if errors[tap.least] > bound:
            wide = errors.get(WORD_FACTOR, np.inf) <= bound and found.get(tap.name) != "f32"
            found[tap.name] = WORD_FACTOR if wide else "f32"
        if tap.name in chosen:
            share = reached.get(tap.layer.output, 0.0)
            choice = LayerChoice(tap.name, tap.layer.flops,
                            {dtype: share * error ** 2 for dtype, error in errors.items()})
            choices[tap.name] = choice.beside(choices.get(tap.name))
    return within(choices.values(), STEP_ERROR_MAX, found)
