"""Predicts how long an operation takes on a device, from its shapes alone.

    machine.estimate(device, op="mat_mul", m=4096, n=320, k=1280, dtype="bf16").microseconds
    machine.estimate(device, op="attention", batch=2, sequence=4096, heads=8, head_dim=40)
    machine.estimate(device, op="conv", x=(2, 320, 64, 64), w=(320, 320, 3, 3), pads=(1, 1, 1, 1))
    machine.estimate(device, op="softmax", rows=4096, columns=4096)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.machine import attention, convolution, product, rows
from smalti.machine.device import BYTES, DeviceModel
from smalti.machine.family import LIMITS, KernelFamily, Sizes, Timing

IDLE_SHARE = 0.35
"""Power of a device that waits for memory, as a share of its power limit: a guess."""
FIELDS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    "mat_mul": (("m", "n", "k"), {"batch": 1}),
    "attention": (("batch", "sequence", "heads", "head_dim"), {}),
    "conv": (("x", "w"), {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1),
                          "group": 1, "algorithm": None}),
    **{op: (("rows", "columns"), {}) for op in rows.PASSES},
}
"""For each operation: the fields that have to be given, and those that may be, with defaults."""


@dataclass(frozen=True)
class Estimate:
    """The prediction for one kernel.

    `binds` is what limits it: "launch", "arithmetic", "special functions", "cache", "memory" or
    "latency". `bytes` are those from and to memory. `flops` of a convolution are those of the
    direct algorithm, whatever the algorithm. `joules` are a guess from the power limit of the
    device.
    """

    microseconds: float
    joules: float
    bytes: float
    flops: float
    binds: str
    algorithm: str = ""


@dataclass(frozen=True)
class Problem:
    """An operation with its sizes, as the family of kernels that times it wants them."""

    family: KernelFamily
    dtype: str
    sizes: Mapping[str, float]

    @property
    def key(self) -> str:
        """The key under which a device model has what calibration has found for such kernels."""
        return self.family.key(self.dtype)


def estimate(device: DeviceModel, op: str, dtype: str = "f32", **fields: Any) -> Estimate:
    """Time, energy and traffic of one operation as the best kernel of a library would compute it.

    `mat_mul` takes m, n, k and batch; `attention` batch, sequence, heads and head_dim; `conv` the
    shapes x [n, channels, height, width] and w [filters, channels / group, height, width] with
    ONNX's strides, pads, dilations and group, and an algorithm (default: the fastest that is
    legal); element-wise operations, softmax and normalisations rows and columns. Raises InputError
    for unknown operations and fields.

    >>> from smalti import machine
    >>> found = estimate(machine.device("rtx_4060"), "mat_mul", "bf16", m=4096, n=4096, k=4096)
    >>> 4000 < found.microseconds < 7000, found.binds
    (True, 'arithmetic')
    """
    found = [(timed(device, problem), algorithm)
             for problem, algorithm in problems(op, dtype, fields)]
    timing, algorithm = min(found, key=lambda entry: entry[0].seconds[0])
    seconds, binds = float(timing.seconds[0]), LIMITS[int(timing.binds[0])]
    busy = min(1.0, float(timing.flops[0]) / seconds / device.rate(dtype))
    return Estimate(1e6 * seconds, seconds * device.watts * (IDLE_SHARE + (1 - IDLE_SHARE) * busy),
                    float(timing.bytes[0]), float(timing.flops[0]), binds, algorithm)


def problems(op: str, dtype: str, fields: Mapping[str, Any]) -> list[tuple[Problem, str]]:
    """The problems by which an operation can be computed, each with the name of its algorithm."""
    given = _checked(op, dtype, fields)
    if op == "conv":
        window = tuple(given["w"][2:])
        names = [given["algorithm"]] if given["algorithm"] else convolution.legal(
            window, tuple(given["strides"]), tuple(given["dilations"]), given["group"])
        sizes = _conv_sizes(given)
        return [(Problem(convolution.family(name), dtype, sizes), name) for name in names]
    if op == "mat_mul":
        family = product.FAMILY
    elif op == "attention":
        family = attention.FAMILY
    else:
        family = rows.FAMILY
        given |= {"passes": rows.PASSES[op], "reduces": float(op in rows.REDUCING),
                  "flops": rows.FLOPS.get(op, 1)}
    return [(Problem(family, dtype, {name: float(given[name]) for name in family.fields}), "")]


def _checked(op: str, dtype: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of an operation, with defaults filled in. Raises InputError for missing, unknown
    or senseless ones."""
    if op not in FIELDS:
        raise InputError(f"operation {op!r}; the timing model knows {', '.join(FIELDS)}")
    if dtype not in BYTES:
        raise InputError(f"dtype {dtype!r}; the timing model knows {', '.join(BYTES)}")
    needed, optional = FIELDS[op]
    missing = [name for name in needed if name not in fields]
    unknown = [name for name in fields if name not in needed and name not in optional]
    if missing or unknown:
        raise InputError(
            f"{op} takes {', '.join(needed)}" + f" and may take {', '.join(optional)}"
            * bool(optional) + f"; missing: {', '.join(missing) or 'none'}; unknown: "
            + (", ".join(unknown) or "none"))
    given = {**optional, **fields}
    for name in needed:
        if not np.all(np.asarray(given[name]) > 0):
            raise InputError(f"{op}: {name} is {given[name]}; more than 0 is expected")
    return given


def _conv_sizes(given: Mapping[str, Any]) -> dict[str, float]:
    """Sizes of a convolution. Raises InputError for shapes that do not fit each other."""
    x, w, group = given["x"], given["w"], given["group"]
    if len(x) != 4 or len(w) != 4 or x[1] != w[1] * group:
        raise InputError(f"conv: x {tuple(x)}, w {tuple(w)}, group {group}; expected "
                         f"[n, channels, height, width], [filters, channels / group, h, w]")
    out = _extents(x[2:], w[2:], given["strides"], given["pads"], given["dilations"])
    names = convolution.FIELDS
    return dict(zip(names, map(float, (*x, w[0], *w[2:], *out, group)), strict=True))


def _extents(image: Sequence[int], window: Sequence[int], strides: Sequence[int],
             pads: Sequence[int], dilations: Sequence[int]) -> tuple[int, int]:
    """Height and width of a result."""
    height, width = ((image[i] + pads[i] + pads[i + 2] - dilations[i] * (window[i] - 1) - 1)
                     // strides[i] + 1 for i in range(2))
    if min(height, width) < 1:
        raise InputError(f"conv: a window of {tuple(window)} does not fit into {tuple(image)} "
                         f"with pads {tuple(pads)}")
    return height, width


def timed(device: DeviceModel, problem: Problem) -> Timing:
    """The timing of one problem."""
    sizes = {name: np.array([float(size)]) for name, size in problem.sizes.items()}
    return timed_all(device, problem.family, problem.dtype, sizes)


def timed_all(device: DeviceModel, family: KernelFamily, dtype: str, sizes: Sizes) -> Timing:
    """The timings of many problems of one family, with what calibration has found for it."""
    fitted = device.fitted.get(family.key(dtype))
    if fitted is None:
        return family.seconds(device, dtype, family.constants, sizes)
    found = family.seconds(device, dtype, fitted.constants, sizes)
    if fitted.residual is None:
        return found
    factor = fitted.residual.factor(places(family, sizes, found))
    return found._replace(seconds=found.seconds * factor)


def places(family: KernelFamily, sizes: Sizes, expected: Timing) -> np.ndarray:
    """The features of problems by which a residual compares them, [problems, features]: logarithms
    of their sizes, of the predicted time, and of the rates of arithmetic and memory at that
    time."""
    seconds = expected.seconds
    rates = (1 / seconds, 1 + expected.flops / seconds, 1 + expected.bytes / seconds)
    return np.log(np.stack([*(sizes[name] + 0.5 for name in family.fields),
                            *np.broadcast_arrays(*rates)], axis=1))
