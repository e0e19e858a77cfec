"""Sequences and optional values. They are computed on the host while running, as lists and None."""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.registry import HostNodeCall, host


def place(call: HostNodeCall, i: int, count: int) -> int:
    """Operand `i` as an index into a list of `count`. Raises InputError if it is outside."""
    at = int(np.asarray(call[i]).reshape(-1)[0])
    if not -count <= at < count:
        raise InputError(f"place {at} of a sequence of {count}")
    return at % count


@host("SequenceConstruct")
def construct(call: HostNodeCall) -> list[Any]:
    return [list(call.operands)]


@host("SequenceEmpty")
def empty(call: HostNodeCall) -> list[Any]:
    return [[]]


@host("SequenceLength")
def length(call: HostNodeCall) -> list[Any]:
    return [np.array(len(call[0]), np.int64)]


@host("SequenceAt")
def element(call: HostNodeCall) -> list[Any]:
    return [call[0][place(call, 1, len(call[0]))]]


@host("SequenceInsert")
def insert(call: HostNodeCall) -> list[Any]:
    found = list(call[0])
    at = len(found) if call.optional(2) is None else place(call, 2, len(found) + 1)
    if call.optional(2) is not None and int(np.asarray(call[2]).reshape(-1)[0]) < 0:
        at -= 1
    found.insert(at, call[1])
    return [found]


@host("SequenceErase")
def erase(call: HostNodeCall) -> list[Any]:
    found = list(call[0])
    del found[-1 if call.optional(1) is None else place(call, 1, len(found))]
    return [found]


@host("SplitToSequence")
def split(call: HostNodeCall) -> list[Any]:
    x, axis = call[0], call.integer("axis", 0)
    sizes = call.optional(1)
    if sizes is None:
        parts = np.split(x, x.shape[axis], axis) if x.shape[axis] else []
        return [parts if call.integer("keepdims", 1) else [p.squeeze(axis) for p in parts]]
    if np.ndim(sizes) == 0:
        if int(sizes) < 1:
            raise InputError(f"parts of {int(sizes)}")
        return [np.split(x, range(int(sizes), x.shape[axis], int(sizes)), axis)]
    if np.sum(sizes) != x.shape[axis] or np.min(sizes) < 0:
        raise InputError(f"parts of {np.asarray(sizes).tolist()} of {list(x.shape)}")
    return [np.split(x, np.cumsum(sizes)[:-1], axis)]


@host("ConcatFromSequence")
def concat(call: HostNodeCall) -> list[Any]:
    join = np.stack if call.integer("new_axis", 0) else np.concatenate
    return [join(call[0], axis=call.integer("axis"))]


@host("SequenceMap")
def mapped(call: HostNodeCall) -> list[Any]:
    body = call.graph("body")
    turns = [call.body("body", [call[0][i], *(
        x[i] if isinstance(x, list) else x for x in call.operands[1:])])
        for i in range(len(call[0]))]
    return [[turn[k] for turn in turns] for k in range(len(body.output))]


@host("Optional")
def optional(call: HostNodeCall) -> list[Any]:
    return [call.optional(0)]


@host("OptionalHasElement")
def has_element(call: HostNodeCall) -> list[Any]:
    return [np.array(call.optional(0) is not None)]


@host("OptionalGetElement")
def get_element(call: HostNodeCall) -> list[Any]:
    if call.optional(0) is None:
        raise InputError("the optional value is empty")
    return [call[0]]


@host("Identity")
def identity(call: HostNodeCall) -> list[Any]:
    return [call.optional(0)]
