"""What operators take, as the ONNX standard states it: how many operands, and of which dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from smalti.errors import InputError
from smalti.frontend.onnx.messages import TensorProto
from smalti.frontend.onnx.standard import newest, operator_in
from smalti.frontend.onnx.tensors import DTYPE_OF
from smalti.graph.operation import Type

TENSOR_OF = {f"tensor({name.lower()})": DTYPE_OF[element]
             for name, element in TensorProto.DataType.items() if element in DTYPE_OF}
"""Our dtype for each tensor type of the standard's text."""


class Formal(NamedTuple):
    """An operand as the standard declares it; operands of equal `letter` are of one dtype."""

    letter: str
    dtypes: frozenset[str]
    repeated: bool


@cache
def formals_of(domain: str, operator: str, version: int) -> tuple[Formal, ...] | None:
    """The operands of an operator; None for one that is not of the standard."""
    known = operator_in(domain, operator, version)
    if known is None:
        return None
    return tuple(Formal(
        operand.letter if operand.alike else f"{i}: any",
        frozenset(TENSOR_OF[text] for text in operand.types if text in TENSOR_OF),
        operand.repeated) for i, operand in enumerate(known.operands))


def check_operands(domain: str, operator: str, version: int,
                   types: Sequence[Type | None]) -> None:
    """Raise InputError for operands that the standard does not allow.

    What a newer version of the operator takes is fine in a model of an earlier one.

    >>> f32, boolean = Type((2,), "f32"), Type((2,), "bool")
    >>> check_operands("", "Add", 7, [f32, f32])
    >>> check_operands("", "Sigmoid", 13, [boolean])
    Traceback (most recent call last):
    smalti.errors.InputError: operand 0 is bool; bf16, f16, f32, f64 is expected
    """
    formals = formals_of(domain, operator, version)
    if formals is None:
        return
    if len(types) > len(formals) and not (formals and formals[-1].repeated):
        raise InputError(f"{len(types)} operands are given; it takes {len(formals)}")
    latest = formals_of(domain, operator, newest()) if not domain else None
    bound: dict[str, str] = {}
    for i, type in enumerate(types):
        formal = formals[min(i, len(formals) - 1)]
        if type is None:
            continue
        wider = latest[i].dtypes if latest is not None and i < len(latest) else frozenset()
        if type.dtype not in formal.dtypes | wider:
            dtypes = ", ".join(sorted(formal.dtypes)) or "a sequence, an optional value or a map"
            raise InputError(f"operand {i} is {type.dtype}; {dtypes} is expected")
        other = bound.setdefault(formal.letter, type.dtype)
        if other != type.dtype and not formal.letter.endswith(": any"):
            raise InputError(f"operand {i} is {type.dtype}, one before it {other}; both have to "
                             f"be alike")
