"""Last stage: few steps. A copy of the denoiser learns to give, from any step, the picture that it
gives itself from the next one, where the finished denoiser with guidance has gone there (latent
consistency models, arXiv:2310.04378). It draws in 4 to 8 steps, without a second pass for guidance.
"""

from __future__ import annotations

import copy

import torch
from batches import Batches
from models import signal_shares
from presets import TRAIN_STEPS
from run import StageClock
from sampling import split

FEW_FILE = "few.pt"
WALK = 50
"""Steps of the walk that is shortened, the number that the sampler of such models counts in."""
FEW_LR, WARMUP = 1e-4, 50
TARGET_DECAY = 0.95
"""Of the running mean that the student is held to."""
SOFT = 0.03
"""Errors from which on the loss grows as they do, not as their squares (pseudo-Huber)."""


class FewStage:
    """Student, its running mean as the target, and the finished denoiser as the teacher."""

    def __init__(self, run, bank: dict) -> None:
        self.run = run
        self.teacher, self.text, _, _ = run.finished()
        self.student, self.target = (run.put(copy.deepcopy(self.teacher)) for _ in range(2))
        self.student.train()
        for model in (self.teacher, self.text, self.target):
            model.requires_grad_(False)
        self.optimiser = torch.optim.AdamW(self.student.parameters(), FEW_LR, betas=(0.9, 0.99),
                                           weight_decay=1e-3, fused=True)
        self.batches = Batches(bank, run.device)
        self.shares = signal_shares().to(run.device)
        self.step, self.clock = 0, StageClock(run, run.options.few_minutes)
        state = run.load(FEW_FILE)
        if state:
            for name, part in self.parts().items():
                part.load_state_dict(state[name])
            self.step, self.clock.spent = state["step"], state["spent"]

    def parts(self) -> dict:
        """What is saved of the training."""
        return dict(student=self.student, target=self.target, optimiser=self.optimiser)

    def picture(self, model: torch.nn.Module, noisy: torch.Tensor, moment: torch.Tensor,
                words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What a model takes the picture and the noise to be."""
        with self.run.cast():
            output = model(self.run.memory(noisy), moment, encoder_hidden_states=words).sample
        share = self.shares[moment][:, None, None, None]
        return split(noisy, output.float(), share, self.run.options.pred)

    @torch.no_grad()
    def walked(self, noisy: torch.Tensor, moment: torch.Tensor, share: torch.Tensor,
               words: torch.Tensor, empty: torch.Tensor) -> torch.Tensor:
        """One step of DDIM with guidance to where the picture has this share."""
        with_words = self.picture(self.teacher, noisy, moment, words)
        without = self.picture(self.teacher, noisy, moment, empty)
        picture, noise = (b + self.run.options.cfg * (a - b)
                          for a, b in zip(with_words, without, strict=True))
        return share.sqrt() * picture + (1 - share).sqrt() * noise

    def learn(self) -> float:
        """One step; returns the loss."""
        count, device = self.run.preset["batch"], self.run.device
        latent, caption = self.batches.draw(count)
        place = torch.randint(0, WALK, (count,), device=device)
        stride = TRAIN_STEPS // WALK
        moment = (place + 1) * stride - 1
        before = (moment - stride).clamp(min=0)
        last = (place == 0)[:, None, None, None]
        share = self.shares[moment][:, None, None, None]
        noisy = share.sqrt() * latent + (1 - share).sqrt() * torch.randn_like(latent)
        with torch.no_grad():
            words = self.text(input_ids=caption).last_hidden_state.float()
            empty = self.text(input_ids=self.batches.empty[None]).last_hidden_state.float()
            reached = torch.where(last, 1.0, self.shares[before][:, None, None, None])
            less_noisy = self.walked(noisy, moment, reached, words, empty.expand_as(words))
            wanted = torch.where(last, less_noisy,
                                 self.picture(self.target, less_noisy, before, words)[0])
        error = self.picture(self.student, noisy, moment, words)[0] - wanted
        loss = ((error.square() + SOFT ** 2).sqrt() - SOFT).mean()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self.optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()),
                                 [each.detach() for each in self.student.parameters()],
                                 1 - TARGET_DECAY)
        self.step += 1
        return loss.item()

    def train(self) -> bool:
        """Train until the stage's time is used (True) or the process has to stop (False)."""
        run, clock, total = self.run, self.clock, 0.0
        clock.start()
        while clock.lasts():
            for group in self.optimiser.param_groups:
                group["lr"] = FEW_LR * min(1, (self.step + 1) / WARMUP)
            total += self.learn()
            clock.tick()
            if self.step % run.options.log_every == 0:
                run.log(stage="few", step=self.step, spent=round(clock.spent),
                        loss=round(total / run.options.log_every, 4))
                total = 0.0
            if clock.saves():
                self.save(done=False)
        self.save(clock.done)
        return clock.done

    def save(self, done: bool) -> None:
        """Save the state."""
        states = {name: part.state_dict() for name, part in self.parts().items()}
        self.run.save(FEW_FILE, dict(states, step=self.step, spent=self.clock.spent, done=done))
