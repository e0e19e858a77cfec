"""An agent's policy: a small network in numpy that gives each choice for a field a probability.

Its inputs are the features of a task and all choices so far (one-hot); two hidden layers follow;
each field of a schedule has its own output layer. Illegal choices have probability 0.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from smalti.dojo.space import Space
from smalti.dojo.task import Task
from smalti.errors import InputError

HIDDEN = 128
"""Units of each hidden layer."""
WEIGHTS = ("first", "first_bias", "second", "second_bias", "last", "last_bias")
BYTES_MAX = 64 << 20
"""Larger files are not read; an agent for product schedules has 0.1 MB."""


class Policy:
    """Probabilities of choices; `weights` are f32 arrays by the names in `WEIGHTS`.

    >>> from smalti.dojo.space import product_space
    >>> policy = Policy.new(product_space(), features=11, seed=0)
    >>> inputs = policy.seen(np.zeros((3, 11), np.float32), np.zeros((3, 10), int), depth=0)
    >>> policy.probabilities(inputs, 0, policy.space.mask(np.zeros(3, int))).sum(1).round(5)
    array([1., 1., 1.], dtype=float32)
    """

    def __init__(self, space: Space, weights: dict[str, np.ndarray]) -> None:
        self.space = space
        self.weights = weights

    @classmethod
    def new(cls, space: Space, features: int, seed: int = 0) -> Policy:
        """An untrained policy, nearly uniform, for tasks with so many features."""
        random = np.random.default_rng(seed)
        count, width = len(space.fields), space.width
        inputs = features + count * width

        def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
            scale = gain / np.sqrt(rows)
            return (scale * random.standard_normal((rows, columns))).astype(np.float32)

        return cls(space, {
            "first": matrix(inputs, HIDDEN), "first_bias": np.zeros(HIDDEN, np.float32),
            "second": matrix(HIDDEN, HIDDEN), "second_bias": np.zeros(HIDDEN, np.float32),
            "last": matrix(HIDDEN, count * width, 0.01),
            "last_bias": np.zeros(count * width, np.float32)})

    def saved(self) -> bytes:
        """The weights as the content of an .npz file."""
        content = io.BytesIO()
        arrays: dict[str, Any] = dict(self.weights)
        np.savez(content, **arrays)
        return content.getvalue()

    @classmethod
    def load(cls, path: Path, space: Space) -> Policy:
        """The policy in a file that `saved` gave the content of. Raises InputError for others."""
        wrong = f"{path} is no agent that `smalti dojo train` wrote for {space.name} schedules"
        try:
            if path.stat().st_size > BYTES_MAX:
                raise InputError(f"{wrong}: it has over {BYTES_MAX >> 20} MiB")
            with np.load(path, allow_pickle=False) as file:
                weights = {name: file[name] for name in WEIGHTS}
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror or error})") from None
        except (ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile):
            # ValueError advises to unpickle; TypeError: a single array, which no `with` takes
            raise InputError(wrong) from None
        outputs = len(space.fields) * space.width
        inputs = weights["first"].shape[0] if weights["first"].ndim == 2 else 0
        shapes = {"first": (inputs, HIDDEN), "first_bias": (HIDDEN,), "second": (HIDDEN, HIDDEN),
                  "second_bias": (HIDDEN,), "last": (HIDDEN, outputs), "last_bias": (outputs,)}
        if any(weights[name].shape != shape or weights[name].dtype != np.float32
               or not np.isfinite(weights[name]).all() for name, shape in shapes.items()):
            raise InputError(wrong)
        return cls(space, weights)

    @property
    def features(self) -> int:
        """Number of features of a task among the inputs."""
        return len(self.weights["first"]) - len(self.space.fields) * self.space.width

    def seen(self, features: np.ndarray, picks: np.ndarray, depth: int) -> np.ndarray:
        """Inputs of the network for field number `depth`: [n, inputs]; `picks` [n, fields]."""
        count, width = len(self.space.fields), self.space.width
        made = np.zeros((len(features), count, width), np.float32)
        rows = np.arange(len(features))
        for field in range(depth):
            made[rows, field, picks[:, field]] = 1
        return np.hstack([features, made.reshape(len(features), -1)])

    def hidden(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values of both hidden layers."""
        w = self.weights
        one = np.tanh(inputs @ w["first"] + w["first_bias"])
        return one, np.tanh(one @ w["second"] + w["second_bias"])

    def probabilities(self, inputs: np.ndarray, depth: int, legal: np.ndarray) -> np.ndarray:
        """Probabilities of the choices for field number `depth`: [n, width], 0 if not legal."""
        return self.shares(self.hidden(inputs)[1], depth, legal)

    def shares(self, hidden: np.ndarray, depth: int, legal: np.ndarray) -> np.ndarray:
        """The same, from the values of the second hidden layer."""
        own = slice(depth * self.space.width, (depth + 1) * self.space.width)
        scores = hidden @ self.weights["last"][:, own] + self.weights["last_bias"][own]
        scores = np.where(legal, scores, -np.inf)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    def ranking(self, task: Task) -> np.ndarray:
        """All candidates, the most probable one first."""
        space = self.space
        node, logs = np.zeros(1, np.int64), np.zeros(1)
        picks = np.zeros((1, len(space.fields)), np.int64)
        for depth in range(len(space.fields)):
            features = np.repeat(task.features[None], len(node), axis=0)
            legal = space.mask(node)
            shares = self.probabilities(self.seen(features, picks, depth), depth, legal)
            rows, choices = np.nonzero(legal)
            node, picks = space.tree[node[rows], choices], picks[rows]
            picks[:, depth] = choices
            logs = logs[rows] + np.log(np.maximum(shares[rows, choices], np.finfo("f4").tiny))
        return node[np.argsort(-logs, kind="stable")]


def drawn(shares: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw a choice for each row of probabilities [n, width]: [n]."""
    sums = shares.cumsum(1)
    return (sums < random.random((len(shares), 1)) * sums[:, -1:]).sum(1)
