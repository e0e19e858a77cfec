"""The operators of the ONNX standard in each of their versions: operands, defaults of attributes,
and the bodies of those that the standard defines by others.

`operators.json` holds them, a version of an operator on a line. `tests/material/onnx_standard.py`
writes it from the schemas of the `onnx` package, and a test compares each entry with these.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from smalti.dataclass import dataclass
from smalti.frontend.onnx.messages import AttributeProto, FunctionProto, attribute

TABLE = Path(__file__).with_name("operators.json")


class FormalOperand(NamedTuple):
    """An operand as the standard declares it; those of equal `letter` are of one type, but for the
    repeated ones that are not `alike`."""

    letter: str
    types: frozenset[str]
    repeated: bool
    alike: bool


@dataclass(frozen=True)
class Operator:
    """An operator from version `since` on, until the next version that it has."""

    since: int
    operands: tuple[FormalOperand, ...]
    fields: Mapping[str, Any]
    """The value of each attribute that may be left out and has a default."""
    body_text: str

    @cached_property
    def defaults(self) -> dict[str, AttributeProto]:
        """Those attributes."""
        return {name: attribute(name, value) for name, value in self.fields.items()}

    @cached_property
    def body(self) -> FunctionProto | None:
        """The function that the standard defines the operator by, whatever its operands are; None
        where there is none."""
        return FunctionProto.FromString(base64.b64decode(self.body_text)) if self.body_text \
            else None


@cache
def _table() -> tuple[int, Mapping[tuple[str, str], tuple[Operator, ...]]]:
    """The newest version, and the versions of each operator by domain and name, newest first."""
    told = json.loads(TABLE.read_text(encoding="utf-8"))
    sets = [frozenset(types) for types in told["types"]]
    found: dict[tuple[str, str], list[Operator]] = {}
    for domain, name, since, operands, fields, body in told["operators"]:
        declared = tuple(FormalOperand(letter, sets[types], bool(repeated), bool(alike))
                         for letter, types, repeated, alike in operands)
        found.setdefault((domain, name), []).append(Operator(since, declared, fields, body))
    return told["newest"], {
        key: tuple(sorted(versions, key=lambda operator: -operator.since))
        for key, versions in found.items()}


def newest() -> int:
    """The newest version of the standard's own domain that is known."""
    return _table()[0]


def operator_in(domain: str, name: str, version: int) -> Operator | None:
    """An operator as a version of its domain has it; None for one that is not of the standard.

    >>> operator_in("", "Softmax", 12).fields, operator_in("", "Softmax", 13).fields
    ({'axis': 1}, {'axis': -1})
    """
    return next((operator for operator in _table()[1].get((domain, name), ())
                 if operator.since <= version), None)
