"""What the trainings of a denoiser share: steps of one process or several, the rate, the log."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from models import RunningMean, reorder
from peers import Peers
from presets import TRAIN_STEPS
from run import StageClock

FULL_SHARE = 0.45  # of the time at the full rate; then it falls along a cosine
QUARTERS = 4
SEEDS_APART = 1_009  # more than there are processes


def clip(gradients: list[torch.Tensor], most: float = 1.0) -> None:
    """Make gradients smaller where their norm is more than `most`; else leave them unread."""
    norm = torch.nn.utils.get_total_norm(gradients)
    if norm > most:
        torch._foreach_mul_(gradients, most / norm)


class DenoiserStage(ABC):
    """A stage that trains `models` by the errors of their batches.

    Subclasses give `name` and `file` (of the log and of the state), `parts`, `errors` and, where
    there is something to show, `sheet`.
    """

    name: str
    file: str

    def __init__(self, run, models: Sequence[torch.nn.Module], minutes: float, lr: float,
                 warmup: int) -> None:
        self.run, self.highest, self.warmup = run, lr, warmup
        self.mean = RunningMean(models, run.preset["ema"])
        self.parameters = self.mean.parameters()
        self.optimiser = torch.optim.AdamW(
            self.parameters, lr, betas=(0.9, 0.99), weight_decay=1e-3, fused=True)
        self.step, self.clock, self.stops = 0, StageClock(run, minutes), False
        self.resume(run.load(self.file))
        self.peers = Peers(run.place, self.parameters) if run.place.count > 1 else None

    @abstractmethod
    def parts(self) -> dict[str, torch.nn.Module]:
        """The models that are saved, by name."""

    @abstractmethod
    def errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The weighted errors of a new batch, and the steps of noise they belong to."""

    def sheet(self) -> None:  # noqa: B027
        """Show what has been learnt, from time to time, where there is something to show."""

    def resume(self, state: dict | None) -> None:
        """Go on from a saved state."""
        if not state:
            return
        for name, model in self.parts().items():
            model.load_state_dict(state[name])
        self.optimiser.load_state_dict(state["optimiser"])
        reorder(self.optimiser)
        for value, mean in zip(self.mean.values, state["mean"], strict=True):
            value.copy_(mean)
        self.mean.count = self.step = state["step"]
        self.clock.spent = state["spent"]
        run = self.run  # each time it goes on, other batches are drawn
        torch.manual_seed(run.options.seed + run.place.rank + SEEDS_APART * self.step)

    def save(self, done: bool) -> None:
        """Save the state."""
        models = {name: model.state_dict() for name, model in self.parts().items()}
        self.run.save(self.file, dict(
            models, mean=self.mean.values, optimiser=self.optimiser.state_dict(), step=self.step,
            spent=self.clock.spent, done=done))

    def learn(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One step; returns the errors and the steps of noise they belong to."""
        errors, moment = self.errors()
        self.optimiser.zero_grad(set_to_none=self.peers is None)  # peers share one buffer of them
        errors.mean().backward()
        self.clock.tick()
        self.stops = self.run.stopping()
        if self.peers:
            self.clock.spent, self.stops = self.peers.meet(self.clock.spent, self.stops)
        clip([parameter.grad for parameter in self.parameters])
        self.optimiser.step()
        self.mean.step()
        self.step += 1
        return errors.detach(), moment

    def rate(self, share: float) -> float:
        """The learning rate after a share of the time."""
        rate = self.highest * min(1, (self.step + 1) / self.warmup)
        if share < FULL_SHARE:
            return rate
        fall = (share - FULL_SHARE) / (1 - FULL_SHARE)
        return rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1, fall))))

    def train(self) -> bool:
        """Train until the stage's time is used (True) or the process has to stop (False)."""
        run, options, clock, drawn = self.run, self.run.options, self.clock, time.time()
        sums = torch.zeros(2, QUARTERS, device=run.device)
        clock.start()
        while not (self.stops or clock.done):
            for group in self.optimiser.param_groups:
                group["lr"] = self.rate(clock.share)
            errors, moment = self.learn()
            quarter = moment * QUARTERS // TRAIN_STEPS
            sums[0].index_add_(0, quarter, errors)
            sums[1].index_add_(0, quarter, torch.ones_like(errors))
            if self.step % options.log_every == 0:
                means = (sums[0] / sums[1].clamp_min(1)).tolist()
                run.log(stage=self.name, step=self.step, spent=round(clock.spent),
                        loss=round(sum(means) / QUARTERS, 4),
                        quarters=[round(mean, 4) for mean in means])
                sums.zero_()
            if clock.saves():
                self.save(done=False)
            if not run.place.rank and time.time() - drawn > options.sample_minutes * 60:
                self.sheet()
                drawn = time.time()
        self.save(clock.done)
        if not run.place.rank:
            self.sheet()
        return clock.done
