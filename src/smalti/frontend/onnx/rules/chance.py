"""Random numbers. A program gives the same outputs for the same inputs, so a node needs a seed; its
numbers are drawn once, while the graph is built."""

from __future__ import annotations

import math

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, Unsupported, rule
from smalti.frontend.onnx.tensors import dtype_of
from smalti.graph import Value
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX
from smalti.graph.operation import DTYPES, FLOATS


def generator(call: NodeCall, shape: tuple[int, ...]) -> np.random.Generator:
    """A generator with the node's seed, for a result of `shape`. Raises Unsupported without a seed,
    or for more numbers than a constant may have."""
    if "seed" not in call:
        raise Unsupported("it has no seed: every run would give another result; give it a seed, or "
                          "make its result an input of the model")
    if min(shape, default=1) < 0:
        raise InputError(f"the shape {list(shape)} has negative extents")
    if math.prod(shape) > CONSTANT_ELEMENTS_MAX:
        raise Unsupported(f"{math.prod(shape)} numbers; at most {CONSTANT_ELEMENTS_MAX} are drawn")
    return np.random.default_rng(np.float32(call.number("seed")).view(np.uint32).item())


@rule("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
def random(call: NodeCall) -> Value:
    like = call.operator.endswith("Like")
    shape = call[0].shape if like else call.integers("shape", ())
    to = call.integer("dtype", None)
    dtype = dtype_of(to, call.where) if to is not None else call[0].dtype if like else "f32"
    if dtype not in FLOATS:
        raise InputError(f"random numbers of dtype {dtype}; one of {FLOATS} is expected")
    draw = generator(call, shape)
    if "Normal" in call.operator:
        numbers = draw.normal(call.number("mean"), abs(call.number("scale")), shape)
    else:
        low, high = sorted((call.number("low"), call.number("high")))
        numbers = draw.uniform(low, high, shape)
    return call.constant(numbers.astype(DTYPES[dtype]), dtype)


@rule("Bernoulli")
def bernoulli(call: NodeCall) -> Value:
    """1 with the probability that the input gives for each element, else 0. (The standard's
    function body has it the wrong way round.)"""
    probability = call[0]
    uniform = generator(call, probability.shape).random(probability.shape, np.float32)  # < 1
    ones = call.apply("less", call.constant(uniform, "f32"),
                      call.apply("cast", probability, to="f32"))
    to = call.integer("dtype", None)
    dtype = probability.dtype if to is None else dtype_of(to, call.where)
    return call.apply("cast", ones, to=dtype)


@rule("Multinomial")
def multinomial(call: NodeCall) -> Value:
    """Samples [n, samples] of classes, drawn by the logarithms of their weights [n, classes]: the
    largest after adding Gumbel noise (the Gumbel-max trick)."""
    weights, count = call[0], call.integer("sample_size")
    if len(weights.shape) != 2 or count < 1:
        raise InputError(f"{count} samples by {weights.type}")
    n, classes = weights.shape
    noise = generator(call, (n, count, classes)).gumbel(size=(n, count, classes))
    noisy = weights.reshape(n, 1, classes) + call.constant(noise, weights.dtype)
    found = call.apply("arg_max", noisy, axis=2, keepdims=0)
    dtype = dtype_of(call.integer("dtype"), call.where)
    return found if dtype == "i64" else call.apply("cast", found, to=dtype)
