"""Host calls: operations without a kernel, as their numpy meaning, where their operands lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from smalti.compiler.module import HostCall, array_at
from smalti.errors import DeviceError, InputError
from smalti.graph.operation import OPERATIONS


def bound(call: HostCall, arena: np.ndarray,
          weights: Sequence[np.ndarray]) -> Callable[[], None]:
    """A function that computes `call` in `arena` and the memory of each slot of the weights.

    Nothing is copied beforehand. Calling it raises InputError for operands that the operation
    cannot be asked for, DeviceError where memory is not enough.
    """
    operands = [array_at(arena if operand.slot < 0 else weights[operand.slot], operand.place)
                for operand in call.operands]
    for array in operands:
        array.flags.writeable = False
    result, meaning = array_at(arena, call.result), OPERATIONS[call.operation].meaning

    def compute() -> None:
        with refusals(call.operation):
            result[...] = meaning(*operands, **call.attributes)

    return compute


@contextmanager
def refusals(operation: str) -> Iterator[None]:
    """Errors inside name the operation: InputError for operands that it cannot be asked for,
    DeviceError where memory is not enough."""
    try:
        yield
    except MemoryError as error:
        raise DeviceError(f"{operation}: {error}; choose a smaller size") from None
    except (InputError, IndexError, ValueError) as error:  # numbers that it cannot be asked for
        raise InputError(f"{operation}: {error}") from None
