"""Models of a few weights, adapters of random numbers, and what a change makes of a weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from smalti.checkpoint.adapters import AdapterFile

Arrays = dict[str, np.ndarray]


class Weights:
    """Weights in memory that read as a checkpoint does."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def dtype(self, name: str) -> str:
        kind = self.arrays[name].dtype.name
        return {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[kind]

    def read(self, name: str) -> np.ndarray:
        return self.arrays[name].astype(np.float32)

    def floats(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def drop(self, name: str) -> None:
        """Nothing to let go of."""


def random_arrays(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def opened(folder: Path, arrays: Arrays, name: str = "adapter.safetensors") -> AdapterFile:
    """The adapter that holds these tensors."""
    save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, folder / name)
    return AdapterFile.open(folder / name)


# ---------------------------------------------------------------------- formulas, in f64


def lora(weight: np.ndarray, t: Arrays) -> np.ndarray:
    """Up @ down times alpha / rank; alpha 0 or missing is the rank, `scale` replaces both."""
    down, up = t["lora_down.weight"], t["lora_up.weight"]
    rank = down.shape[0]
    scale = float(t["scale"]) if "scale" in t else float(t.get("alpha", 0) or rank) / rank
    if "lora_mid.weight" in t:
        delta = np.einsum("ijkl,pi,jr->prkl", t["lora_mid.weight"], up[:, :, 0, 0],
                          down[:, :, 0, 0])
    else:
        delta = up.reshape(len(up), -1) @ down.reshape(rank, -1)
    return scale * delta.reshape(weight.shape)


def loha(weight: np.ndarray, t: Arrays) -> np.ndarray:
    """The product, number by number, of two low-rank ones."""
    sides = []
    for side in "12":
        a, b = t[f"hada_w{side}_a"], t[f"hada_w{side}_b"]
        core = t.get(f"hada_t{side}")
        sides.append(a @ b if core is None else np.einsum("ijkl,jr,ip->prkl", core, b, a))
    rank = t["hada_w1_b"].shape[0]
    return (sides[0] * sides[1]).reshape(weight.shape) * float(t.get("alpha", 0) or rank) / rank


def lokr(weight: np.ndarray, t: Arrays) -> np.ndarray:
    """The Kronecker product of two, each whole or of factors."""
    rank, alpha = None, float(t.get("alpha", 0))
    if "lokr_w1" in t:
        w1 = t["lokr_w1"]
    else:
        w1, rank = t["lokr_w1_a"] @ t["lokr_w1_b"], len(t["lokr_w1_b"])
    if "lokr_w2" in t:
        w2 = t["lokr_w2"]
    else:
        a, b, rank = t["lokr_w2_a"], t["lokr_w2_b"], len(t["lokr_w2_b"])
        if "lokr_t2" in t:
            w2 = np.einsum("ijkl,jr,ip->prkl", t["lokr_t2"], b, a)
        else:
            w2 = a @ b.reshape(rank, -1)
            if weight.ndim == 4:
                w2 = w2.reshape(len(a), -1, *weight.shape[2:])
    if w2.ndim == 4:
        w1 = w1.reshape(*w1.shape, 1, 1)
    scale = alpha / rank if rank and alpha else 1.0
    return scale * np.kron(w1, w2).reshape(weight.shape)


def difference(weight: np.ndarray, t: Arrays) -> np.ndarray:
    """A difference as it is stored, or to the weight that is stored."""
    if "set_weight" in t:
        return t["set_weight"] - weight
    return (t["diff"] if "diff" in t else t["w_norm"]).reshape(weight.shape)


def decomposed(weight: np.ndarray, delta: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """What DoRA makes of a change: the merged weight with these norms, of its rows where the first
    axis of the norms is that of rows, else of its inputs."""
    merged = weight + delta
    axes = tuple(range(1, weight.ndim)) if norms.shape[0] == weight.shape[0] else (
        0, *range(2, weight.ndim))
    length = np.sqrt((merged ** 2).sum(axis=axes, keepdims=True))
    return merged * norms.reshape(length.shape) / length - weight


FORMULAS = {"lora_down.weight": lora, "hada_w1_a": loha, "lokr_w1": lokr, "lokr_w1_a": lokr,
            "diff": difference, "w_norm": difference, "set_weight": difference}


def merged(weight: np.ndarray, tensors: Arrays, strength: float) -> np.ndarray:
    """The weight after a change, in f64."""
    weight = weight.astype(np.float64)
    t = {role: value.astype(np.float64) for role, value in tensors.items()}
    formula = next(FORMULAS[role] for role in t if role in FORMULAS)
    delta = formula(weight, t)
    if "dora_scale" in t:
        delta = decomposed(weight, delta, t["dora_scale"])
    return weight + strength * delta


def off(found: np.ndarray, expected: np.ndarray) -> float:
    """The relative distance in the Euclidean norm."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
