"""What a picture will be, while it is made: its latents through a tiny autoencoder (TAESD).

    preview = Preview.load("taesd_decoder.safetensors")
    for step in pipe.steps("a red apple"):
        preview(step.denoised)[0].show()
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

import numpy as np
from PIL import Image

from smalti.checkpoint import Companion, open_companion
from smalti.dataclass import dataclass
from smalti.diffusion.residents import ignore
from smalti.diffusion.result import to_image
from smalti.errors import InputError
from smalti.fetch import located
from smalti.models import TaesdConfig, taesd_decoder_graph
from smalti.runtime import Program, compile_graph
from smalti.runtime.choice import chosen


@dataclass
class Preview:
    """The decoder of a tiny autoencoder, for latents of any size. Raises InputError for a network
    that has none."""

    net: Companion
    threads: int | None = None
    device: str = "cpu"
    _programs: dict[tuple[int, int], Program] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path, threads: int | None = None, device: str = "auto") -> Preview:
        """Open TAESD in a file of any format, a diffusers folder, or by its name: that of the
        model's family.

        Raises CheckpointError for a file of something else, InputError for one without a decoder.
        """
        return cls(open_companion(located(path, None, ignore)), threads, chosen(device))

    def __post_init__(self) -> None:
        config = self.net.config
        if not isinstance(config, TaesdConfig) or "taesd.decoder.1.weight" not in self.net:
            raise InputError(f"{self.net.path} holds no decoder of a tiny autoencoder; expected "
                             f"TAESD")
        self.config = config

    def __call__(self, latents: np.ndarray) -> list[Image.Image]:
        """RGB pictures of latents f32[batch, channels, h, w], those of a step.

        Raises InputError for latents of another kind of model.
        """
        config = self.config
        if latents.ndim != 4 or latents.shape[1] != config.z_channels:
            raise InputError(f"{self.net.path} decodes latents of {config.z_channels} channels; "
                             f"these are f32{list(latents.shape)}")
        shape = (latents.shape[2], latents.shape[3])
        if shape not in self._programs:
            program = compile_graph(taesd_decoder_graph(config, 1, *shape), threads=self.threads,
                                    device=self.device)
            program.bind(self.net.floats)
            self._programs = {shape: program}
        return [to_image(self._programs[shape].run_checked({"latent": latent})["image"][0])
                for latent in np.ascontiguousarray(latents, np.float32)[:, None]]
