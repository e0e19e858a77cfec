#!/usr/bin/env python3
"""Where text encoders run that have no room beside the denoiser, on computers that are not here.

What `auto` chooses (`diffusion/text_devices.py`) for published models in bf16, by the library of
devices and the timing model: seconds that the largest text encoder of a picture is expected to take
on the GPU, where weights come anew for each picture, and on the CPU, which keeps them in up to half
of its memory. With --measure, seconds in which weights become those of a program here.

    PYTHONPATH=src python bench/text_devices.py
    PYTHONPATH=src python bench/text_devices.py --measure cpu vulkan:0
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np

from smalti import machine
from smalti.diffusion.conditioning import usual_text_shape
from smalti.diffusion.named import USABLE_SHARE
from smalti.diffusion.residents import KEPT_SHARE
from smalti.diffusion.text_devices import DeviceRoom, TextWork, text_devices
from smalti.families.parts import TEXTS, parts
from smalti.models import (
    CLIP_L,
    FLUX_DEV,
    FLUX_VAE,
    OPENCLIP_G,
    QWEN3_4B,
    SD3_VAE,
    SD35_MEDIUM,
    SDXL_UNET,
    SDXL_VAE,
    T5_XXL,
    Z_IMAGE,
)
from smalti.models.config import ModelConfig
from smalti.models.t5 import t5_graph
from smalti.runtime import compile_graph

MODELS = {
    "SDXL": ModelConfig("sdxl", {"clip_l": CLIP_L, "clip_g": OPENCLIP_G}, SDXL_UNET, SDXL_VAE),
    "SD 3.5 medium": ModelConfig("sd3", {"clip_l": replace(CLIP_L, projection=768),
                                         "clip_g": OPENCLIP_G, "t5xxl": T5_XXL},
                                 SD35_MEDIUM, SD3_VAE, "flow"),
    "FLUX.1 dev": ModelConfig("flux", {"clip_l": CLIP_L, "t5xxl": T5_XXL}, FLUX_DEV, FLUX_VAE,
                              "flow"),
    "Z-Image": ModelConfig("z-image", {"qwen3": QWEN3_4B}, Z_IMAGE, FLUX_VAE, "flow"),
}
"""Published models: their hyperparameters are in `smalti.models`."""
GPUS = ("rtx_4060", "rtx_3060", "rtx_4080", "rtx_4090")
CPUS = (("core_i5_12400", 16e9), ("ryzen_7_7700x", 32e9))
"""With so much memory."""
BYTES = 2  # of a weight, in bf16


def rows() -> Iterator[tuple[str, ...]]:
    """What is chosen, for each model and computer."""
    for title, config in MODELS.items():
        work, beside = {}, 0.0
        for part, each in parts(config).items():
            shape = usual_text_shape(config, TEXTS.index(part)) if part in TEXTS else each.smallest
            graph = each.graph(*shape)
            size = BYTES * sum(value.type.size for value in graph.parameters.values())
            if part in TEXTS:
                work[part] = TextWork(size, graph.flops())
            else:
                beside += size
        for gpu in GPUS:
            for cpu, memory in CPUS:
                budget = USABLE_SHARE * memory
                here = machine.device(gpu)
                rooms = {"GPU": DeviceRoom(here, *[USABLE_SHARE * here.memory] * 2),
                         "CPU": DeviceRoom(machine.device(cpu), budget, KEPT_SHARE * budget)}
                found = text_devices(work, beside, rooms)
                largest = max(work, key=lambda name: work[name].bytes)
                if beside + sum(each.bytes for each in work.values()) <= rooms["GPU"].kept_bytes:
                    yield title, here.name, "any", "all of it has room", "", "GPU"
                    break
                seconds = {name: room.seconds(
                    work[largest], name == "CPU" and work[largest].bytes <= room.kept_bytes)
                    for name, room in rooms.items()}
                yield (title, here.name, f"{rooms['CPU'].model.name}, {memory / 1e9:.0f} GB",
                       *(f"{each:.1f}" for each in seconds.values()),
                       ", ".join(f"{part} {device}" for part, device in sorted(found.items())))


def measure(device: str) -> str:
    """Bytes a second at which weights of two layers of T5-XXL become those of a program."""
    graph = t5_graph(replace(T5_XXL, layers=2, vocab_size=1000), 2, 77)
    random = np.random.default_rng(0)
    weights, held = {}, {}
    for name, value in graph.parameters.items():
        weights[name] = random.random(value.shape, np.float32)
        if len(value.shape) > 1:
            weights[name], held[name] = weights[name].astype(ml_dtypes.bfloat16), "bf16"
    size = sum(each.nbytes for each in weights.values())
    program, found = compile_graph(graph, device=device, weights=held, threads=1), []
    for _ in range(2):
        begun = time.perf_counter(), time.process_time()
        program.bind(weights.__getitem__)
        found.append(f"{time.perf_counter() - begun[0]:.1f} s, of which a core computes "
                     f"{time.process_time() - begun[1]:.1f}")
    return f"{device}: {size / 1e9:.2f} GB in {found[0]}, again in {found[1]}"


def main() -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", nargs="+", default=(), metavar="DEVICE")
    given = parser.parse_args()
    for device in given.measure:
        print(measure(device))
    if not given.measure:
        print("| model | GPU | CPU, its memory | there, s | on the CPU, s | chosen |")
        print("| --- | --- | --- | --- | --- | --- |")
        for row in rows():
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
