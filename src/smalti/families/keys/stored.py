"""A parameter as an expression over stored tensors, and tables that map names to such expressions.

An expression is a tuple of parts, one below the other: each is one of several equal runs of rows
of a stored tensor. One part with all rows is a new name; several tensors stacked are a fused
projection, and one of the runs of a fused one is a single one of them; the halves of one tensor in
turn are shift and scale where a file has scale and shift. A matrix may be stored transposed, of a
convolution of films one picture needs a single tap, one that reads each pixel once is a matrix, and
factors may be stored with a one added.
Rows of every format lie in one run of bytes, those of quantised ones too, so nothing needs to be
read to know an expression, and what is read is read once.

A table maps internal names to expressions. A `*` stands for the number of a block, the first part
of a name that is a number, and is the same on both sides. To use one:

    found, unknown = expressions(file, FLUX_DIFFUSERS)   # names only: nothing is read
    found["img_in.weight"]                               # (StoredRows("x_embedder.weight"),)
    shape_of(found[name], file.shape)                    # from shapes alone
    assembled(found[name], file.read)                    # the array: a view where it is one part
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import CheckpointError

KERNEL_OF_FILMS = 5
"""Axes of the kernel of a convolution in space and time."""
_BLOCK_NUMBER = re.compile(r"(?<=\.)\d{1,4}(?=\.)")


@dataclass(frozen=True)
class StoredRows:
    """Run `index` of `count` equal runs of the rows of the stored tensor `name`, or of that matrix
    `transposed`, or of the `tap` in time of that kernel [out, in, time, height, width], -1 for the
    last, which some files hold alone [out, in, height, width]; of a kernel that is `flat` all but
    the first axis are one. Some files have a number `added` to all of them, which is taken off
    again when they are read."""

    name: str
    index: int = 0
    count: int = 1
    transposed: bool = False
    tap: int | None = None
    flat: bool = False
    added: float = 0.0


Expression = tuple[StoredRows, ...]
Table = Mapping[str, Expression]
Modules = Mapping[str, str | tuple[str, ...]]
"""Path of a linear layer inside -> its stored path, or the paths of those that it is fused of."""


def whole(*names: str) -> Expression:
    """All rows of these tensors, one tensor below the other."""
    return tuple(StoredRows(name) for name in names)


def swapped(name: str) -> Expression:
    """The second half of the rows of a tensor, then the first."""
    return StoredRows(name, 1, 2), StoredRows(name, 0, 2)


def layers(modules: Modules, *, bias: bool = True) -> dict[str, Expression]:
    """The rules for weights (and biases) of linear layers: internal path -> stored path or paths.

    >>> layers({"img_in": "patch"}, bias=False) == {"img_in.weight": whole("patch.weight")}
    True
    """
    kinds = ("weight", "bias") if bias else ("weight",)
    return {f"{ours}.{kind}": whole(*(f"{path}.{kind}" for path in
                                      ((stored,) if isinstance(stored, str) else stored)))
            for ours, stored in modules.items() for kind in kinds}


def expressions(names: Iterable[str], table: Table) -> tuple[dict[str, Expression], list[str]]:
    """Internal name -> expression for the stored `names`, and those that no rule speaks of.

    A parameter is found by the first part of its rule; the other parts may be missing in the file,
    which shows when their shapes are asked for. Names go without the prefix of their model.

    >>> table = {"blocks.*.qkv": whole("layers.*.q", "layers.*.k")}
    >>> expressions(["layers.3.q", "layers.3.k", "x"], table)[1]
    ['x']
    >>> expressions(["layers.3.q", "layers.3.k"], table)[0]["blocks.3.qkv"][1].name
    'layers.3.k'
    """
    rules: dict[str, list[tuple[str, Expression]]] = {}
    for ours, rule in table.items():
        rules.setdefault(rule[0].name, []).append((ours, rule))
    parts = {part.name for rule in table.values() for part in rule}
    found: dict[str, Expression] = {}
    unknown = []
    for name in names:
        number = _BLOCK_NUMBER.search(name)
        pattern = _BLOCK_NUMBER.sub("*", name, count=1) if number else name
        key = name if name in parts else pattern
        block = number[0] if number and key != name else "*"
        for ours, rule in rules.get(key, ()):
            found[ours.replace("*", block)] = tuple(
                replace(part, name=part.name.replace("*", block)) for part in rule)
        if key not in parts:
            unknown.append(name)
    return found, unknown


def shape_of(expression: Expression, shape: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of the parameter; `shape(name)` gives that of a stored tensor.

    Raises CheckpointError when rows do not divide, or the parts do not fit below each other.

    >>> shape_of(whole("q", "k"), {"q": (4, 3), "k": (2, 3)}.__getitem__)
    (6, 3)
    """
    rows, rests = 0, []
    for part in expression:
        stored = shape(part.name)
        if part.tap is not None:
            if len(stored) not in (KERNEL_OF_FILMS - 1, KERNEL_OF_FILMS):
                raise CheckpointError(f"{part.name} has {len(stored)} axes; expected a kernel of "
                                      f"{KERNEL_OF_FILMS}, the third of which is time, or of "
                                      f"{KERNEL_OF_FILMS - 1}")
            stored = stored[:2] + stored[-2:]
        if part.flat:
            stored = stored[0], math.prod(stored[1:])
        count, *rest = (stored[::-1] if part.transposed else stored) or (1,)
        if count % part.count:
            raise CheckpointError(f"the {count} rows of {part.name} are no {part.count} equal runs")
        rows += count // part.count
        rests.append(rest)
    if any(rest != rests[0] for rest in rests) or (len(expression) > 1
                                                   and not shape(expression[0].name)):
        names = ", ".join(part.name for part in expression)
        raise CheckpointError(f"{names} have rows of different shapes")
    return (rows, *rests[0]) if shape(expression[0].name) else ()


def assembled(expression: Expression, read: Callable[[str], np.ndarray]) -> np.ndarray:
    """The parameter as an array; `read(name)` gives a stored tensor, which is viewed if it can be.

    >>> assembled(swapped("lin"), {"lin": np.arange(4)}.__getitem__)
    array([2, 3, 0, 1])
    """
    runs = []
    for part in expression:
        array = read(part.name).T if part.transposed else read(part.name)
        if part.tap is not None and array.ndim == KERNEL_OF_FILMS:
            array = array[:, :, part.tap]
        if part.flat:
            array = array.reshape(len(array), -1)
        if part.count > 1:
            rows = len(array) // part.count
            array = array[part.index * rows:(part.index + 1) * rows]
        runs.append(array - np.float32(part.added) if part.added else array)
    return runs[0] if len(runs) == 1 else np.concatenate(runs)
