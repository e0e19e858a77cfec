"""Tells which operations kernels can compute; numpy computes all others."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import IntEnum

from smalti.graph import Graph, Node, Value
from smalti.graph.operations.contraction import WORD_FACTOR

ROUNDED_PRODUCTS = {"conv_rounded", "mat_mul_rounded"}
"""Products of integers of 8 bits and of numbers that are rounded to such."""
INTEGER_PRODUCTS = {"conv_integer", "mat_mul_integer"} | ROUNDED_PRODUCTS
"""Products of integers of 8 bits, with sums of 32 bits."""
WORDS = "products of words"
"""Among the functions of a target: integers of 16 bits are multiplied, which any factors are, less
their zero points; else those that are bytes alone."""
WORDS_OF_FOUR = "words of four bytes"
"""Among the functions of a target: bytes are multiplied four at a time, which are neighbours along
the channels, so there have to be whole fours of these."""
CONVOLUTIONS = {"conv", "conv_integer", "conv_rounded"}
PRODUCTS = {"mat_mul", "mat_mul_integer", "mat_mul_rounded"}
DEPTHWISE_TAPS_MAX = 256
"""Sums of so many products of 8 bits are exact in f32, in which depthwise kernels take them."""
CONTRACTIONS = CONVOLUTIONS | PRODUCTS
INTEGER_CHANNELS_MIN = 3
"""With fewer channels a convolution of integers is one of f32, exact as well: groups of four
channels would be half empty, and planes of f32 need no staging of single channels. Measured: the
first layer of MobileNetV2, of 3 channels, takes 0.52 ms instead of 0.72."""
REDUCTIONS = {"reduce_sum": "sum", "reduce_mean": "sum", "reduce_max": "max"}
POOLS = {"average_pool": "sum", "max_pool": "max"}
ANCHORS = CONTRACTIONS | REDUCTIONS.keys() | POOLS.keys()
"""Operations whose kernels can have an epilogue of the pointwise operations that follow."""
NORMALIZATIONS = {"group_normalization", "layer_normalization", "rms_normalization"}
VIEWS = {"reshape", "transpose", "slice", "expand"}
FORMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CONVOLUTIONS, ("strides", "pads", "dilations", "group", "paired")),
    **dict.fromkeys(PRODUCTS, ("paired",)),
    **dict.fromkeys(REDUCTIONS, ("axes", "keepdims")),
    **dict.fromkeys(POOLS, ("kernel_shape", "strides", "pads", "dilations", "ceil_mode",
                            "count_include_pad")),
    "group_normalization": ("num_groups", "epsilon"),
    "layer_normalization": ("axis", "epsilon"), "rms_normalization": ("axis", "epsilon"),
    "reshape": ("shape",), "transpose": ("perm",), "slice": ("axis", "start", "end"),
    "expand": ("shape",), "attention": ("num_heads", "is_causal", "scale"), "concat": ("axis",),
    "gather": (), "resize": ("scales",), "rotary_embedding": ("interleaved", "num_heads"),
    "cast": ("to", "saturate", "round_mode"),
}
"""The attributes that kernels support; all others have to be at their defaults."""
TRUTH = {"not", "and", "or", "xor", "equal", "less", "less_or_equal", "greater",
         "greater_or_equal", "is_nan", "is_inf", "where"}
"""Pointwise operations that kernels compute on bool operands, or with a bool result, too."""
STORED = ("f32", "f16", "bf16")
"""Floating-point dtypes of stored values; kernels compute with them as f32."""
BYTES = ("u8", "i8")
INTEGERS = (*BYTES, "i32")
"""Integer dtypes that kernels load and store, converting them from and to f32."""
ROWS = ("i32", "i64")
"""Dtypes of the row numbers by which kernels look rows of a table up."""


class When(IntEnum):
    """How often a value is computed: once after binding, if it depends on parameters only; when a
    held input changes, if it depends on these and parameters only; else in each run."""

    BINDING = 0
    CHANGE = 1
    RUN = 2


def whens(graph: Graph, held: Collection[str]) -> dict[Value, When]:
    """When each value of `graph` is computed; `held` are the names of held inputs."""
    found = dict.fromkeys(graph.parameters.values(), When.BINDING)
    for name, value in graph.inputs.items():
        found[value] = When.CHANGE if name in held else When.RUN
    for node in graph.nodes:
        found[node.output] = max((found.get(v, When.BINDING) for v in node.inputs),
                                 default=When.BINDING)
    return found


def lacking(node: Node, functions: Collection[str]) -> str:
    """The reason why no kernel can compute `node`; "" if one can.

    `functions` are the pointwise operations, and the products of integers, that kernels of the
    target have.

    >>> g = Graph()
    >>> x = g.input("x", (3,), "i64")
    >>> lacking((x + x).node, {"add"})
    'no kernel computes add on i64'
    """
    name, operands = node.operation.name, node.inputs
    values = (*operands, node.output)
    if any(value.type.size == 0 for value in values):
        return "nothing to compute: an extent is 0"
    if not (name in functions and not node.attributes if node.operation.pointwise
            else name in FORMS):
        return _no_kernel(node)
    if name in VIEWS:
        return "" if _understood(node) else _no_kernel(node)
    if name in INTEGER_PRODUCTS:
        return _lacking_of_integers(node, functions)
    if name == "cast" and (_castable(operands[0].dtype, node.output.dtype) or WORDS in functions
                           and operands[0].dtype in STORED and node.output.dtype == WORD_FACTOR):
        return ""
    floats = values if name != "gather" else (operands[0], node.output)
    if any(value.dtype not in (("f32", "bool") if name in TRUTH else ("f32",)) for value in floats):
        return _no_kernel(node)
    if name == "mat_mul" and len(node.output.shape) > 4:
        return "mat_mul over more than two batch axes"
    if name == "gather" and not _known_rows(node):
        return "gather by computed numbers, which have to be checked"
    return "" if node.operation.pointwise or _understood(node) else _no_kernel(node)


def _lacking_of_integers(node: Node, functions: Collection[str]) -> str:
    """The reason why no kernel of a target with `functions` can compute a product of integers; ""
    if one can."""
    name, (_, b, a_zero, *rest) = node.operation.name, node.inputs
    if name not in functions:
        return f"no kernel computes {name}"
    if name in ROUNDED_PRODUCTS:
        if a_zero.dtype == WORD_FACTOR and WORDS not in functions:
            return f"no kernel computes {name} of words"
        fits = (a_zero.kind == "constant" and len(node.output.shape) <= 4 and _understood(node)
                and node.attributes.get("group", 1) == 1)
        return "" if fits else _no_kernel(node)
    (b_zero,) = rest
    if a_zero.type.size > 1:
        return f"{name} with several zero points of its first factor"
    if b_zero.kind != "constant" or (b_zero.data != b_zero.data.flat[0]).any():
        return f"{name} with several zero points of its second factor, or computed ones"
    if name == "conv_integer" and depthwise(node):
        exact = (math.prod(b.shape[2:]) <= DEPTHWISE_TAPS_MAX and not b_zero.data.any()
                 and a_zero.kind == "constant")
        return "" if exact and _understood(node) else _no_kernel(node)
    if name == "conv_integer" and b.shape[1] < INTEGER_CHANNELS_MIN:
        return f"{name} of {b.shape[1]} channels, of which f32 makes as exact sums"
    if len(node.output.shape) > 4 or not _understood(node):
        return _no_kernel(node)
    if WORDS not in functions and not of_bytes(node):
        return f"{name} of factors that no bytes are, of which f32 makes as exact sums"
    channels = b.shape[1 if name == "conv_integer" else -2]
    if WORDS_OF_FOUR in functions and channels % 4:
        return f"{name} of {channels} channels, of which f32 makes as exact sums"
    return ""


def of_bytes(node: Node) -> bool:
    """True if the factors of a product of integers are bytes, those of the second one with a sign,
    and their zero points are known, as `schedule.merge.bytes_shift` asks of its kernel."""
    _, b, a_zero, b_zero = node.inputs
    sign = 128 if b.dtype == "u8" else 0
    return a_zero.kind == b_zero.kind == "constant" and int(b_zero.data.flat[0]) == sign


def depthwise(node: Node) -> bool:
    """True if `node` is a convolution of several channels, each of which is a group of its own."""
    channels = node.inputs[0].shape[1]
    return node.attributes["group"] == channels == node.output.shape[1] > 1


def only_ones(old: Sequence[int], new: Sequence[int]) -> bool:
    """True if a reshape only adds or drops axes of extent 1."""
    return [n for n in old if n != 1] == [n for n in new if n != 1]


def elementwise(node: Node) -> bool:
    """True if `node` computes each element from the elements at the same place."""
    return node.operation.pointwise or node.operation.name == "cast"


def _castable(before: str, after: str) -> bool:
    """True if kernels can cast from `before` to `after`, which they do by way of f32: from an
    integer dtype to another only if f32 holds each of its numbers."""
    if before in STORED:
        return after in (*STORED, *INTEGERS)
    return after in STORED and before in INTEGERS or before in BYTES and after == "i32"


def _no_kernel(node: Node) -> str:
    dtypes = dict.fromkeys(value.dtype for value in node.inputs or [node.output])
    return f"no kernel computes {node.operation.name} on {', '.join(dtypes)}"


def _understood(node: Node) -> bool:
    """True if kernels support all attributes and shapes of `node`."""
    name, attributes = node.operation.name, node.attributes
    known = FORMS[name]
    if any(value != node.operation.attributes[key] for key, value in attributes.items()
           if key not in known):
        return False
    shape = node.inputs[0].shape
    if name in CONVOLUTIONS:
        return len(shape) == len(node.inputs[1].shape) == 4
    if name in PRODUCTS:
        return min(len(v.shape) for v in node.inputs[:2]) > 1
    if name in POOLS:
        return len(shape) == 4
    if name in REDUCTIONS:
        return bool(attributes["axes"])
    if name == "resize":
        return len(node.inputs) == 1 and all(
            n * s == m for n, s, m in zip(shape, attributes["scales"], node.output.shape))
    return True


def _known_rows(node: Node) -> bool:
    """True if a gather takes rows of a matrix, by row numbers that are known to be in range or, as
    an input of the program, are checked before each run."""
    table, numbers = node.inputs
    rows = origin(numbers)
    if len(table.shape) != 2 or numbers.dtype not in ROWS or rows.kind not in ("input", "constant"):
        return False
    return rows.kind == "input" or bool(
        0 <= rows.data.min() <= rows.data.max() < table.shape[0])


def origin(value: Value) -> Value:
    """The value of whose memory `value` is a view; `value` itself if it is no view.

    >>> g = Graph()
    >>> origin(g.parameter("w", (2, 3)).transpose(1, 0)).name
    'w'
    """
    while value.node is not None and value.node.operation.name in VIEWS \
            and _understood(value.node):
        value = value.node.inputs[0]
    return value
