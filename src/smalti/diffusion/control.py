"""ControlNets in a picture: which, how much, and when.

Zhang et al. 2023, "Adding Conditional Control to Text-to-Image Diffusion Models", arXiv:2302.05543.
Several are added up, those of transformers, too (see `families.controls`). Each reads both prompts,
as the denoiser does ("balanced").
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from smalti.checkpoint import Companion, open_companion
from smalti.checkpoint.adapters import Adapted, changed
from smalti.compiler.options import ROUNDED
from smalti.diffusion.denoiser import Conditioning
from smalti.diffusion.edges import canny
from smalti.diffusion.residents import UNCHANGED, Resident, Residents, Wanted, ignore
from smalti.errors import InputError
from smalti.families.controls import CONTROL_KINDS, ControlKind, joined, misfit
from smalti.fetch import located
from smalti.graph.quantised import FORMATS, Quantised
from smalti.models import VaeConfig, tileable
from smalti.models.denoiser_config import DenoiserConfig
from smalti.runtime import Program, compile_graph
from smalti.runtime.choice import of_wide_range

Floats = np.ndarray

TIMES = 1000
"""Training steps: at timestep 999 nothing of a picture is done, at 0 all of it."""
STRENGTH_MAX = 100.0
"""Far beyond what any net is used with, which is 2; a larger one is a slip."""
TO_FILL = -1.0
"""What a pixel that is to be filled is for an inpainting ControlNet."""
OPAQUE = 128
"""Of 255 that a pixel must have at least in order to stay."""
NOTHING = np.zeros((), np.float32)
HELD = ("hint", "types", "mode", "context", "mask", "vector", "pooled", "guidance", "strength")
"""Inputs that stay the same for all steps of a picture."""


@dataclass(frozen=True)
class Control:
    """A ControlNet, the picture that it reads, and how much it counts from when to when.

    `picture` is one of any size, or f32[height, width, channels] of the size that is made, in
    [0, 1] but for an inpainting ControlNet, of which -1 marks what is to be filled; of one for a
    transformer that is what is transparent in a picture. With `edges`,
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
        """One of a ControlNet in a file of any format, a diffusers folder, or by its name; the
        options are those of the class. Raises CheckpointError for anything else."""
        return cls(open_companion(located(path, None, ignore)), picture, **options)

    @property
    def net_kind(self) -> ControlKind:
        """What is known of ControlNets like this one."""
        return CONTROL_KINDS[type(self.net.config)]

    @property
    def fills(self) -> bool:
        """Whether it reads where its picture is to be filled."""
        return self.net_kind.fills(self.net.config)

    def text(self) -> str:
        """What the text of a picture tells of it, as A1111 writes it."""
        return (f"Module: {'none' if self.edges is None else 'canny'}, "
                f"Model: {Path(self.net.path).stem}, Weight: {self.strength:g}, "
                f"Guidance Start: {self.start:g}, Guidance End: {self.end:g}")

    def counts(self, timestep: float) -> bool:
        """Whether it has a say at a training step.

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
            hint = as_hint(self.picture, width, height, self.edges)
            if self.fills:
                hint[:, transparent(self.picture, width, height)] = TO_FILL
            return hint
        expected = [height, width, getattr(self.net.config, "image_channels", 3)]
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


def transparent(picture: Image.Image, width: int, height: int) -> Floats:
    """Where more than half of what lies behind a picture is seen, bool[height, width].

    >>> transparent(Image.new("RGBA", (10, 10), (255, 0, 0, 127)), 16, 8).all()
    np.True_
    """
    alpha = picture.convert("RGBA").getchannel("A").resize((width, height),
                                                           Image.Resampling.LANCZOS)
    return np.asarray(alpha) < OPAQUE


@dataclass(frozen=True)
class SteeredModel:
    """What ControlNets need of the model that they steer.

    `encode` gives the mean f32[z, height / f, width / f] of a picture f32[3, height,
    width] in [-1, 1]; `weights` are those of the model, with adapters; `trained_step` gives the
    training step, 0 to 999, of a timestep of the denoiser; `held` the dtypes of those weights that
    are held as halves, or smaller.
    """

    vae: VaeConfig
    encode: Callable[[Floats], Floats]
    weights: Adapted
    trained_step: Callable[[float], float]
    held: Callable[[Iterable[str]], Mapping[str, str]] = lambda names: {}


@dataclass(frozen=True)
class NetWeights:
    """The weights of a net, and for those that it lacks the ones of the model `beside` it."""

    net: Companion
    beside: Adapted | None = None

    def given(self, name: str) -> Floats | Quantised:
        """A weight by its name."""
        return (self.net.given(name) if name in self.net or self.beside is None
                else self.beside.given(name))

    def drop(self, name: str) -> None:
        """Let go of the memory that a weight of the net was read into."""
        if name in self.net:
            self.net.drop(name)

    def differing(self, resident: Resident) -> frozenset[str] | None:
        """The weights of a program of the net that adapters of the model make others; None where
        that cannot be told, as of another model."""
        before, recipe = resident.weights, resident.program.recipe
        if not isinstance(before, NetWeights) or recipe is None:
            return None
        read = frozenset(name for name in recipe.graph.parameters if name not in self.net)
        if before.beside is self.beside or not read:
            return UNCHANGED
        if before.beside is None or self.beside is None \
                or before.beside.model is not self.beside.model:
            return None
        return changed(before.beside, self.beside) & read


@dataclass
class Controls:
    """The ControlNets of a picture as one function of what its denoiser reads.

    `residents` hold one program of each net. `progress` is called with a line of text before
    anything that may take over a second. With `tiling` a picture can be
    repeated in these directions. Without what is `beside` it, timesteps are training steps and no
    ControlNet reads a latent. `user` is the picture that is made, `say` hears what was done because
    memory was short. Raises InputError for a ControlNet that was made for another
    denoiser, and for numbers out of range.
    """

    uses: Sequence[Control]
    denoiser: DenoiserConfig
    precision: str = "auto"
    threads: int | None = None
    progress: Callable[[str], None] = ignore
    residents: Residents = field(default_factory=Residents)
    tiling: str = ""
    beside: SteeredModel | None = None
    device: str = "cpu"
    user: Hashable = None
    say: Callable[[str], None] = ignore
    _hints: dict[tuple[int, ...], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for use in self.uses:
            _check(use, self.denoiser)
        self.joined = joined(self.denoiser, [use.net.config for use in self.uses])

    def read(self, height: int, width: int) -> None:
        """Read all pictures, for a latent of this size."""
        for number in range(len(self.uses)):
            self._hint(number, height, width)

    def __call__(self, latents: Floats, timesteps: Floats,
                 conditioning: Conditioning) -> dict[str, Floats]:
        """What the denoiser is given more for rows [n, channels, h, w]: `control.0`, ...; of a time
        at which none counts all are 0."""
        found: dict[str, Floats] = {}
        time = float(timesteps.max())
        step = time if self.beside is None else self.beside.trained_step(time)
        for number, use in enumerate(self.uses):
            if not use.counts(step):
                continue
            rows = slice(0, 1 if use.net_kind.prompt_alone else len(latents))
            channels = use.net_kind.latent_channels(use.net.config)
            read, told = latents[rows, :channels], {name: part[rows] for name, part
                                                    in conditioning.items()}
            given = {"latent": read, "timesteps": timesteps[rows], **told,
                     **self._own(number, read, told)}
            with self.residents.turn:
                program = self._program(use, read, told)
                outputs = program.run_checked({name: given[name] for name in program.inputs})
            for name, sources in self.joined.sources.items():
                if sources[number]:
                    scaled = outputs[sources[number]] * np.float32(use.strength)
                    found[name] = found[name] + scaled if name in found else scaled
        shapes = self.uses[0].net_kind.shapes(
            self.denoiser, list(self.joined.sources), len(latents), *latents.shape[2:],
            conditioning["context"].shape[1])
        return {name: np.broadcast_to(found.get(name, NOTHING), shapes[name])
                for name in self.joined.sources}

    def _program(self, use: Control, latents: Floats, conditioning: Conditioning) -> Program:
        """The program of a ControlNet for a shape, with its weights."""
        count, _, height, width = latents.shape
        shape, net = (count, height, width, conditioning["context"].shape[1]), use.net
        weights = NetWeights(net, None if self.beside is None else self.beside.weights)

        def takes(resident: Resident, names: frozenset[str]) -> bool:
            """Not where quantised weights of the model are to be held as another dtype."""
            if not names or resident.program.recipe is None:
                return not names
            held, wanted = dict(resident.program.recipe.options.weights), self._beside(names, net)
            return all(held[name] == wanted.get(name) for name in names
                       if held.get(name) in FORMATS)

        def build(like: Program | None) -> Program:
            graph = use.net_kind.graph(net.config, self.denoiser, *shape)
            if self.tiling:
                graph = tileable(graph, self.tiling)
            self.progress("compiling the ControlNet")
            rounded = self.precision == ROUNDED
            precision = of_wide_range(self.device, ROUNDED) if rounded else self.precision
            return compile_graph(
                graph, precision=precision, threads=self.threads,
                held=[name for name in HELD if name in graph.inputs],
                weights={**self._beside(graph.parameters, net), **net.held(graph)}, like=like,
                device=self.device)

        return self.residents.ready(Wanted(
            _key(net), "the ControlNet", (*shape, self.tiling), weights, build, weights.differing,
            takes, user=self.user, progress=self.progress, say=self.say)).program

    def _beside(self, names: Iterable[str], net: Companion) -> dict[str, str]:
        """The dtypes of the weights of the model that a net reads, and that are no f32."""
        if self.beside is None:
            return {}
        return dict(self.beside.held([name for name in names if name not in net]))

    def end(self) -> None:
        """The nets are not needed for a while."""
        for use in self.uses:
            self.residents.done(_key(use.net), self.user)

    def _own(self, number: int, latents: Floats, conditioning: Conditioning) -> dict[str, Floats]:
        """The inputs of one use alone: its picture for each row, and of which kind that is."""
        use = self.uses[number]
        hint = self._hint(number, *latents.shape[2:])
        return {"hint": np.broadcast_to(hint, (len(latents), *hint.shape)),
                "strength": np.full(len(latents), use.strength, np.float32),
                **use.net_kind.conditions(use.net.config, len(latents), conditioning, use.kind)}

    def _hint(self, number: int, height: int, width: int) -> Floats:
        """What a net reads of its picture, for a latent of this size."""
        key = (number, width, height)
        if key not in self._hints:
            use = self.uses[number]
            factor = use.net_kind.downscale(use.net.config)
            if factor:
                self._hints[key] = use.hint(factor * width, factor * height)
            elif self.beside is None:
                raise InputError(f"{use.net.path} reads a latent, which the autoencoder of the "
                                 f"model beside it makes; give that model, too")
            else:
                vae, encode = self.beside.vae, self.beside.encode
                hint = use.hint(vae.downscale * width, vae.downscale * height)
                net, kind = use.net.config, use.net_kind
                latent = kind.scaled(net, encode(kind.pixels(net, hint)), vae)
                self._hints[key] = kind.channels(net, latent, hint)
        return self._hints[key]


def _key(net: Companion) -> Hashable:
    """What residents know a net as."""
    return net, "control"


def _check(use: Control, denoiser: DenoiserConfig) -> None:
    """Raise InputError for a use that cannot be: of a net that was made for another denoiser, of an
    unknown kind of picture, or with numbers outside their ranges."""
    path, net = use.net.path, use.net.config
    if why := misfit(net, denoiser):
        raise InputError(f"{path} {why}")
    if use.fills and isinstance(use.picture, Image.Image) \
            and not transparent(use.picture, *use.picture.size).any():
        raise InputError(f"{path} fills what is transparent in its picture, and this one has "
                         f"nothing that is; make it transparent where it is to be filled")
    if (count := use.net_kind.kinds(net)) and not 0 <= use.kind < count:
        raise InputError(f"{path} knows {count} kinds of pictures, 0 to {count - 1}; got "
                         f"{use.kind}")
    if not 0 <= use.start <= use.end <= 1:
        raise InputError(f"a ControlNet counts from {use.start} to {use.end}; expected 0 <= start "
                         f"<= end <= 1")
    if not abs(use.strength) <= STRENGTH_MAX:
        raise InputError(f"the strength of a ControlNet is {use.strength}; expected at most "
                         f"{STRENGTH_MAX:.0f}")
