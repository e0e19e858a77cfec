"""Products measured on this CPU, as tasks."""

from __future__ import annotations

import numpy as np

from smalti.dojo.environment import ScheduleEnv
from smalti.dojo.here import on_this_cpu
from smalti.dojo.scoring import chance, curve, greedy
from smalti.dojo.task import of_tasks


def test_every_schedule_of_a_small_product_is_measured() -> None:
    task = on_this_cpu(24, 48, 32, candidates_max=12)
    assert 2 <= len(task.space) <= 12 and task.modelled
    assert np.isfinite(task.seconds).all() and (task.seconds > 0).all()
    assert np.isfinite(task.features).all()
    assert len(np.unique(task.space.candidates, axis=0)) == len(task.space)
    assert curve(task, greedy(task), (len(task.space),)) == (1.0,)
    assert chance(task, (1,))[0] >= 1


def test_it_is_a_task_of_the_environment() -> None:
    task = on_this_cpu(24, 48, 32, candidates_max=6)
    environment = ScheduleEnv(of_tasks([task]))
    _, info = environment.reset(seed=0)
    done = False
    while not done:
        action = environment.action_space.sample(info["action_mask"])
        _, reward, done, _, info = environment.step(action)
    assert info["regret"] >= 1 and reward <= 0
