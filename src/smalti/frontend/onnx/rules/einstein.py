"""Einstein sums, as matrix products of two operands at a time.

In "bhqd,bhkd->bhqk" the labels b and h, which both operands and the result have, are batch axes; d,
which both operands have but not the result, is summed over; q and k are rows and columns.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from smalti.errors import InputError
from smalti.frontend.onnx.registry import NodeCall, rule
from smalti.frontend.onnx.rules.movement import taken_at
from smalti.graph import Value

Term = tuple[Value, tuple[str, ...]]
"""A value and a label for each of its axes."""


@rule("Einsum")
def einsum(call: NodeCall) -> Value:
    values = [call[i] for i in range(len(call.operands))]
    sources, target = labels_of(call.text("equation", ""), [len(v.shape) for v in values])
    terms = [diagonal(call, value, labels) for value, labels in zip(values, sources, strict=True)]
    extents: dict[str, int] = {}
    for value, labels in terms:
        for label, extent in zip(labels, value.shape, strict=True):
            known = extents.get(label, 1)
            if extent != known and 1 not in (extent, known):
                raise InputError(f"{label!r} is of {known} and of {extent}")
            extents[label] = max(extent, known) if extent and known else 0
    if any(label not in extents for label in target):
        raise InputError(f"{call.text('equation')!r} asks for what no operand has")
    terms = [spread(call, term, extents) for term in terms]
    value, labels = terms[0]
    for i, term in enumerate(terms[1:], 1):
        needed = set(target).union(*(labels for _, labels in terms[i + 1:]))
        value, labels = product(call, (value, labels), term, needed)
    value, labels = summed(call, (value, labels), set(target))
    return arranged((value, labels), target)


def labels_of(equation: str, ranks: list[int]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """The labels of the axes of each operand, and those of the result; axes that `...` stands for
    are labelled 0, 1, …"""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    words = left.split(",")
    term = r"[A-Za-z]*(\.\.\.)?[A-Za-z]*"
    if len(words) != len(ranks) or not all(re.fullmatch(term, w) for w in [*words, right]):
        raise InputError(f"the equation {equation!r} does not fit {len(ranks)} operands")
    hidden = [rank - len(word.replace("...", "")) for word, rank in zip(words, ranks, strict=True)]
    if any(n < 0 or n and "..." not in word for word, n in zip(words, hidden, strict=True)):
        raise InputError(f"the equation {equation!r} does not fit operands of {ranks} axes")
    most = max([n for word, n in zip(words, hidden, strict=True) if "..." in word], default=0)

    def spelled(word: str, count: int) -> tuple[str, ...]:
        front, dots, back = word.partition("...")
        named = [str(i) for i in range(most - count, most)] if dots else []
        return (*front, *named, *back)

    sources = [spelled(word, n) for word, n in zip(words, hidden, strict=True)]
    if arrow:
        target = spelled(right, most)
    else:  # labels that stand once, in the order of the alphabet
        once = Counter(label for labels in sources for label in labels)
        target = (*map(str, range(most)), *sorted(
            label for label, count in once.items() if count == 1 and label.isalpha()))
    if len(set(target)) != len(target):
        raise InputError(f"the equation {equation!r} names an axis of the result twice")
    return sources, target


def diagonal(call: NodeCall, value: Value, labels: tuple[str, ...]) -> Term:
    """The term in which each label stands once: of x[i, i] the diagonal of x."""
    for label in labels:
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            n = value.shape[first]
            if value.shape[second] != n:
                raise InputError(f"{label!r} is of {n} and of {value.shape[second]}")
            rest = [i for i in range(len(labels)) if i not in (first, second)]
            value = value.transpose(first, second, *rest)
            value = value.reshape(n * n, *value.shape[2:])
            value = taken_at(call, value, 0, call.counted(n) * (n + 1))
            labels = (label, *(labels[i] for i in rest))
    return value, labels


def spread(call: NodeCall, term: Term, extents: dict[str, int]) -> Term:
    """A term broadcast to `extents`: axes that `...` stands for may have an extent of 1."""
    value, labels = term
    shape = tuple(extents[label] for label in labels)
    if shape == value.shape:
        return term
    return call.apply("expand", value, shape=shape), labels


def summed(call: NodeCall, term: Term, needed: set[str]) -> Term:
    """A term summed over all axes whose labels are not in `needed`."""
    value, labels = term
    axes = tuple(i for i, label in enumerate(labels) if label not in needed)
    if not axes:
        return term
    kept = tuple(label for label in labels if label in needed)
    return call.apply("reduce_sum", value, axes=axes, keepdims=0), kept


def arranged(term: Term, labels: tuple[str, ...]) -> Value:
    """The value with its axes in the order of `labels`."""
    value, given = term
    perm = [given.index(label) for label in labels]
    return value if perm == list(range(len(perm))) else value.transpose(*perm)


def product(call: NodeCall, a: Term, b: Term, needed: set[str]) -> Term:
    """The product of two terms, summed over all labels that are not in `needed`."""
    a = summed(call, a, needed | set(b[1]))
    b = summed(call, b, needed | set(a[1]))
    both = [label for label in a[1] if label in b[1]]
    batch = tuple(label for label in both if label in needed)
    inner = tuple(label for label in both if label not in needed)
    rows = tuple(label for label in a[1] if label not in both)
    columns = tuple(label for label in b[1] if label not in both)
    left, right = arranged(a, (*batch, *rows, *inner)), arranged(b, (*batch, *inner, *columns))
    n, m, k = len(batch), len(rows), len(inner)
    outer, extents = left.shape[:n], (*left.shape[:n + m], *right.shape[n + k:])
    if not inner:
        left = left.reshape(*left.shape, *(1,) * len(columns))
        right = right.reshape(*outer, *(1,) * m, *right.shape[n:])
        return left * right, (*batch, *rows, *columns)
    depth = math.prod(left.shape[n + m:])
    left = left.reshape(*outer, math.prod(left.shape[n:n + m]), depth)
    right = right.reshape(*outer, depth, math.prod(right.shape[n + k:]))
    return call.apply("mat_mul", left, right).reshape(*extents), (*batch, *rows, *columns)
