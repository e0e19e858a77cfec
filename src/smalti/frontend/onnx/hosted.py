"""Steps that are computed on arrays, in the middle of a run, and by which rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.errors import InputError, UnsupportedError
from smalti.frontend.onnx.messages import FunctionProto
from smalti.frontend.onnx.registry import HOST_RULES, Body, HostNodeCall, rule_for
from smalti.frontend.onnx.steps import ScopedNode, fields_of, operator_of

IMPOSSIBLE = (ArithmeticError, LookupError, MemoryError, ValueError)
"""What numpy raises for sizes and numbers that no array has."""


def is_hosted(step: ScopedNode, operands: Sequence[Any], asked: bool,
              functions: Mapping[tuple[str, str], FunctionProto]) -> bool:
    """Whether a step is computed on arrays, by a host rule, and not by operations of a graph.

    That is so where it has no other rule, where its rule needed the elements of a value (`asked`),
    and for operands that are sequences, texts or absent.
    """
    domain, operator, version = operator_of(step)
    if (domain, operator) not in HOST_RULES or (domain, operator) in functions:
        return False
    plain = all(array is None or isinstance(array, np.ndarray | np.generic)
                and array.dtype != object for array in operands)
    given = all(array is not None or not key for array, key in zip(operands, step.reads))
    return rule_for(domain, operator, version) is None or asked or not plain or not given


def host_results(step: ScopedNode, arrays: Sequence[Any], body: Body | None = None) -> list[Any]:
    """What a host rule makes of arrays; `body` runs bodies. Raises InputError naming the node."""
    domain, operator, version = operator_of(step)
    try:
        call = HostNodeCall(step, arrays, fields_of(step), version, body)
        results = list(HOST_RULES[domain, operator](call))
    except UnsupportedError:
        raise
    except (InputError, AttributeError, TypeError, *IMPOSSIBLE) as error:  # operands of any kind
        raise InputError(f"{step.label}: {error}") from None
    if len(results) < len(step.makes):
        raise InputError(f"{step.label}: {len(step.makes)} results are asked for, it gives "
                         f"{len(results)}")
    return results
