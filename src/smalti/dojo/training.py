"""Training a baseline agent by policy gradients; episodes of one task are each other's baseline.

Williams 1992 (REINFORCE); the advantage of an episode is its reward less the mean of its group,
over the deviation, as in Shao et al. 2024 (GRPO, arXiv:2402.03300, section 4.1.2; not clipped,
since each batch is used once). Adam: Kingma and Ba 2015 (arXiv:1412.6980).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from smalti.dojo.policy import Policy, drawn
from smalti.dojo.task import Draw, Task

TASKS, EPISODES = 16, 32
"""In a batch: tasks, and episodes of each."""
POOL = 192
"""Tasks that are kept; the oldest ones are replaced while training goes on."""
RATE, ENTROPY = 2e-3, 0.02
"""The learning rate and the weight of the entropy bonus at the start; both fall to 0 in the end."""
MEMORY_1, MEMORY_2, EPSILON = 0.9, 0.999, 1e-8
"""Adam's beta 1, beta 2 and epsilon, as in its paper."""
REPORT_SECONDS = 2.0
"""Time between two lines of progress."""


def train(draw: Draw, seconds: float = 60.0, seed: int = 0, steps_max: int | None = None,
          progress: Callable[[str], None] = lambda line: None) -> Policy:
    """A policy trained for so many seconds, or so many steps, on tasks of one level.

    With `steps_max` and enough seconds the result depends on the seed alone.
    """
    started = time.perf_counter()
    random = np.random.default_rng(seed)
    pool = [draw(random)]
    policy = Policy.new(pool[0].space, len(pool[0].features), seed)
    adam, usual, told, step = Adam(policy.weights), 0.0, started, 0
    while steps_max is None or step < steps_max:
        spent = (time.perf_counter() - started) / seconds
        if spent >= 1:
            break
        share = spent if steps_max is None else step / steps_max
        fresh = draw(random)
        pool = [*pool, fresh] if len(pool) < POOL else [*pool[1:], fresh]
        tasks = [pool[i] for i in random.choice(len(pool), TASKS)]
        gradients, reward = episodes(policy, tasks, random, ENTROPY * (1 - share))
        adam.step(policy.weights, gradients, RATE * (1 - share))
        step += 1
        usual = reward if step == 1 else 0.98 * usual + 0.02 * reward
        if time.perf_counter() - told > REPORT_SECONDS:
            told = time.perf_counter()
            progress(f"{100 * share:.0f} %: {step} steps, schedules take {np.exp(-usual):.2f} "
                     f"times as long as the best")
    return policy


def episodes(policy: Policy, tasks: list[Task], random: np.random.Generator,
             entropy: float) -> tuple[dict[str, np.ndarray], float]:
    """Run `EPISODES` episodes of each task; the gradients of the loss, and the mean reward."""
    space = policy.space
    features = np.repeat(np.stack([task.features for task in tasks]), EPISODES, axis=0)
    picks = np.zeros((len(features), len(space.fields)), np.int64)
    node = np.zeros(len(features), np.int64)
    walk = []
    for depth in range(len(space.fields)):
        inputs, legal = policy.seen(features, picks, depth), space.mask(node)
        one, two = policy.hidden(inputs)
        shares = policy.shares(two, depth, legal)
        picks[:, depth] = drawn(shares, random)
        walk.append((inputs, one, two, shares))
        node = space.tree[node, picks[:, depth]]
    rewards = np.stack([task.reward(found) for task, found
                        in zip(tasks, node.reshape(len(tasks), EPISODES), strict=True)])
    deviation = rewards.std(1, keepdims=True) + 1e-3
    advantages = ((rewards - rewards.mean(1, keepdims=True)) / deviation).reshape(-1)
    gradients = {name: np.zeros_like(values) for name, values in policy.weights.items()}
    for depth, (inputs, one, two, shares) in enumerate(walk):
        slopes = _slopes(shares, picks[:, depth], advantages, entropy)
        _back(policy, gradients, depth, inputs, one, two, slopes)
    return gradients, float(rewards.mean())


def _slopes(shares: np.ndarray, picks: np.ndarray, advantages: np.ndarray,
            entropy: float) -> np.ndarray:
    """The gradient of the mean loss by the scores of choices [n, width].

    The loss of a choice is -advantage log p(choice) - entropy H(p).
    """
    chosen = np.zeros_like(shares)
    chosen[np.arange(len(picks)), picks] = 1
    logs = np.log(np.where(shares > 0, shares, 1))
    mean = (shares * logs).sum(1, keepdims=True)
    return ((shares - chosen) * advantages[:, None] + entropy * shares * (logs - mean)) / len(picks)


def _back(policy: Policy, gradients: dict[str, np.ndarray], depth: int, inputs: np.ndarray,
          one: np.ndarray, two: np.ndarray, slopes: np.ndarray) -> None:
    """Add the gradients of the weights for one field."""
    w, width = policy.weights, policy.space.width
    own = slice(depth * width, (depth + 1) * width)
    slopes = slopes.astype(np.float32)
    gradients["last"][:, own] += two.T @ slopes
    gradients["last_bias"][own] += slopes.sum(0)
    second = slopes @ w["last"][:, own].T * (1 - two * two)
    gradients["second"] += one.T @ second
    gradients["second_bias"] += second.sum(0)
    first = second @ w["second"].T * (1 - one * one)
    gradients["first"] += inputs.T @ first
    gradients["first_bias"] += first.sum(0)


class Adam:
    """Adam's running means of gradients and their squares."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.count = 0
        self.mean = {name: np.zeros_like(values) for name, values in weights.items()}
        self.square = {name: np.zeros_like(values) for name, values in weights.items()}

    def step(self, weights: dict[str, np.ndarray], gradients: dict[str, np.ndarray],
             rate: float) -> None:
        """Change the weights in place."""
        self.count += 1
        fair_1, fair_2 = 1 - MEMORY_1**self.count, 1 - MEMORY_2**self.count
        for name, slope in gradients.items():
            self.mean[name] += (1 - MEMORY_1) * (slope - self.mean[name])
            self.square[name] += (1 - MEMORY_2) * (slope * slope - self.square[name])
            weights[name] -= (rate * (self.mean[name] / fair_1)
                              / (np.sqrt(self.square[name] / fair_2) + EPSILON))
