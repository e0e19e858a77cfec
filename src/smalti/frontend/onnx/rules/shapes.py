"""Constants, and operators that return the shape of a value or make a value of a given shape."""

from __future__ import annotations

import math

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, Unsupported, rule
from smalti.frontend.onnx.tensors import dtype_of, read
from smalti.graph import Value
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX
from smalti.graph.operation import DTYPES


@rule("Constant")
def constant(call: NodeCall) -> Value:
    name, field = next(iter(call.fields.items()), ("nothing", None))
    if len(call.fields) != 1:
        raise InputError(f"one value is expected, {len(call.fields)} are given")
    if name == "value":
        return call.importer.tensor(call.step.makes[0], call.tensor("value"))
    values = {"value_float": (call.number, "f32"), "value_floats": (call.numbers, "f32"),
              "value_int": (call.integer, "i64"), "value_ints": (call.integers, "i64")}
    if name not in values:
        raise Unsupported(f"its value is given as {name!r}")
    ask, dtype = values[name]
    return call.constant(np.array(ask(name), DTYPES[dtype]), dtype)


@rule("Shape")
def shape(call: NodeCall) -> Value:
    extents = call[0].shape[slice(call.integer("start", 0), call.integer("end", None))]
    return call.constant(np.array(extents, np.int64), "i64")


@rule("Size")
def size(call: NodeCall) -> Value:
    return call.constant(np.array(call[0].type.size, np.int64), "i64")


@rule("ConstantOfShape")
def constant_of_shape(call: NodeCall) -> Value:
    extents = call.known_integers(0)
    if any(n < 0 for n in extents):
        raise InputError(f"the shape {list(extents)} has negative extents")
    given = call.tensor("value")
    if given is None:
        number, dtype = np.zeros(1, np.float32), "f32"
    else:
        number, dtype = read(given), dtype_of(given.data_type, call.where)
    if number.size != 1:
        raise InputError(f"one element is expected, {number.size} are given")
    scalar = call.constant(number.reshape(()), dtype)
    return call.apply("expand", scalar, shape=extents) if extents else scalar


@rule("Range")
def sequence(call: NodeCall) -> Value:
    start, limit, delta = (call.known(i).reshape(-1)[0] for i in range(3))
    if delta == 0:
        raise InputError("the step is 0")
    count = max(0, math.ceil((limit - start) / delta))
    numbers = start + call.counted(count) * delta
    return call.constant(numbers.astype(call.known(0).dtype), call[0].dtype)


@rule("EyeLike")
def eye(call: NodeCall) -> Value:
    x = call[0]
    if len(x.shape) != 2:
        raise InputError(f"{x.type} is no matrix")
    if x.type.size > CONSTANT_ELEMENTS_MAX:
        raise Unsupported(f"a matrix of {x.type.size} elements")
    to = call.integer("dtype", None)
    dtype = x.dtype if to is None else dtype_of(to, call.where)
    return call.constant(np.eye(*x.shape, call.integer("k")).astype(DTYPES[dtype]), dtype)

