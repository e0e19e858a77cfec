"""What a ControlNet, an upscaler or a tiny autoencoder is, as the text of `smalti inspect`."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from smalti.checkpoint.companion import CompanionConfig, open_companion
from smalti.checkpoint.report import millions
from smalti.models import (
    ControlNetConfig,
    FluxControlNetConfig,
    MMDiTControlNetConfig,
    RrdbConfig,
    SrvggConfig,
    TaesdConfig,
)

UNETS = {768: "Stable Diffusion 1.x", 1024: "Stable Diffusion 2.x", 2048: "SDXL"}
"""Width of the context that a ControlNet reads -> what it fits."""


def companion_report(path: str | Path) -> str:
    """What the network at `path` is and fits. Raises CheckpointError for a file that is none."""
    found = open_companion(path)
    config = found.config
    count = sum(math.prod(found.shape(name)) for name in found.names())
    kinds = Counter(found.dtype(name) for name in found.names())
    lines = {
        "file": str(path),
        "family": _family(config),
        "details": _details(config),
        "precision": ", ".join(f"{kind} ({number} tensors)" for kind, number in kinds.items()),
        "parameters": millions(count),
        "halves": ", ".join(half for half in ("decoder", "encoder") if any(
            name.startswith(f"taesd.{half}.") for name in found.names())),
        "use": _use(config),
    }
    return "\n".join(f"{label:<12}{text}" for label, text in lines.items() if text)


def _family(config: CompanionConfig) -> str:
    match config:
        case ControlNetConfig():
            width = config.unet.context_dim
            model = UNETS.get(width, f"a UNet that reads prompts of width {width}")
            return f"a {'union of ControlNets' if config.types else 'ControlNet'} for {model}"
        case FluxControlNetConfig():
            return f"a {'union of ControlNets' if config.modes else 'ControlNet'} for FLUX.1"
        case MMDiTControlNetConfig():
            return "a ControlNet for Stable Diffusion 3" if config.joint else \
                "a ControlNet for Stable Diffusion 3.5 large"
        case RrdbConfig():
            return f"an ESRGAN upscaler, x{config.scale:g}"
        case SrvggConfig():
            return f"a compact Real-ESRGAN upscaler, x{config.scale}"
        case TaesdConfig():
            return f"a tiny autoencoder (TAESD) for latents of {config.z_channels} channels"


def _details(config: CompanionConfig) -> str:
    match config:
        case ControlNetConfig():
            kinds = f", {config.types} kinds of pictures" if config.types else ""
            mean = ", of which it hands on the mean" if config.pooled else ""
            return f"levels of {', '.join(map(str, config.unet.block_channels))}{kinds}{mean}"
        case FluxControlNetConfig():
            kinds = f", {config.modes} kinds of pictures" if config.modes else ""
            return f"{config.double_blocks} + {config.single_blocks} blocks{kinds}"
        case MMDiTControlNetConfig():
            return f"{config.blocks} blocks of {config.hidden_size}"
        case RrdbConfig():
            return f"{config.blocks} blocks of {config.channels} channels"
        case SrvggConfig():
            return f"{config.convolutions} convolutions of {config.channels} channels"
    return ""


def _use(config: CompanionConfig) -> str:
    if isinstance(config, RrdbConfig | SrvggConfig):
        return "smalti upscale PICTURE --model FILE"
    if isinstance(config, TaesdConfig):
        return "smalti generate PROMPT --preview FILE"
    return "smalti generate PROMPT --control FILE PICTURE"
