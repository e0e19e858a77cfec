"""Agreement of whole pictures with diffusers in f32."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from smalti.benchmark.pictures import peer_pipeline, share_within_one
from smalti.benchmark.table import Row
from smalti.checkpoint import load
from smalti.diffusion.pipeline import Pipeline

PROMPT = "a red apple on a wooden table, photograph"
SHARE_MIN = 0.999
GUIDANCE = 7.0
SEED = 3


def picture_row(path: Path, noise: str, steps: int, threads: int) -> Row:
    """A whole picture by Euler's method from the same latents."""
    import torch

    torch.set_num_threads(threads)
    found = Pipeline.load(path, threads=threads)(
        PROMPT, steps=steps, guidance_scale=GUIDANCE, sampler="euler", noise=noise, seed=SEED)
    asked = found.parameters
    checkpoint = load(path)
    peer = peer_pipeline(checkpoint)
    latents = peer.standard_noise(asked.height, asked.width, SEED)
    expected = peer.picture(PROMPT, latents, noise, steps, GUIDANCE)
    share = share_within_one(np.asarray(found.images[0]), expected)
    return Row(f"picture {asked.width}x{asked.height}, {steps} steps, {noise}: pixels within 1 "
               f"of 255", f">= {SHARE_MIN:.1%}", f"{share:.3%}", share >= SHARE_MIN)
