"""The dojo as an environment of gymnasium (the `[dojo]` extra).

An episode is one kernel on one device. An action is the choice of one field, in the order of the
space; the mask says which choices leave a legal schedule. The reward comes with the last field:
minus the logarithm of the time over that of the best schedule, so 0 is the most there is.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from smalti.dojo.task import Draw

FEATURE_MAX = 10.0
"""The largest absolute value of a feature: features are half the logarithm of a ratio to the usual
figure, so 10 stands for e^20 times as much."""
ILLEGAL = -10.0
"""The reward of a choice that leaves no legal schedule, and ends the episode: as of a schedule that
takes e^10 times as long as the best."""


class ScheduleEnv(gymnasium.Env[dict[str, np.ndarray], np.int64]):
    """Schedule kernels of one level; `draw` makes the task of an episode.

    An observation has `features` of device and problem, `made` the choices so far (-1 for those to
    come), and `mask`. `info["action_mask"]` is the mask as gymnasium's samplers take it;
    `info["regret"]`, with the last step, the time over that of the best schedule.

    >>> from smalti import dojo
    >>> environment = ScheduleEnv(dojo.level("simulator"))
    >>> seen, info = environment.reset(seed=0)
    >>> action = environment.action_space.sample(info["action_mask"])
    >>> seen, reward, done, cut, info = environment.step(action)
    >>> reward, done, cut
    (0.0, False, False)
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._task = task = draw(np.random.default_rng(0))
        fields, width = len(task.space.fields), task.space.width
        self.observation_space = spaces.Dict({
            "features": spaces.Box(-FEATURE_MAX, FEATURE_MAX, task.features.shape, np.float32),
            "made": spaces.Box(-1, width - 1, (fields,), np.int8),
            "mask": spaces.MultiBinary(width)})
        self.action_space = spaces.Discrete(width)
        self._made: list[int] = []
        self._node = 0

    def reset(self, *, seed: int | None = None,
              options: dict[str, Any] | None = None) -> tuple[dict[str, np.ndarray], dict]:
        """Begin with a new task, or with `options["task"]`."""
        super().reset(seed=seed)
        given = (options or {}).get("task")
        self._task = self._draw(self.np_random) if given is None else given
        self._made, self._node = [], 0
        return self._observed(), self._told()

    def step(self, action: np.int64) -> tuple[dict[str, np.ndarray], float, bool, bool, dict]:
        """Choose the value of the next field."""
        task, choice = self._task, int(action)
        if not task.space.mask(self._node)[choice]:
            return self._observed(), ILLEGAL, True, False, self._told()
        self._made.append(choice)
        following = int(task.space.tree[self._node, choice])
        if len(self._made) < len(task.space.fields):
            self._node = following
            return self._observed(), 0.0, False, False, self._told()
        info = {**self._told(), "regret": float(task.regret(following)), "candidate": following}
        return self._observed(), float(task.reward(following)), True, False, info

    def _observed(self) -> dict[str, np.ndarray]:
        fields = len(self._task.space.fields)
        made = np.full(fields, -1, np.int8)
        made[:len(self._made)] = self._made
        return {"features": self._task.features.copy(), "made": made,
                "mask": self._mask().astype(np.int8)}

    def _mask(self) -> np.ndarray:
        """Legal choices; all are at the end, where none is asked."""
        if len(self._made) == len(self._task.space.fields):
            return np.ones(self._task.space.width, bool)
        return self._task.space.mask(self._node)

    def _told(self) -> dict[str, Any]:
        return {"task": self._task.name, "action_mask": self._mask().astype(np.int8)}
