"""ControlNets in a picture: which, how much, and when.

Zhang et al. 2023, "Adding Conditional Control to Text-to-Image Diffusion Models", arXiv:2302.05543.
Several are added up, those of transformers, too (see `families.controls`). Each reads both prompts,
as the denoiser does ("balanced").
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from smalti.checkpoint import Companion, open_companion
from smalti.checkpoint.adapters import Adapted, changed
from smalti.compiler.options import ROUNDED
from smalti.dataclass import dataclass
from smalti.diffusion.denoiser import Conditioning
from smalti.diffusion.edges import canny
from smalti.diffusion.residents import UNCHANGED, Resident, Residents, Wanted, ignore
from smalti.errors import InputError
from smalti.families.controls import ControlKind, control_kind, joined, misfit
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
    [0, 1]; None stands for the one that is changed. What is transparent in it, or -1, is to be
    filled by a net that does so. A net that reads what it fills besides a picture that steers, as
    those of Z-Image do, takes it from `fill`, or, where that is None, from the picture that is
    changed and its mask. With `edges`, thresholds as of `canny`, the edges of a picture are read
    instead. `start` and `end` are shares of the way from noise to picture, by the times that a
    model was trained for; `kind` is the number of the picture's kind for a union.
    """

    net: Companion
    picture: Image.Image | Floats | None
    strength: float = 1.0
    start: float = 0.0
    end: float = 1.0
    kind: int = 0
    edges: tuple[float, float] | None = None
    fill: Image.Image | Floats | None = None

    @classmethod
    def load(cls, path: str | Path, picture: Image.Image | Floats | None = None,
             **options: Any) -> Control:
        """One of a ControlNet in a file of any format, a diffusers folder, or by its name; the
        options are those of the class. Raises CheckpointError for anything else."""
        return cls(open_companion(located(path, None, ignore)), picture, **options)

    @property
    def net_kind(self) -> ControlKind:
        """What is known of ControlNets like this one. Raises InputError for another network."""
        kind = control_kind(self.net.config)
        if kind is None:
            raise InputError(f"{self.net.path} is no ControlNet")
        return kind

    @property
    def fills(self) -> bool:
        """Whether it reads where its picture is to be filled."""
        return self.net_kind.fills(self.net.config)

    @property
    def completes(self) -> bool:
        """Whether the picture that it fills is another one than that which steers."""
        return self.net_kind.completes(self.net.config)

    @property
    def fills_changed(self) -> bool:
        """Whether it fills what is masked in the picture that is changed, all the way, and what is
        not masked stays by its doing: the model needs not be shown what is known."""
        own = self.fill is not None or self.picture is not None and (
            not self.completes or _has_holes(self.picture))
        return (self.net_kind.keeps(self.net.config) and not own and self.strength != 0
                and (self.start, self.end) == (0, 1))

    def shown(self, changed: Image.Image | None) -> Control:
        """The same with the picture that is `changed`, where it reads that: what is transparent of
        it is masked. Raises InputError where there is none."""
        if (self.completes and self.fill is None and changed is not None and _has_holes(changed)
                and (self.picture is None or not _has_holes(self.picture))):
            return replace(self, fill=changed)
        if self.picture is None and self.fill is None:
            if changed is None:
                raise InputError(f"{self.net.path} is given without a picture, which stands for "
                                 f"the one that is changed, and none is; give it a picture, or an "
                                 f"image")
            return replace(self, picture=changed)
        return self

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
        return self._read(self.picture, width, height, self.edges)

    def hints(self, width: int, height: int) -> tuple[Floats | None, Floats | None]:
        """For a net that reads what it fills besides a picture that steers: what it reads of the
        one that steers, and of the other one. One picture that has holes is the other one."""
        if self.fill is not None:
            steering = None if self.picture is None else self.hint(width, height)
            return steering, self._read(self.fill, width, height, None)
        hint = self.hint(width, height)
        return (None, hint) if (hint < 0).any() else (hint, None)

    def _read(self, picture: Image.Image | Floats | None, width: int, height: int,
              edges: tuple[float, float] | None) -> Floats:
        if isinstance(picture, Image.Image):
            hint = as_hint(picture, width, height, edges)
            if self.fills:
                hint[:, transparent(picture, width, height)] = TO_FILL
            return hint
        expected = [height, width, getattr(self.net.config, "image_channels", 3)]
        if not isinstance(picture, np.ndarray) or list(picture.shape) != expected:
            given = (f"f32{list(picture.shape)}" if isinstance(picture, np.ndarray)
                     else f"{picture!r:.40}")
            raise InputError(f"a ControlNet is given {given}; expected a picture, or f32{expected}")
        return np.ascontiguousarray(picture.transpose(2, 0, 1), np.float32)


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


def _has_holes(picture: Image.Image | Floats) -> bool:
    """Whether anything of a picture is to be filled."""
    if isinstance(picture, Image.Image):
        return picture.has_transparency_data and bool(transparent(picture, *picture.size).any())
    return isinstance(picture, np.ndarray) and bool((picture < 0).any())


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
                self._hints[key] = _of_latents(use, self.beside, height, width)
        return self._hints[key]


def _of_latents(use: Control, beside: SteeredModel, height: int, width: int) -> Floats:
    """What a net reads that takes latents of pictures, for one of this size."""
    vae, net, kind = beside.vae, use.net.config, use.net_kind
    size = vae.downscale * width, vae.downscale * height

    def latent(pixels: Floats) -> Floats:
        return kind.scaled(net, beside.encode(pixels), vae)

    if not use.completes:
        hint = use.hint(*size)
        return kind.channels(net, latent(kind.pixels(net, hint)), hint)
    steering, fill = use.hints(*size)
    shape = (kind.latent_channels(net), height, width)
    seen = (np.zeros(shape, np.float32) if steering is None
            else latent(kind.pixels(net, steering)))
    if fill is None:
        return kind.channels(net, seen, None)
    filled = latent((2 * fill - 1) * (fill >= 0))
    return np.concatenate([kind.channels(net, seen, fill), filled])


def _key(net: Companion) -> Hashable:
    """What residents know a net as."""
    return net, "control"


def _check(use: Control, denoiser: DenoiserConfig) -> None:
    """Raise InputError for a use that cannot be: of a net that was made for another denoiser, of an
    unknown kind of picture, or with numbers outside their ranges."""
    path, net = use.net.path, use.net.config
    if why := misfit(net, denoiser):
        raise InputError(f"{path} {why}")
    if use.fill is not None and not use.completes:
        raise InputError(f"{path} is given a picture to fill besides one that steers, which only "
                         f"ControlNets of Z-Image from 2.0 on read; leave it out")
    filled = use.picture if use.net_kind.only_fills(net) else use.fill
    if isinstance(filled, Image.Image) and not _has_holes(filled):
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
