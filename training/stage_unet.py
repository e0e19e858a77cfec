"""Third stage: denoiser and text encoder together, on the bank of latents."""

from __future__ import annotations

import math
import time

import torch
from batches import Batches
from heldout import held_errors
from models import RunningMean, reorder, signal_shares
from peers import Peers
from presets import TRAIN_STEPS
from run import StageClock
from sampling import sample

FULL_SHARE = 0.45  # of the time at the full rate; then it falls along a cosine
QUARTERS = 4
SEEDS_APART = 1_009  # more than there are processes


def clip(gradients: list[torch.Tensor], most: float = 1.0) -> None:
    """Make gradients smaller where their norm is more than `most`; else leave them unread."""
    norm = torch.nn.utils.get_total_norm(gradients)
    if norm > most:
        torch._foreach_mul_(gradients, most / norm)


class UnetStage:
    """min-SNR weighting, stratified steps, some captions emptied for guidance."""

    def __init__(self, run, bank: dict):
        self.run, self.bank, options = run, bank, run.options
        self.unet, self.text = run.fresh_unet(), run.fresh_text(bank["vocab"], bank["like"])
        pretrained = run.load("text.pt")
        if pretrained:
            self.text.load_state_dict(pretrained["text"])
        for path, model, key in ((options.init_text, self.text, "text"),
                                 (options.init_unet, self.unet, "unet")):
            if path:
                model.load_state_dict(
                    torch.load(path, map_location="cpu", weights_only=False)[key])
        self.mean = RunningMean([self.unet, self.text], run.preset["ema"])
        self.parameters = self.mean.parameters()
        self.optimiser = torch.optim.AdamW(
            self.parameters, run.preset["lr"], betas=(0.9, 0.99), weight_decay=1e-3,
            fused=True)
        self.step, self.clock = 0, StageClock(run, options.unet_minutes)
        self.stops = False
        self.resume(run.load("unet.pt"))
        self.peers = Peers(run.place, self.parameters) if run.place.count > 1 else None
        self.fast_unet = run.compiled(self.unet)
        self.fast_text = run.compiled(self.text) if run.device.type == "cuda" else self.text
        self.batches = Batches(bank, run.device, options.cfg_drop)
        self.shares = signal_shares().to(run.device)

    def resume(self, state: dict | None) -> None:
        """Go on from a saved state."""
        if not state:
            return
        self.unet.load_state_dict(state["unet"])
        self.text.load_state_dict(state["text"])
        self.optimiser.load_state_dict(state["optimiser"])
        reorder(self.optimiser)
        for value, mean in zip(self.mean.values, state["mean"], strict=True):
            value.copy_(mean)
        self.mean.count = self.step = state["step"]
        self.clock.spent = state["spent"]
        run = self.run  # each time it goes on, other batches are drawn
        torch.manual_seed(run.options.seed + run.place.rank + SEEDS_APART * self.step)

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Latents, captions and steps of a batch; the steps are spread over the whole range."""
        latent, caption = self.batches.draw(count)
        device = latent.device
        spread = torch.arange(count, device=device) + torch.rand(count, device=device)
        moment = (spread / count * TRAIN_STEPS).long().clamp(0, TRAIN_STEPS - 1)
        return latent, caption, moment

    def errors(self, latent: torch.Tensor, caption: torch.Tensor,
               moment: torch.Tensor) -> torch.Tensor:
        """The weighted error of each sample: that of the picture, weight min(SNR + 1, gamma)."""
        share = self.shares[moment][:, None, None, None]
        noise = torch.randn_like(latent)
        noisy = self.run.memory(share.sqrt() * latent + (1 - share).sqrt() * noise)
        with self.run.cast():
            words = self.fast_text(input_ids=caption).last_hidden_state
            output = self.fast_unet(noisy, moment, encoder_hidden_states=words).sample
        ratio = (share / (1 - share)).flatten()
        weight = (ratio + 1).clamp(max=self.run.options.gamma)
        if self.run.options.pred == "v":
            target, scale = share.sqrt() * noise - (1 - share).sqrt() * latent, ratio + 1
        else:
            target, scale = noise, ratio
        return (output.float() - target).pow(2).mean((1, 2, 3)) * weight / scale

    def learn(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One step; returns the errors and the steps they belong to."""
        latent, caption, moment = self.draw(self.run.preset["batch"])
        errors = self.errors(latent, caption, moment)
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
        preset = self.run.preset
        rate = preset["lr"] * min(1, (self.step + 1) / preset["warmup"])
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
                run.log(stage="unet", step=self.step, spent=round(clock.spent),
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

    def save(self, done: bool) -> None:
        """Save the state."""
        self.run.save("unet.pt", dict(
            unet=self.unet.state_dict(), text=self.text.state_dict(), mean=self.mean.values,
            optimiser=self.optimiser.state_dict(), step=self.step, spent=self.clock.spent,
            done=done))

    def sheet(self) -> None:
        """Draw the sheet of prompts with the mean weights, and log what they have understood."""
        self.mean.swap()
        path = self.run.out / "samples" / f"unet_{self.step:06d}.png"
        sample(self.run, self.unet, self.text, self.bank, path)
        if "held" in self.bank:
            self.run.log(event="held", step=self.step, **held_errors(
                self.run, self.unet, self.text, self.bank["held"]))
        self.mean.swap()
