#!/usr/bin/env python3
"""Draw a sheet with a finished file through diffusers' own schedulers.

    verify.py MODEL.safetensors SHEET.png [--prompts "a red apple|dog"] [--scheduler dpm]

Rebuilds the models from the single file, says which tensors were not used and whether diffusers'
own converters read the file alike, and samples with the latent scale 0.18215.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from layout import NAMES, from_single_file, preset_of, read_file
from models import latent_side, make_text, make_unet, make_vae
from presets import COMPOSED_PROMPTS, LATENT_SCALE, PROMPTS
from run import ASSETS
from sampling import grid
from tokenizer import Tokenizer

SHEET = [*PROMPTS[6:22], *COMPOSED_PROMPTS]
"""The prompts of README's sheet; what fails stays in it."""


def schedulers(kind: str) -> dict[str, object]:
    """Schedulers of diffusers with SD 1's schedule."""
    from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler

    setting = dict(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012,
                   num_train_timesteps=1000, prediction_type=kind, steps_offset=1)
    return {"dpm": DPMSolverMultistepScheduler(**setting),
            "euler": EulerDiscreteScheduler(**setting),
            "ddim": DDIMScheduler(**setting, clip_sample=False, set_alpha_to_one=False)}


def check_converters(tensors: dict, unet: torch.nn.Module, vae: torch.nn.Module) -> None:
    """Say whether diffusers' converters give the same models."""
    from diffusers.loaders import single_file_utils as convert

    for model, reader in ((unet, convert.convert_ldm_unet_checkpoint),
                          (vae, convert.convert_ldm_vae_checkpoint)):
        read = reader(dict(tensors), dict(model.config))
        same = all(torch.equal(read[name].float().reshape(tensor.shape), tensor)
                   for name, tensor in model.state_dict().items())
        print(f"{reader.__name__} agrees: {same}")


@torch.no_grad()
def draw(models: tuple, prompts: list[str], scheduler, steps: int, guidance: float,
         seed: int) -> list[torch.Tensor]:
    """One picture a prompt; picture k has seed `seed + k`."""
    unet, vae, text, tokenizer, side = models
    count = len(prompts)
    rows = torch.tensor([tokenizer(prompt) for prompt in [""] * count + prompts])
    words = text(input_ids=rows).last_hidden_state
    scheduler.set_timesteps(steps)
    state = torch.stack([
        torch.randn(unet.config.in_channels, side, side,
                    generator=torch.Generator().manual_seed(seed + index))
        for index in range(count)]) * scheduler.init_noise_sigma
    for moment in scheduler.timesteps:
        scaled = scheduler.scale_model_input(state, moment)
        output = unet(torch.cat([scaled, scaled]), moment, encoder_hidden_states=words).sample
        without, with_words = output.chunk(2)
        guided = without + guidance * (with_words - without)
        state = scheduler.step(guided, moment, state).prev_sample
    return [image for part in (state / LATENT_SCALE).split(16)
            for image in vae.decode(part).sample]


def main() -> None:
    """Read, check, draw."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("sheet", type=Path)
    parser.add_argument("--prompts", help="separated by |; 16 things and 32 scenes otherwise")
    parser.add_argument("--scheduler", default="dpm", choices=["dpm", "euler", "ddim"])
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--cfg", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tensors, config = read_file(options.file)
    preset = preset_of(config)
    made = {"unet": make_unet(preset), "vae": make_vae(preset),
            "text": make_text(preset, config["text"]["vocab_size"])}
    for part, model in made.items():
        from_single_file(model, part, preset, tensors).eval()
    used = {NAMES[part](name, preset) for part, model in made.items()
            for name in model.state_dict()}
    print("tensors in the file that no model uses:", sorted(set(tensors) - used))
    check_converters(tensors, made["unet"], made["vae"])
    prompts = options.prompts.split("|") if options.prompts else SHEET
    tokenizer = Tokenizer(ASSETS / "bpe_simple_vocab_16e6.txt.gz")
    scheduler = schedulers(config["prediction_type"])[options.scheduler]
    models = (made["unet"], made["vae"], made["text"], tokenizer, latent_side(preset))
    images = draw(models, prompts, scheduler, options.steps, options.cfg, options.seed)
    grid(images, 8, options.sheet, prompts)
    print(options.sheet)


if __name__ == "__main__":
    main()
