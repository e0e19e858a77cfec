"""Second stage: words before pictures.

The text encoder learns to guess the latent of a caption's picture (its mean, which is what the
denoiser needs at the noisiest steps) through a small head that is thrown away. A pass of the text
encoder costs a twentieth of one of the UNet, so words are learnt several times faster than together
with it: essential on processor cores, harmless on a graphics processor.
"""

from __future__ import annotations

import math

import torch
from batches import Batches
from models import CaptionHead, latent_side
from run import StageClock

HEAD_LR, TEXT_LR = 1.5e-3, 1.5e-3
CONTINUED_TEXT_LR = 6e-4
TEXT_FILE = "text.pt"
HEAD_ALONE = 0.3
"""The share of the time in which only the head learns, where the words come from a file: what they
mean to its denoiser is not unlearnt for a head that knows nothing."""


def pretrain_text(run, bank: dict) -> bool:
    """Train the text encoder for the stage's minutes (True) or until the process has to stop."""
    preset, batches = run.preset, Batches(bank, run.device)
    text = run.fresh_text(bank["vocab"], bank["like"])
    head = CaptionHead(preset["text"]["width"], latent_side(preset), preset["vae"]["z"])
    head = head.to(run.device)
    text_lr = CONTINUED_TEXT_LR if run.start else TEXT_LR
    optimiser = torch.optim.AdamW(
        [dict(params=list(text.parameters()), peak=text_lr, waits=bool(run.start)),
         dict(params=list(head.parameters()), peak=HEAD_LR, waits=False)],
        HEAD_LR, betas=(0.9, 0.99), weight_decay=1e-3, fused=True)
    parts, state = dict(text=text, head=head, optimiser=optimiser), run.load(TEXT_FILE) or {}
    for name, part in parts.items() if state else ():
        part.load_state_dict(state[name])
    step, clock = state.get("step", 0), StageClock(run, run.options.text_minutes)
    clock.spent = state.get("spent", 0.0)

    def save(done: bool) -> None:
        states = {name: part.state_dict() for name, part in parts.items()}
        run.save(TEXT_FILE, dict(states, step=step, spent=clock.spent, done=done))

    batch, total = 2 * preset["batch"], 0.0
    clock.start()
    while clock.lasts():
        falling = 0.5 * (1 + math.cos(math.pi * clock.share))
        fade = min(1, (step + 1) / 100) * (0.05 + 0.95 * falling)
        for group in optimiser.param_groups:
            waits = group["waits"] and clock.share < HEAD_ALONE
            group["lr"] = 0.0 if waits else group["peak"] * fade
        latent, caption = batches.draw(batch)
        with run.cast():
            guess = head(text(input_ids=caption).last_hidden_state)
        loss = (guess.float() - latent).pow(2).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(text.parameters(), 1.0)
        optimiser.step()
        step, total = step + 1, total + loss.item()
        clock.tick()
        if step % run.options.log_every == 0:
            run.log(stage="text", step=step, mse=round(total / run.options.log_every, 4))
            total = 0.0
        if clock.saves():
            save(done=False)
    save(clock.done)
    return clock.done
