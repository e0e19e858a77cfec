"""A place to train schedulers: kernels on simulated, fictional and replayed devices.

    environment = dojo.ScheduleEnv(dojo.level("perturbed"))      # needs the [dojo] extra
    policy = dojo.train(dojo.level("perturbed"), seconds=60)
    print(dojo.table(dojo.score(policy, dojo.replays(folder))))
"""

from smalti.dojo.policy import Policy
from smalti.dojo.scoring import Score, score, table
from smalti.dojo.space import Space, product_space
from smalti.dojo.task import LEVELS, Task, level, of_tasks, replays
from smalti.dojo.training import train

__all__ = ["LEVELS", "Policy", "ScheduleEnv", "Score", "Space", "Task", "level", "of_tasks",
           "product_space", "replays", "score", "table", "train"]


def __getattr__(name: str) -> object:
    """The environment when it is asked for: it alone needs gymnasium."""
    if name == "ScheduleEnv":
        from smalti.dojo.environment import ScheduleEnv

        return ScheduleEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
