"""A feature level of a CPU as the compiler sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.block import joined
from smalti.codegen.cpu.functions import FUNCTIONS
from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.cpu.lowered import KernelStep, NativeKernel
from smalti.codegen.cpu.packing import lower_packing
from smalti.codegen.target import EncodedFunctions, Refusal, Target
from smalti.fuse.support import INTEGER_PRODUCTS, WORDS
from smalti.graph.operation import HALVES
from smalti.graph.quantised import FORMATS
from smalti.schedule import arithmetic, choose
from smalti.schedule.schedule import Limits
from smalti.schedule.space import space


def target_of(level: FeatureLevel, disassembly: Callable[[bytes, int], str]) -> Target:
    """The target of a feature level; `disassembly` gives the instructions of code from a byte on as
    text."""
    products = (*INTEGER_PRODUCTS, *((WORDS,) if level.words else ())) if level.integers else ()
    return Target(
        level.name, frozenset((*FUNCTIONS, *products)),
        ("f32", "bf16"), (*HALVES, *FORMATS),
        first=choose, space=space, arithmetic=arithmetic,
        lower=lambda kernel, schedule, _: lower(kernel, schedule, level),
        encode=encoded, cost=None, lowered=NativeKernel,
        listing=lambda step: disassembly(step.code.bytes, step.code.entry),
        refusal=Refusal((OverflowError,), "too large for the addresses of one kernel:",
                        "choose smaller sizes"),
        placed=lambda step, references: _Code(step),
        pack=lambda packed, strides, dtype: lower_packing(packed, strides, level, dtype),
        beside_integers=("bf16" if level.pairs else "f32") if level.integers else "",
        multiplies_bytes=level.quads,
        pairs_of_bytes=level.integers == "words",
        lacks={} if level.integers else {"int8": NO_INTEGERS},
        winograd=True, strips=True, usual=limits(level), needs=level.needs)


NO_INTEGERS = "has no kernels for products of 8 bits at this level; use bf16 or f32"
"""What is said of precision "int8" at a level without them."""


class _Code:
    """A step by its code: equal code is one function, whatever kernel it belongs to."""

    def __init__(self, step: KernelStep) -> None:
        self.code = step.code
        self._key = step.code.bytes, step.code.entry

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Code) and self._key == other._key


def encoded(functions: Sequence[_Code], limits: Limits) -> EncodedFunctions:
    """All functions in one block."""
    return EncodedFunctions(*joined([each.code for each in functions]))
