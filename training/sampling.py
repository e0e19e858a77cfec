"""Sheets of pictures: DDIM with guidance, in the compact vocabulary of a run."""

from __future__ import annotations

from pathlib import Path

import torch
from models import latent_side, signal_shares
from PIL import Image, ImageDraw
from presets import COMPOSED_PROMPTS, PROMPTS, TRAIN_STEPS

LABEL_HEIGHT = 14


def grid(images: list[torch.Tensor], columns: int, path: Path,
         labels: list[str] | None = None) -> None:
    """Write pictures (3, px, px in -1..1) as one sheet."""
    px, label = images[0].shape[-1], LABEL_HEIGHT if labels else 0
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * px, rows * (px + label)), "white")
    draw = ImageDraw.Draw(sheet)
    for index, image in enumerate(images):
        left, top = index % columns * px, index // columns * (px + label)
        pixels = ((image.clamp(-1, 1) + 1) * 127.5).byte().permute(1, 2, 0).cpu().numpy()
        sheet.paste(Image.fromarray(pixels), (left, top + label))
        if labels:
            draw.text((left + 3, top + 1), labels[index][:px // 6], fill="black")
    sheet.save(path, optimize=True)


def split(noisy: torch.Tensor, output: torch.Tensor, share: torch.Tensor,
          kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Picture and noise, from what the denoiser said of a noisy picture."""
    signal, noise = share.sqrt(), (1 - share).sqrt()
    if kind == "v":
        return signal * noisy - noise * output, noise * noisy + signal * output
    return (noisy - noise * output) / signal, output


@torch.no_grad()
def sample(run, unet: torch.nn.Module, text: torch.nn.Module, bank: dict, path: Path,
           prompts: list[str] | None = None) -> None:
    """Draw one picture a prompt; picture k has seed `seed + k`."""
    options = run.options
    prompts = prompts or (COMPOSED_PROMPTS if run.preset["scenes"] else PROMPTS)
    count, side = len(prompts), latent_side(run.preset)
    number = {token: index + 1 for index, token in enumerate(bank["vocab"])}
    tokenizer = run.pictures().tokenizer
    rows = [[number.get(token, 0) for token in tokenizer(prompt)]
            for prompt in [""] * count + prompts]
    words = text(input_ids=torch.tensor(rows, device=run.device)).last_hidden_state
    state = torch.stack([
        torch.randn(run.preset["vae"]["z"], side, side,
                    generator=torch.Generator().manual_seed(options.seed + index))
        for index in range(count)]).to(run.device)
    shares = signal_shares().to(run.device)
    times = torch.linspace(TRAIN_STEPS - 1, 0, options.steps + 1).round().long().tolist()
    for step in range(options.steps):
        share = shares[times[step]]
        last = step == options.steps - 1
        target = torch.ones_like(share) if last else shares[times[step + 1]]
        moment = torch.full((2 * count,), times[step], device=run.device)
        with run.cast():
            output = unet(run.memory(torch.cat([state, state])), moment,
                          encoder_hidden_states=words).sample.float()
        without, with_words = output.chunk(2)
        output = without + options.cfg * (with_words - without)
        picture, noise = split(state, output, share, options.pred)
        state = target.sqrt() * picture + (1 - target).sqrt() * noise
    std, mean = (bank[key].to(run.device)[:, None, None] for key in ("std", "mean"))
    vae = run.final_vae()
    images = [image.float().cpu() for part in (state * std + mean).split(16)
              for image in vae.decode(part).sample]
    grid(images, 8 if count > 16 else 4, path, prompts)
    run.log(event="sample", file=str(path))
