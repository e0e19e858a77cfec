#!/usr/bin/env python3
"""What many GPUs would make, on paper: pictures a second, GPU-hours of 1,000 pictures, and what
limits them; by the library of devices and the timing model.

Nothing here was measured on these GPUs. A picture takes what its parts are expected to take in
kernels of the vendor's library in f16, with all weights on the GPU. Each GPU makes pictures of its
own; of a host, cores write PNG files; all pictures leave through one front; weights come to all
GPUs from one store when they start. The options are the assumptions. No price is assumed: cost is
GPU-hours times the price that --price gives.

    PYTHONPATH=src python bench/fleet.py
    PYTHONPATH=src python bench/fleet.py --models sdxl --gpus rtx_4090 l40s --price 0.5
"""

from __future__ import annotations

import argparse
import io
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from smalti import machine
from smalti.compiler.outlook import on_gpu, running
from smalti.diffusion.conditioning import usual_text_shape, usual_tokens
from smalti.diffusion.network import MODULATION
from smalti.diffusion.text_devices import LOADED_BYTES_A_SECOND
from smalti.families.parts import TEXTS, parts
from smalti.machine import DeviceModel
from smalti.models import (
    CLIP_L,
    FLUX_DEV,
    FLUX_VAE,
    OPENCLIP_G,
    SD15,
    SDXL_UNET,
    SDXL_VAE,
    T5_XXL,
)
from smalti.models.config import ModelConfig
from smalti.runtime.cpu.recipe import recipe_of

MODELS = {
    "sd15": ("SD 1.5, 512x512, 20 steps", SD15, 512, 20, 2),
    "sdxl": ("SDXL, 1024x1024, 20 steps", ModelConfig(
        "sdxl", {"clip_l": CLIP_L, "clip_g": OPENCLIP_G}, SDXL_UNET, SDXL_VAE), 1024, 20, 2),
    "flux": ("FLUX.1 dev, 1024x1024, 20 steps", ModelConfig(
        "flux", {"clip_l": CLIP_L, "t5xxl": T5_XXL}, FLUX_DEV, FLUX_VAE, "flow"), 1024, 20, 1),
}
"""Title, hyperparameters, side in pixels, steps, and prompts that the denoiser reads at once."""
COUNTS = (1, 8, 64, 1000)
BYTES = 2  # of a weight, in f16


@dataclass(frozen=True)
class PictureCost:
    """What a picture takes on a GPU: seconds, of that of kernels by what limits them; and bytes of
    all weights."""

    seconds: float
    limits: Counter[str]
    weights: float


def part_shapes(config: ModelConfig, side: int, steps: int, rows: int
                ) -> Iterator[tuple[str, tuple[object, ...], int]]:
    """The parts that a picture runs, for which shape, and how often."""
    latent = side // config.vae.downscale
    for part in parts(config):
        if part in TEXTS:
            yield part, usual_text_shape(config, TEXTS.index(part)), 1
        elif part == "vae":
            yield part, (latent, latent), 1
        elif part == MODULATION:
            yield part, (rows,), steps
        elif part != "vae_encoder":
            yield part, (rows, latent, latent, usual_tokens(config)), steps


def picture(model: str, device: DeviceModel) -> PictureCost:
    """What a picture of a model is expected to take."""
    _, config, side, steps, rows = MODELS[model]
    limits, weights, made = Counter[str](), 0.0, parts(config)
    for part, shape, runs in part_shapes(config, side, steps, rows):
        graph = made[part].graph(*shape)
        weights += BYTES * sum(value.type.size for value in graph.parameters.values())
        found, _ = recipe_of(graph).partition()
        for kernel in on_gpu(running(found).values(), "f16", device):
            limits[kernel.binds] += runs * kernel.seconds
    return PictureCost(sum(limits.values()), limits, weights)


def png(side: int) -> tuple[float, int]:
    """Seconds of a core of this computer, and bytes, of a PNG as noisy as a photograph."""
    random = np.random.default_rng(0)
    low = Image.fromarray(random.integers(0, 256, (side // 16, side // 16, 3), np.uint8))
    smooth = np.asarray(low.resize((side, side), Image.Resampling.BICUBIC), np.float32)
    noisy = smooth + random.normal(0, 4, smooth.shape)
    image = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
    stream, begun = io.BytesIO(), time.process_time()
    image.save(stream, "PNG")
    return time.process_time() - begun, stream.tell()


def shown(number: float) -> str:
    """A number with three digits.

    >>> shown(0.12345), shown(2583.1)
    ('0.123', '2,583')
    """
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def rows(model: str, gpu: str, given: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """What so many GPUs of a kind make of a model."""
    device = machine.device(gpu)
    cost = picture(model, device)
    if cost.weights > given.memory_share * device.memory:
        yield (device.name, "any", f"{cost.weights / 1e9:.0f} GB of weights have no room", *4 * "-")
        return
    seconds, size = png(MODELS[model][2])
    by, share = cost.limits.most_common(1)[0]
    for count in COUNTS:
        hosts = -(-count // given.host_gpus)
        most = {f"the GPU's {by} ({share / cost.seconds:.0%} of the time)": count / cost.seconds,
                "cores that write PNG": hosts * given.host_cores / seconds,
                "the front's network": given.front_bytes / size}
        limit = min(most, key=lambda name: most[name])
        hours = 1000 / most[limit] * count / 3600
        start = max(cost.weights / LOADED_BYTES_A_SECOND, count * cost.weights / given.store_bytes)
        yield (device.name, f"{count:,}", shown(most[limit]), f"{hours:.2f}",
               f"{hours * given.price:.2f}", limit, f"{start / 60:.1f}")


def main() -> None:
    """Read the command line and print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["sdxl", "flux"])
    parser.add_argument("--gpus", nargs="+", default=["rtx_4090", "l40s", "h100_sxm5_80_gb"])
    parser.add_argument("--price", type=float, default=1.0, help="of a GPU-hour, in any money")
    parser.add_argument("--host-gpus", type=int, default=8)
    parser.add_argument("--host-cores", type=int, default=32, help="free for PNG files")
    parser.add_argument("--front-bytes", type=float, default=1.25e9, help="a second: 10 Gbit")
    parser.add_argument("--store-bytes", type=float, default=10e9, help="a second, of weights")
    parser.add_argument("--memory-share", type=float, default=0.9)
    given = parser.parse_args()
    for model in given.models:
        print(f"{MODELS[model][0]}:\n")
        print(f"| GPU | count | pictures a second | GPU-hours of 1,000 | cost at {given.price:g} "
              f"an hour | limited by | minutes to load |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for gpu in given.gpus:
            for row in rows(model, gpu, given):
                print(f"| {' | '.join(row)} |")
        print()


if __name__ == "__main__":
    main()
