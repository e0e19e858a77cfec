"""Agreement with diffusers and transformers in f32: parts of the model, and whole pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from engines import Job, Worker
from parts import PARTS, PROMPT, peers_models
from peers_pipeline import peer_pipeline, share_within_one
from table import Row

from smalti.checkpoint import load
from smalti.diffusion.pipeline import Pipeline
from smalti.diffusion.random import NoiseSource

ERROR_MAX = 1e-4
SHARE_MIN = 0.999
GUIDANCE = 7.0
SEED = 3


def part_rows(path: Path, parts: Sequence[str], threads: int) -> list[Row]:
    """The relative L2 error of each part, on seeded inputs and the weights of the checkpoint."""
    rows = []
    for part in parts:
        job = Job(path, part, threads, Path())
        outputs = []
        for engine in ("smalti", "torch"):
            with Worker(engine, job) as worker:
                outputs.append(worker.ask("output"))
        error = peers_models.relative_error(*outputs)
        rows.append(Row.at_most(f"{PARTS[part].title}: relative L2 error", ERROR_MAX, error))
    return rows


def picture_row(path: Path, noise: str, steps: int, threads: int) -> Row:
    """A whole picture by Euler's method from the same latents."""
    import torch

    torch.set_num_threads(threads)
    found = Pipeline.load(path, threads=threads)(
        PROMPT, steps=steps, guidance_scale=GUIDANCE, sampler="euler", noise=noise, seed=SEED)
    asked = found.parameters
    checkpoint = load(path)
    factor = checkpoint.config.vae.downscale
    shape = (checkpoint.config.vae.z_channels, asked.height // factor, asked.width // factor)
    latents = NoiseSource("cpu", (SEED,), shape).draw()
    expected = peer_pipeline(checkpoint).picture(PROMPT, latents, noise, steps, GUIDANCE)
    share = share_within_one(np.asarray(found.images[0]), expected)
    return Row(f"picture {asked.width}x{asked.height}, {steps} steps, {noise}: pixels within 1 "
               f"of 255", f">= {SHARE_MIN:.1%}", f"{share:.3%}", share >= SHARE_MIN)
