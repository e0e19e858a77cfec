"""Last stage: few steps. A copy of the denoiser learns to give, from any step, the picture that it
gives itself from the next one, where the finished denoiser with guidance has gone there (latent
consistency models, arXiv:2310.04378). It draws in 4 to 8 steps, without a second pass for guidance.
"""

from __future__ import annotations

import copy

import torch
from batches import Batches, spread_places
from kernels import quicken
from models import signal_shares
from presets import TRAIN_STEPS
from sampling import split
from stage_denoiser import DenoiserStage

FEW_FILE = "few.pt"
WALK = 50
"""Steps of the walk that is shortened, the number that the sampler of such models counts in."""
FEW_LR, WARMUP = 3e-4, 50
TARGET_DECAY = 0.95
"""Of the running mean that the student is held to."""
SOFT = 0.03
"""Errors from which on the loss grows as they do, not as their squares (pseudo-Huber)."""


class FewStage(DenoiserStage):
    """Student, its running mean as the target, and the finished denoiser as the teacher."""

    name, file = "few", FEW_FILE

    def __init__(self, run, bank: dict) -> None:
        teacher, self.text, _, _ = run.finished()
        self.teacher = run.quickened(teacher, quicken)
        self.student, self.target = (copy.deepcopy(self.teacher) for _ in range(2))
        for model in (self.teacher, self.text, self.target):
            model.requires_grad_(False)
        super().__init__(run, [self.student], run.options.few_minutes, FEW_LR, WARMUP)
        self.batches = Batches(bank, run.device)
        self.shares = signal_shares().to(run.device)
        with torch.no_grad():
            self.empty = self.text(input_ids=self.batches.empty[None]).last_hidden_state.float()

    def parts(self) -> dict[str, torch.nn.Module]:
        """The models that are saved, by name."""
        return dict(student=self.student, target=self.target)

    def picture(self, model: torch.nn.Module, noisy: torch.Tensor, moment: torch.Tensor,
                words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What a model takes the picture and the noise to be."""
        with self.run.cast():
            output = model(self.run.memory(noisy), moment, encoder_hidden_states=words).sample
        share = self.shares[moment][:, None, None, None]
        return split(noisy, output.float(), share, self.run.options.pred)

    @torch.no_grad()
    def walked(self, noisy: torch.Tensor, moment: torch.Tensor, share: torch.Tensor,
               words: torch.Tensor) -> torch.Tensor:
        """One step of DDIM with guidance to where the picture has this share."""
        with_words = self.picture(self.teacher, noisy, moment, words)
        without = self.picture(self.teacher, noisy, moment, self.empty.expand_as(words))
        picture, noise = (b + self.run.options.cfg * (a - b)
                          for a, b in zip(with_words, without, strict=True))
        return share.sqrt() * picture + (1 - share).sqrt() * noise

    def errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """How far the student's picture of each sample is from the target's, one step further."""
        count = self.run.preset["batch"]
        latent, caption = self.batches.draw(count)
        place = spread_places(count, WALK, latent.device)
        stride = TRAIN_STEPS // WALK
        moment = (place + 1) * stride - 1
        before = (moment - stride).clamp(min=0)
        last = (place == 0)[:, None, None, None]
        share = self.shares[moment][:, None, None, None]
        noisy = share.sqrt() * latent + (1 - share).sqrt() * torch.randn_like(latent)
        with torch.no_grad():
            words = self.text(input_ids=caption).last_hidden_state.float()
            reached = torch.where(last, 1.0, self.shares[before][:, None, None, None])
            less_noisy = self.walked(noisy, moment, reached, words)
            wanted = torch.where(last, less_noisy,
                                 self.picture(self.target, less_noisy, before, words)[0])
        error = self.picture(self.student, noisy, moment, words)[0] - wanted
        return ((error.square() + SOFT ** 2).sqrt() - SOFT).mean((1, 2, 3)), moment

    def learn(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One step, which the target follows; returns what `DenoiserStage.learn` does."""
        learnt = super().learn()
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()),
                                 [each.detach() for each in self.student.parameters()],
                                 1 - TARGET_DECAY)
        return learnt
