"""A whole picture made by diffusers: its scheduler in a loop around modules with the same weights.

As in `peers`, PyTorch is imported inside the functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.benchmark import peers
from smalti.checkpoint import Checkpoint
from smalti.dataclass import dataclass
from smalti.diffusion.noise import NOISES, NoiseLevels
from smalti.diffusion.random import NoiseSource
from smalti.diffusion.tokenizer import encode
from smalti.models.config import ModelConfig


@dataclass(frozen=True)
class PeerPipeline:
    """Modules of transformers and diffusers: text encoder, UNet, autoencoder."""

    config: ModelConfig
    text: Any
    unet: Any
    vae: Any

    def picture(self, prompt: str, latents: np.ndarray, noise: str, steps: int,
                guidance: float, negative_prompt: str = "") -> np.ndarray:
        """uint8[height, width, 3], by Euler's method from `standard_noise`, with guidance from when
        to when it counts by the model's own default."""
        import torch

        with torch.inference_mode():
            context = self._context(negative_prompt, prompt)
            scheduler, levels = euler_scheduler(self.config, noise, steps), levels_of(self.config)
            x = torch.tensor(latents) * scheduler.init_noise_sigma
            start, end = self.config.default_guidance_time
            for index, step in enumerate(scheduler.timesteps):
                both = scheduler.scale_model_input(torch.cat([x, x]), step)
                output = self.unet(both, step, context, return_dict=False)[0]
                uncond, cond = output.chunk(2)
                guided = cond
                if levels.after(end) <= float(scheduler.sigmas[index]) <= levels.after(start):
                    guided = uncond + guidance * (cond - uncond)
                x = scheduler.step(guided, step, x, return_dict=False)[0]
            image = self.vae.decode(x / self.config.vae.scaling_factor, return_dict=False)[0]
        pixels = (image[0] / 2 + 0.5).clamp(0, 1).permute(1, 2, 0).numpy()
        return (pixels * 255).round().astype(np.uint8)

    def standard_noise(self, height: int, width: int, seed: int) -> np.ndarray:
        """f32[1, channels, h, w]: what Smalti begins a picture of this size with, by the same seed.
        """
        vae = self.config.vae
        shape = (vae.z_channels, height // vae.downscale, width // vae.downscale)
        return NoiseSource("cpu", (seed,), shape).draw()

    def _context(self, *prompts: str) -> Any:
        import torch

        text, _ = peers.sd1_configs(self.config)
        ids = [encode(prompt, text.positions).ids for prompt in prompts]
        return self.text(torch.tensor(ids)).last_hidden_state


def peer_pipeline(checkpoint: Checkpoint) -> PeerPipeline:
    """Modules of the peers with the weights of a checkpoint, in f32."""
    parts = peers.peer_sd1(checkpoint.config)
    for part in parts:
        part.fill(checkpoint.read)
    return PeerPipeline(checkpoint.config, *(part.module for part in parts))


def euler_scheduler(config: ModelConfig, noise: str, steps: int) -> Any:
    """diffusers' Euler scheduler at its first step.

    It computes the levels of `karras` itself. Those of `normal` are given to it: between training
    steps it interpolates sigma itself, we (as k-diffusion) its logarithm.
    """
    from diffusers import EulerDiscreteScheduler

    scheduler = EulerDiscreteScheduler(
        num_train_timesteps=config.train_steps, beta_start=config.beta_start,
        beta_end=config.beta_end, beta_schedule="scaled_linear",
        prediction_type=config.prediction, use_karras_sigmas=noise == "karras",
        timestep_spacing="linspace")
    if noise == "karras":
        scheduler.set_timesteps(steps)
    else:
        scheduler.set_timesteps(sigmas=list(NOISES[noise].sigmas(levels_of(config), steps)))
    return scheduler


def levels_of(config: ModelConfig) -> NoiseLevels:
    """The noise levels that a model of SD 1.x was trained at."""
    return NoiseLevels.scaled_linear(config.beta_start, config.beta_end, config.train_steps)


def share_within_one(found: np.ndarray, expected: np.ndarray) -> float:
    """The share of pixels of which no channel differs by more than 1 of 255."""
    assert found.shape == expected.shape, f"{found.shape} instead of {expected.shape}"
    near = np.abs(found.astype(int) - expected.astype(int)) <= 1
    return float(near.all(axis=-1).mean())
