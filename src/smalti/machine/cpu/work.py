"""Counts the work of a step of a kernel: clocks of a tile by kind, and bytes of each buffer.

Counts depend on the kernel, its schedule, and the vectors and caches of a core. `step_seconds`
makes seconds of them by the constants, which calibration may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from smalti.dataclass import dataclass
from smalti.kernel.form import Expr, Kernel, Load, functions, loads
from smalti.machine.cpu.core import Core
from smalti.schedule.merge import access

CONSTANTS: Mapping[str, float] = {
    "products": 1.04,   # clocks of multiply-adds, over the least that the ports allow
    "starts": 7.5,      # clocks to start a micro-kernel
    "vectors": 0.3,     # clocks of loop nests, over the least that the ports allow
    "functions": 0.86,  # clocks of functions, over those in `FUNCTION_CLOCKS`
    "transforms": 3.7,  # clocks of Winograd's transforms, over their additions: they spill
    "rows": 10.0,       # clocks of a row of a loop nest
    "tiles": 230.0,     # clocks of taking a tile and setting its addresses up
    "l2": 1.0,          # share of the bandwidth of the second-level cache that is reached
    "l3": 0.5,          # the same of the last cache
    "memory": 1.1,      # the same of the memory; reads and writes together may exceed 1
    "reach": 0.8,       # share of the memory's bandwidth that one core reaches alone
    "launch": 0.6,      # seconds of a barrier, over those of the device model
    "overlap": 1.9,     # exponent by which times are added: 1, no overlap; infinite, all
}
KINDS = ("products", "starts", "vectors", "functions", "transforms", "rows", "tiles")
LEVELS = ("l2", "l3", "memory")
"""Where bytes come from if they are not in the first-level cache."""

FUNCTION_CLOCKS = {
    "exp": 7.0, "sigmoid": 9.0, "silu": 9.0, "quick_gelu": 10.0, "gelu_tanh": 11.0, "gelu": 16.0,
    "erf": 14.0, "tanh": 12.0, "softplus": 20.0, "log": 14.0, "pow": 30.0, "sin": 14.0,
    "cos": 14.0, "sqrt": 5.0, "reciprocal": 4.0, "div": 4.0,
}
"""Clocks of a function of a vector, with two ports; functions not listed take one instruction."""
WIDENING = {"f32": 0, "f16": 1, "bf16": 2, "u8": 2, "i8": 2, "i16": 4, "i32": 1, "i64": 2,
            "bool": 2}
"""Instructions to convert a vector of each dtype to f32."""
ROUNDING, ROUNDING_PAIRS = 6, 1
"""Instructions to round a vector of f32 to bf16, without and with an instruction for that."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The bytes of a buffer that a step reads or writes: `once` each, and `again` in repeated
    reads.

    `held` is how many bytes a thread uses before it reads the same ones again. Reading from caches
    takes `pace` times as long as contiguous reading.
    """

    buffer: str
    once: float
    again: float = 0.0
    held: float = 0.0
    written: bool = False
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """A step: how many tiles, the clocks of a tile by kind (`KINDS`), and what it moves."""

    tiles: int
    clocks: Mapping[str, float]
    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an expression for each vector: instructions, and clocks of functions."""

    loads: float = 0.0
    arithmetic: float = 0.0
    functions: float = 0.0

    def clocks(self, core: Core, stores: float = 1.0) -> float:
        """Clocks of loads, stores and arithmetic, which overlap: the largest of the three."""
        return max(self.loads / core.ports, stores / core.stores, self.arithmetic / core.ports)


@lru_cache(maxsize=4096)
def cost(kernel: Kernel, value: Expr, axis: str, lanes: int, own: str = "") -> Cost:
    """The cost of the expression `value` for vectors along `axis`.

    Loads of the buffer `own` are of f32 in scratch memory. Loads whose address does not depend on
    the axis cost nothing here: they are done once for a row.
    """
    loaded = arithmetic = 0.0
    for load in dict.fromkeys(loads(value)):
        if load.buffer == own:
            loaded += 1
            continue
        found = access(kernel, load)
        step = found.stride(axis)
        if step == 1:
            loaded += 1
            arithmetic += WIDENING[found.dtype]
        elif step:
            loaded += lanes
            arithmetic += lanes
    special = 0.0
    for name in functions(value):
        if name in FUNCTION_CLOCKS:
            special += FUNCTION_CLOCKS[name]
        else:
            arithmetic += 1
    return Cost(loaded, arithmetic, special * lanes_share(lanes))


def lanes_share(lanes: int) -> float:
    """The clocks of functions for vectors of `lanes`, over those of 16 lanes: narrow vectors have a
    cheaper division, but as many instructions."""
    return 1.0 if lanes >= 16 else 0.9


def rounding(kernel: Kernel, core: Core, buffer: str = "out") -> float:
    """Instructions besides the store itself for storing a vector to a buffer: rounding."""
    if kernel.buffer(buffer).dtype != "bf16":
        return 0.0
    return ROUNDING_PAIRS if core.pairs else ROUNDING


def nest(core: Core, each: Cost, rows: float, extent: float, rounded: float = 0.0,
         stores: float = 1.0) -> dict[str, float]:
    """The clocks, by kind, of a loop nest over `rows` rows of `extent` elements."""
    vectors = rows * -(-extent // core.lanes)
    whole = Cost(each.loads, each.arithmetic + rounded, each.functions)
    return {"vectors": vectors * whole.clocks(core, stores),
            "functions": vectors * each.functions * 2 / core.ports, "rows": rows}


def summed(*parts: Mapping[str, float]) -> dict[str, float]:
    """The sum of clocks, by kind."""
    found: dict[str, float] = {}
    for part in parts:
        for kind, clocks in part.items():
            found[kind] = found.get(kind, 0.0) + clocks
    return found


def scaled(part: Mapping[str, float], times: float) -> dict[str, float]:
    """`times` times the clocks, by kind."""
    return {kind: times * clocks for kind, clocks in part.items()}


def others(kernel: Kernel, value: Expr, touched: Mapping[str, int], sizes: Mapping[str, float],
           own: str = "") -> tuple[Flow, ...]:
    """The flows of the buffers that an expression reads, each once."""
    names = dict.fromkeys(load.buffer for load in loads(value) if load.buffer != own)
    return tuple(Flow(name, float(touched[name] * sizes[name])) for name in names)


__all__ = ["CONSTANTS", "KINDS", "Cost", "Flow", "Load", "Work", "cost", "nest", "others",
           "rounding", "scaled", "summed"]
