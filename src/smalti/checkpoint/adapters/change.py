"""What an adapter does to one layer: the formulas of all kinds of change.

All are written for a weight W [rows, ...] as dW in f32, which is what the change adds at a strength
of one. Sources: Hu et al. 2021 (LoRA, arXiv:2106.09685); Hyeon-Woo et al. 2021 (FedPara, here
LoHa, arXiv:2108.06098); Yeh et al. 2023 (LyCORIS: LoCon, LoKr, arXiv:2309.14859); Liu et al. 2024
(DoRA, arXiv:2402.09353).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass
from smalti.errors import CheckpointError
from smalti.runtime.tensor_file import Tensors

Floats = npt.NDArray[np.float32]
Shape = tuple[int, ...]

KINDS = {
    "LoRA": {"down", "up"},
    "LoHa": {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"},
    "LoKr": {"lokr_w1", "lokr_w1_a", "lokr_w2", "lokr_w2_a"},
    "full": {"diff", "w_norm", "set_weight"},
    "bias": {"diff_b", "b_norm", "set_bias"},
}
"""Kind of change -> the roles that show it; the first kind of which one is there."""
SCALES = ("alpha", "scale")
BIASES = ("diff_b", "b_norm", "set_bias", "up_bias")
EPSILON = np.finfo(np.float32).eps
ALONE_MAX = 1 << 18
"""Multiplications that OpenBLAS, which numpy comes with, does in the thread that asks for them.

Weights are bound by all threads at once; those of the BLAS would wait for each other, in turn."""
TILE_WIDTH = 256
"""Columns of a tile of a product that is computed in tiles, at most: 1 KiB of each row, as f32."""


class Unfit(CheckpointError):
    """A layer's tensors do not make up a change; the message is a reason, not a sentence."""


@dataclass(frozen=True)
class LayerChange:
    """What an adapter has for the layer that it calls `module`: role -> name of the tensor.

    `alpha` is the one stated for the whole adapter, where its tensors say nothing.
    """

    module: str
    roles: Mapping[str, str]
    file: Tensors
    alpha: float | None = None

    @cached_property
    def kind(self) -> str:
        """One of `KINDS`, or what else the tensors are."""
        for kind, marks in KINDS.items():
            if marks & self.roles.keys():
                return kind
        return "other"

    @property
    def idle(self) -> list[str]:
        """Tensors that have no part in a change of this kind."""
        part = (_whole_role(self),) if self.kind == "full" else _PARTS.get(self.kind, ())
        return [name for role, name in self.roles.items()
                if not role.startswith(part) and role not in (*SCALES, *BIASES, "norms",
                                                              "magnitude", "down_bias")]

    @property
    def decomposed(self) -> bool:
        """Whether the norms of the weight are changed apart from its directions (DoRA)."""
        return bool({"norms", "magnitude"} & self.roles.keys())

    @property
    def sets(self) -> bool:
        """Whether the new weight is given, not the difference."""
        return bool({"set_weight", "set_bias"} & self.roles.keys())

    # ------------------------------------------------------------------ from shapes alone

    def shape(self, role: str) -> Shape:
        """The shape of the tensor of a role."""
        return self.file.shape(self.roles[role])

    @cached_property
    def extent(self) -> tuple[int, int] | None:
        """Rows of dW, and numbers in each; None where only a bias changes.

        Raises Unfit with what is wrong for tensors that make no change together.
        """
        if empty := [role for role in self.roles if 0 in self.shape(role)]:
            raise Unfit(f"{empty[0]} holds no numbers")
        extent = _EXTENTS.get(self.kind, _unknown)(self)
        if extent and self.decomposed:
            _check_norms(self, *extent)
        for role in SCALES:
            if role in self.roles and math.prod(self.shape(role)) != 1:
                raise Unfit(f"{role} of shape {self.shape(role)}, expected one number")
        return extent

    @property
    def inputs(self) -> int | None:
        """Numbers that the layer reads at a place: the second axis of its weight, if that shows.

        Raises Unfit as `extent` does.
        """
        if self.extent is None:
            return None
        return self.shape("down")[1] if self.kind == "LoRA" else self.extent[1]

    @property
    def rank(self) -> int | None:
        """The inner extent of the factors, which make a change; None where there are none."""
        role = {"LoRA": "down", "LoHa": "hada_w1_b"}.get(self.kind)
        if self.kind == "LoKr":
            role = next((r for r in ("lokr_w2_b", "lokr_w1_b") if r in self.roles), None)
        return self.shape(role)[0] if role else None

    # ------------------------------------------------------------------ numbers

    @cached_property
    def scale(self) -> float:
        """What the product of the factors is multiplied with: `scale`, or alpha / rank."""
        if self.kind in ("full", "bias"):
            return 1.0
        if "scale" in self.roles:
            return self._number("scale")
        rank = self.rank
        alpha = self._number("alpha") if "alpha" in self.roles else self.alpha
        return alpha / rank if rank and alpha else 1.0

    def _number(self, role: str) -> float:
        value = float(self._read(role).reshape(()))
        if not math.isfinite(value):
            raise CheckpointError(f"{self.roles[role]!r} is {value}; expected a finite number; the "
                                  f"adapter is damaged")
        return value

    def _read(self, role: str) -> Floats:
        return self.file.read(self.roles[role])

    def weight(self, strength: float, base: Callable[[], Floats], rows: slice) -> Floats:
        """`strength` times dW, of `rows` only, [count, numbers in a row].

        `base` gives the weight that is changed, [all rows, numbers in a row].
        """
        if self.kind == "full" and _whole_role(self) == "set_weight":
            return np.float32(strength) * (self._flat(self._read("set_weight")) - base())[rows]
        if not self.decomposed:
            return self._plain(strength, rows)
        weight = base()
        merged = weight + self._plain(1.0, slice(None))
        merged *= self._gain(merged)
        return np.float32(strength) * (merged - weight)[rows]

    def bias(self, strength: float, base: Callable[[], Floats], rows: slice) -> Floats:
        """`strength` times what is added to the bias, of `rows` only.

        `base` gives the bias that is changed. Asked of changes with one of the roles `BIASES`.
        """
        role = next(role for role in BIASES if role in self.roles)
        added = self._read(role).reshape(-1)
        if role == "set_bias":
            added = added - base()
        elif role == "up_bias":
            if "down_bias" in self.roles:
                up, down = self._flat(self._read("up")), self._read("down_bias").reshape(-1, 1)
                added = added + product(up, down)[:, 0]
            strength *= self.scale
        return (np.float32(strength) * added)[rows]

    def _plain(self, strength: float, rows: slice) -> Floats:
        """`strength` times dW without norms, of `rows` only."""
        return _PRODUCTS[self.kind](self, np.float32(strength * self.scale), rows)

    def _flat(self, array: Floats) -> Floats:
        return array.reshape(len(array), -1)

    def _gain(self, merged: Floats) -> Floats:
        """The wanted norms through those of the merged weight [rows, numbers in a row]: of each
        row, or of each input over all rows and taps."""
        role, of_rows = _norms(self, len(merged))
        norms = self._read(role).reshape(-1)
        if of_rows:
            return norms[:, None] / (np.linalg.norm(merged, axis=1, keepdims=True) + EPSILON)
        taps = merged.reshape(len(merged), norms.size, -1)
        found = np.sqrt(np.einsum("rit,rit->i", taps, taps)) + EPSILON
        return np.repeat(norms / found, taps.shape[2])


def _norms(change: LayerChange, rows: int) -> tuple[str, bool]:
    """The role of the norms of DoRA, and whether they are of rows: PEFT's always, those of LyCORIS
    where there are as many along the first axis."""
    if "magnitude" in change.roles:
        return "magnitude", True
    return "norms", change.shape("norms")[:1] == (rows,)


def _check_norms(change: LayerChange, rows: int, width: int) -> None:
    role, of_rows = _norms(change, rows)
    count = math.prod(change.shape(role))
    if (count != rows) if of_rows else (not count or width % count):
        raise Unfit(f"norms of shape {change.shape(role)} for a weight of {rows} rows of {width}")


def product(left: Floats, right: Floats) -> Floats:
    """left @ right, in tiles of `ALONE_MAX` multiplications.

    >>> product(np.float32([[1, 2]]), np.float32([[3], [4]])).tolist()
    [[11.0]]
    """
    (rows, inner), columns = left.shape, right.shape[1]
    result = np.empty((rows, columns), np.float32)
    area = max(1, ALONE_MAX // max(1, inner))
    width = min(columns, TILE_WIDTH, max(1, math.isqrt(area)))
    height = max(1, area // max(1, width))
    for top in range(0, rows, height):
        for at in range(0, columns, width):
            np.matmul(left[top:top + height], right[:, at:at + width],
                      out=result[top:top + height, at:at + width])
    return result


# ---------------------------------------------------------------------- LoRA and LoCon


def _factors(change: LayerChange) -> tuple[int, int]:
    """Down [rank, inputs, ...], mid [rank, rank, ...] where there is one, up [rows, rank]."""
    down, up = (_needed(change, role) for role in ("down", "up"))
    if len(up) < 2 or len(down) < 2 or up[1] != down[0] or math.prod(up[2:]) != 1:
        raise Unfit(f"factors of shapes {up} and {down}")
    if "mid" not in change.roles:
        return up[0], math.prod(down[1:])
    mid = change.shape("mid")
    if len(mid) < 2 or mid[:2] != (up[1], down[0]) or math.prod(down[2:]) != 1:
        raise Unfit(f"factors of shapes {up}, {mid} and {down}")
    return up[0], down[1] * math.prod(mid[2:])


def _low_rank(change: LayerChange, strength: np.float32, rows: slice) -> Floats:
    """dW = up @ down, or the sum over i and j of up[p, i] mid[i, j, ...] down[j, r]."""
    up, down = change._flat(change._read("up"))[rows] * strength, change._read("down")
    if "mid" not in change.roles:
        return product(up, change._flat(down))
    return _tucker(change._read("mid"), up.T, change._flat(down))


def _tucker(core: Floats, left: Floats, right: Floats) -> Floats:
    """The core [i, j, taps] between left [i, p] and right [j, r], as [p, r x taps]."""
    (i, j), p, r = core.shape[:2], left.shape[1], right.shape[1]
    half = product(left.T, core.reshape(i, -1)).reshape(p, j, -1)         # [p, j, taps]
    turned = half.transpose(0, 2, 1).reshape(-1, j)                       # [p x taps, j]
    return product(turned, right).reshape(p, -1, r).transpose(0, 2, 1).reshape(p, -1)


# ---------------------------------------------------------------------- LoHa


def _hadamard_extent(change: LayerChange) -> tuple[int, int]:
    first, second = (_hadamard_side(change, side) for side in "12")
    if first != second:
        raise Unfit(f"sides of {first} and {second} rows and numbers")
    return first


def _hadamard_side(change: LayerChange, side: str) -> tuple[int, int]:
    a, b = (_needed(change, f"hada_w{side}_{factor}") for factor in "ab")
    if len(a) != 2 or len(b) != 2:
        raise Unfit(f"factors of shapes {a} and {b}")
    if f"hada_t{side}" not in change.roles:
        if a[1] != b[0]:
            raise Unfit(f"factors of shapes {a} and {b}")
        return a[0], b[1]
    core = change.shape(f"hada_t{side}")
    if len(core) < 3 or core[:2] != (a[0], b[0]):
        raise Unfit(f"factors of shapes {a}, {core} and {b}")
    return a[1], b[1] * math.prod(core[2:])


def _hadamard(change: LayerChange, strength: np.float32, rows: slice) -> Floats:
    """dW = (w1_a @ w1_b) * (w2_a @ w2_b), each through a core where there is one."""
    sides = []
    for side in "12":
        a, b = (change._read(f"hada_w{side}_{factor}") for factor in "ab")
        if core := change.roles.get(f"hada_t{side}"):
            sides.append(_tucker(change.file.read(core), a[:, rows], b))
        else:
            sides.append(product(a[rows], b))
    return sides[0] * sides[1] * strength


# ---------------------------------------------------------------------- LoKr


def _kronecker_extent(change: LayerChange) -> tuple[int, int]:
    (a, b, none), (c, d, taps) = (_kronecker_side(change, side) for side in "12")
    if math.prod(none) != 1:
        raise Unfit(f"lokr_w1 with a kernel of {none}")
    return a * c, b * d * math.prod(taps)


def _kronecker_side(change: LayerChange, side: str) -> tuple[int, int, Shape]:
    """Rows, columns and taps of w1 or w2."""
    name = f"lokr_w{side}"
    if name in change.roles:
        shape = change.shape(name)
        if len(shape) < 2:
            raise Unfit(f"{name} of shape {shape}")
        return shape[0], shape[1], shape[2:]
    a, b = (_needed(change, f"{name}_{factor}") for factor in "ab")
    if "lokr_t2" in change.roles and side == "2":
        core = change.shape("lokr_t2")
        if len(core) < 3 or len(a) != 2 or len(b) != 2 or core[:2] != (a[0], b[0]):
            raise Unfit(f"factors of shapes {a}, {core} and {b}")
        return a[1], b[1], core[2:]
    if len(a) != 2 or len(b) < 2 or a[1] != b[0]:
        raise Unfit(f"factors of shapes {a} and {b}")
    return a[0], b[1], b[2:]


def _kronecker(change: LayerChange, strength: np.float32, rows: slice) -> Floats:
    """dW = w1 (x) w2: a copy of w2 for each number of w1.

    The columns of a factored w2 hold the taps of a kernel, too, innermost as in the weight.
    """
    w1, w2 = (_kronecker_factor(change, side) for side in "12")
    w1 = w1.reshape(w1.shape[:2])
    product = np.einsum("ab,cdt->acbdt", w1 * strength, w2.reshape(*w2.shape[:2], -1))
    return np.ascontiguousarray(product).reshape(len(w1) * len(w2), -1)[rows]


def _kronecker_factor(change: LayerChange, side: str) -> Floats:
    name = f"lokr_w{side}"
    if name in change.roles:
        return change._read(name)
    a, b = change._read(f"{name}_a"), change._read(f"{name}_b")
    if side == "2" and "lokr_t2" in change.roles:
        return _tucker(change._read("lokr_t2"), a, b).reshape(a.shape[1], b.shape[1], -1)
    return product(a, change._flat(b)).reshape(len(a), *b.shape[1:])


# ---------------------------------------------------------------------- differences


def _whole_extent(change: LayerChange) -> tuple[int, int]:
    shape = change.shape(_whole_role(change))
    if not shape:
        raise Unfit("one number, expected a weight")
    return shape[0], math.prod(shape[1:])


def _whole_role(change: LayerChange) -> str:
    return next(role for role in ("diff", "w_norm", "set_weight") if role in change.roles)


def _whole(change: LayerChange, strength: np.float32, rows: slice) -> Floats:
    """dW as it is stored."""
    return change._flat(change._read(_whole_role(change)))[rows] * strength


def _needed(change: LayerChange, role: str) -> Shape:
    if role not in change.roles:
        raise Unfit(f"{role} is missing")
    return change.shape(role)


def _unknown(change: LayerChange) -> tuple[int, int]:
    raise Unfit("a kind of change that Smalti does not know")


_EXTENTS: Mapping[str, Callable[[LayerChange], tuple[int, int] | None]] = {
    "LoRA": _factors,
    "LoHa": _hadamard_extent,
    "LoKr": _kronecker_extent,
    "full": _whole_extent,
    "bias": lambda change: None,
}
_PARTS: Mapping[str, tuple[str, ...]] = {
    "LoRA": ("down", "up", "mid"),
    "LoHa": ("hada_",),
    "LoKr": ("lokr_",),
}
"""Kind of change -> what the roles of its tensors begin with."""
_PRODUCTS: Mapping[str, Callable[[LayerChange, np.float32, slice], Floats]] = {
    "LoRA": _low_rank,
    "LoHa": _hadamard,
    "LoKr": _kronecker,
    "full": _whole,
}
