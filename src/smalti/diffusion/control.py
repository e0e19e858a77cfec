"""ControlNets in a picture: which, how much, and when.

Zhang et al. 2023, "Adding Conditional Control to Text-to-Image Diffusion Models", arXiv:2302.05543.
Several are added up. Each reads both prompts, as the denoiser does ("balanced").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from smalti.checkpoint import Companion, open_companion
from smalti.diffusion.denoiser import Conditioning
from smalti.diffusion.edges import canny
from smalti.errors import InputError
from smalti.models import ControlNetConfig, UNetConfig, controlnet_graph, tileable
from smalti.runtime import Program, compile_graph

Floats = np.ndarray

TIMES = 1000
"""Training steps: at timestep 999 nothing of a picture is done, at 0 all of it."""
STRENGTH_MAX = 100.0
HELD = ("hint", "types", "context", "vector")
"""Inputs that stay the same for all steps of a picture."""
HALVES = {"F16": "f16", "BF16": "bf16"}


@dataclass(frozen=True)
class Control:
    """A ControlNet, the picture that it reads, and how much it counts from when to when.

    `picture` is one of any size, or f32[height, width, channels] of the size that is made, in
    [0, 1] but for an inpainting ControlNet, of which -1 marks what is to be filled. With `edges`,
    thresholds as of `canny`, the edges of a picture are read instead. `start` and `end` are shares
    of the way from noise to picture, by the times that a model was trained for; `kind` is the
    number of the picture's kind for a union.
    """

    net: Companion
    picture: Image.Image | Floats
    strength: float = 1.0
    start: float = 0.0
    end: float = 1.0
    kind: int = 0
    edges: tuple[float, float] | None = None

    @classmethod
    def load(cls, path: str | Path, picture: Image.Image | Floats, **options: Any) -> Control:
        """One of a ControlNet in a file of any format or a diffusers folder; the options are those
        of the class. Raises CheckpointError for anything else."""
        return cls(open_companion(path), picture, **options)

    def text(self) -> str:
        """What the text of a picture tells of it, as A1111 writes it."""
        return (f"Module: {'none' if self.edges is None else 'canny'}, "
                f"Model: {Path(self.net.path).stem}, Weight: {self.strength:g}, "
                f"Guidance Start: {self.start:g}, Guidance End: {self.end:g}")

    def counts(self, timestep: float) -> bool:
        """Whether it has a say at a time.

        >>> late = Control(None, None, start=0.5)
        >>> late.counts(999.0), late.counts(400.0)
        (False, True)
        """
        done = 1.0 - timestep / (TIMES - 1)
        return self.strength != 0 and self.start <= done <= self.end

    def hint(self, width: int, height: int) -> Floats:
        """What the ControlNet reads for a picture of this size: f32[channels, height, width].

        Raises InputError for an array of another shape.
        """
        if isinstance(self.picture, Image.Image):
            return as_hint(self.picture, width, height, self.edges)
        expected = [height, width, self.net.config.image_channels]
        if list(self.picture.shape) != expected:
            raise InputError(f"a ControlNet is given f32{list(self.picture.shape)}; expected a "
                             f"picture, or f32{expected}")
        return np.ascontiguousarray(self.picture.transpose(2, 0, 1), np.float32)


def as_hint(picture: Image.Image, width: int, height: int,
            edges: tuple[float, float] | None = None) -> Floats:
    """A picture of any size and mode, or its `edges`, as f32[3, height, width] in [0, 1].

    >>> as_hint(Image.new("L", (10, 10), 255), 16, 8).shape
    (3, 8, 16)
    """
    fitting = picture.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    pixels = np.asarray(fitting)
    if edges is not None:
        pixels = np.stack([canny(pixels, *edges)] * 3, axis=-1)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32) / 255


Programs = dict[tuple[object, ...], Program]


@dataclass
class Controls:
    """The ControlNets of a picture as one function of what its denoiser reads.

    `programs` are kept in the mapping that is given, for the next picture. `progress` is called
    with a line of text before anything that may take over a second. With `tiling` a picture can be
    repeated in these directions. Raises InputError for a ControlNet that was made for another
    denoiser, and for numbers out of range.
    """

    uses: Sequence[Control]
    denoiser: object
    precision: str = "auto"
    threads: int | None = None
    progress: Callable[[str], None] = lambda text: None
    programs: Programs = field(default_factory=dict)
    tiling: str = ""
    _hints: dict[tuple[int, ...], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for use in self.uses:
            _check(use, self.denoiser)

    def __call__(self, latents: Floats, timesteps: Floats,
                 conditioning: Conditioning) -> dict[str, Floats]:
        """What the denoiser is given more for rows [n, channels, h, w]: `control.0`, ...; of a time
        at which none counts all are 0."""
        found: dict[str, Floats] = {}
        for number, use in enumerate(self.uses):
            if not use.counts(float(timesteps.max())):
                continue
            program = self._program(use, latents, conditioning)
            own = latents[:, :use.net.config.unet.in_channels]  # an inpainting model reads more
            given = {"latent": own, "timesteps": timesteps, **conditioning,
                     **self._own(number, latents)}
            inputs = {name: given[name] for name in program.inputs}
            for name, array in program.run_checked(inputs).items():
                scaled = array * np.float32(use.strength)
                found[name] = found[name] + scaled if name in found else scaled
        return found or {name: np.zeros(shape, np.float32)
                         for name, shape in self._shapes(latents).items()}

    def _program(self, use: Control, latents: Floats, conditioning: Conditioning) -> Program:
        """The program of a ControlNet for a shape, with its weights."""
        count, _, height, width = latents.shape
        shape = (count, height, width, conditioning["context"].shape[1])
        key = (use.net, *shape, self.tiling)
        if key not in self.programs:
            net = use.net
            graph = controlnet_graph(net.config, *shape)
            if self.tiling:
                graph = tileable(graph, self.tiling)
            self.progress("compiling the ControlNet")
            program = compile_graph(
                graph, precision=self.precision, threads=self.threads,
                held=[name for name in HELD if name in graph.inputs],
                weights={name: HALVES[net.dtype(name)] for name in graph.parameters
                         if net.dtype(name) in HALVES})
            self.progress("loading the ControlNet")
            program.bind(net.floats, net.drop)
            self.programs[key] = program
        return self.programs[key]

    def _own(self, number: int, latents: Floats) -> dict[str, Floats]:
        """The inputs of one use alone: its picture for each row, and of which kind that is."""
        use = self.uses[number]
        config: ControlNetConfig = use.net.config
        height, width = (config.downscale * extent for extent in latents.shape[2:])
        key = (number, width, height)
        if key not in self._hints:
            self._hints[key] = use.hint(width, height)
        hint = self._hints[key]
        found = {"hint": np.broadcast_to(hint, (len(latents), *hint.shape))}
        if config.types:
            found["types"] = np.eye(config.types, dtype=np.float32)[[use.kind]]
        return found

    def _shapes(self, latents: Floats) -> dict[str, tuple[int, ...]]:
        """Shapes of what is added to the denoiser's blocks."""
        count, _, height, width = latents.shape
        graph = controlnet_graph(ControlNetConfig(self.denoiser), count, height, width, tokens=1)
        return {name: value.shape for name, value in graph.outputs.items()}


def _check(use: Control, unet: object) -> None:
    """Raise InputError for a use that cannot be."""
    config = use.net.config
    if not isinstance(unet, UNetConfig):
        raise InputError(f"{use.net.path} is a ControlNet for a UNet, and this model has none")
    if not isinstance(config, ControlNetConfig):
        raise InputError(f"{use.net.path} is no ControlNet")
    for what in ("block_channels", "res_blocks", "vector_dim"):
        ours, theirs = getattr(unet, what), getattr(config.unet, what)
        if ours != theirs:
            raise InputError(f"{use.net.path} was made for another model: its {what} are {theirs}, "
                             f"those of the denoiser {ours}")
    if any(config.unet.attention) and config.unet.context_dim != unet.context_dim:
        raise InputError(f"{use.net.path} was made for prompts of width {config.unet.context_dim}, "
                         f"the denoiser's are {unet.context_dim} wide")
    if not 0 <= use.start <= use.end <= 1:
        raise InputError(f"a ControlNet counts from {use.start} to {use.end}; expected 0 <= start "
                         f"<= end <= 1")
    if not abs(use.strength) <= STRENGTH_MAX:
        raise InputError(f"the strength of a ControlNet is {use.strength}; expected at most "
                         f"{STRENGTH_MAX:.0f}")
    if config.types and not 0 <= use.kind < config.types:
        raise InputError(f"{use.net.path} knows {config.types} kinds of pictures, 0 to "
                         f"{config.types - 1}; got {use.kind}")
