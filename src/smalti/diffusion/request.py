"""What is asked of a pipeline, checked before any work starts, with the model's own defaults."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, replace
from numbers import Integral, Real

from smalti import __version__
from smalti.diffusion.change import Change
from smalti.diffusion.emphasis import EMPHASES
from smalti.diffusion.guidance import PLAIN, Guide
from smalti.diffusion.hires import Hires, hires
from smalti.diffusion.metadata import Parameters
from smalti.diffusion.noise import NOISES, STEPS_MAX, Schedule, find_schedule
from smalti.diffusion.random import RNGS, SEED_END, batch_seeds
from smalti.diffusion.samplers import SAMPLERS, Sampler, split_label
from smalti.diffusion.variation import Variation
from smalti.errors import InputError
from smalti.models.config import ModelConfig
from smalti.models.tileable import DIRECTIONS

SIZE_MAX = 4096
COPIES = 10
"""Activations of a denoiser that are there at a time, as a guess."""
MEMORY_MIN, MEMORY_MAX = 256 << 20, 1 << 50
BATCH_MAX = 64
GUIDANCE_MAX = 100.0
REFINER_SWITCH = 0.8
RANDOM_SEED = -1
RANDOM_SEED_BITS = 32  # what people can still type


@dataclass(frozen=True)
class Request:
    """Everything that decides a picture, complete and valid; sizes in pixels.

    `clip_skip` is None for the state of CLIP that the model was trained with. `distilled_guidance`
    is what a model is told that was distilled from guided ones. `emphasis` is what weights in a
    prompt do. `loras` are names and weights of adapters; `controls` tell of ControlNets. `tiling`
    names the directions in which a picture can be repeated. `refiner` is the name of the model that
    takes over after the share `refiner_switch` of the steps, None without one. `guide` is how
    guidance is done. `change` is how a picture is changed, None without one; `variation` how the
    first noise differs from that of the seed; `hires` a second pass at a larger size. Evaluations
    whose change is foretold to be below `cache` are left out.
    """

    prompt: str
    negative_prompt: str
    width: int
    height: int
    steps: int
    guidance_scale: float
    sampler: str
    noise: str
    seed: int
    rng: str
    batch_size: int
    model: str
    clip_skip: int | None = None
    distilled_guidance: float | None = None
    emphasis: str = "original"
    loras: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    tiling: str = ""
    refiner: str | None = None
    refiner_switch: float | None = None
    guide: Guide = PLAIN
    change: Change | None = None
    variation: Variation | None = None
    hires: Hires | None = None
    cache: float = 0.0

    def refiner_start(self, steps: int) -> int:
        """The step of so many, counted from 0, from which on the refiner denoises."""
        return steps if self.refiner_switch is None else math.ceil(self.refiner_switch * steps)

    @property
    def seeds(self) -> tuple[int, ...]:
        """One seed a picture: they follow one another, but for variations of one."""
        if self.variation is not None:
            return (self.seed,) * self.batch_size
        return batch_seeds(self.seed, self.batch_size)

    def second_pass(self) -> Request:
        """What is asked of the second pass, from the picture of the first on."""
        return replace(self, width=self.hires.width, height=self.hires.height, hires=None,
                       steps=self.hires.schedule_steps)

    def text(self, number: int = 0) -> str:
        """The A1111 `parameters` text of a picture of the batch."""
        others = {"Clip skip": self.clip_skip, "Distilled CFG Scale": self.distilled_guidance,
                  "Refiner switch at": self.refiner_switch, "Step cache": self.cache or None}
        emphasis = {} if self.emphasis == "original" else {
            "Emphasis": self.emphasis.capitalize()}
        return str(Parameters(
            prompt=self.prompt, negative_prompt=self.negative_prompt, steps=self.steps,
            sampler=SAMPLERS[self.sampler].label, schedule=find_schedule(self.noise).label,
            guidance=self.guidance_scale, seed=self.seeds[number], width=self.width,
            height=self.height, rng=self.rng,
            others={**{key: f"{value:g}" for key, value in others.items() if value is not None},
                    **emphasis, **self.guide.labels(),
                    **(self.change.labels() if self.change else {}),
                    **(self.variation.labels(number) if self.variation else {}),
                    **(self.hires.labels() if self.hires else {}),
                    **({"Lora": ", ".join(self.loras)} if self.loras else {}),
                    **({"Refiner": self.refiner} if self.refiner else {}),
                    **({"Tiling": "True"} if self.tiling else {}),
                    **{f"ControlNet {number}": text
                       for number, text in enumerate(self.controls)},
                    "Model": self.model, "Version": f"Smalti {__version__}"}))


def request(config: ModelConfig, model: str, *, memory_bytes: int, prompt: str = "",
            negative_prompt: str = "", width: int | None = None, height: int | None = None,
            steps: int | None = None, guidance_scale: float | None = None,
            sampler: str | None = None, noise: str | None = None, seed: int = 7, rng: str = "cpu",
            batch_size: int = 1, clip_skip: int | None = None,
            distilled_guidance: float | None = None, emphasis: str = "original",
            loras: tuple[str, ...] = (), controls: tuple[str, ...] = (),
            tiling: str = "", refiner: str | None = None,
            refiner_switch: float | None = None, guide: Guide = PLAIN,
            change: Change | None = None, variation: Variation | None = None,
            enlarging: tuple[object, ...] = (None,) * 4, cache: float = 0.0) -> Request:
    """A complete `Request`; None becomes the model's own default, seed -1 a random seed.

    `enlarging` are factor, strength, steps and upscaler of a second pass; see `hires`. `model` is
    the name that goes into the picture's text. Raises InputError that says what was
    given, what was expected and what to do.

    >>> from smalti.models.config import SD15
    >>> made = request(SD15, "sd15", memory_bytes=2**34, prompt="a red apple", negative_prompt="",
    ...                height=768, seed=7, batch_size=2)
    >>> made.width, made.height, made.steps, made.guidance_scale, made.seeds
    (512, 768, 20, 7.0, (7, 8))
    """
    for what, text in (("the prompt", prompt), ("the negative prompt", negative_prompt)):
        if not isinstance(text, str):
            raise InputError(f"{what} is {text!r}; expected text")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"{what} holds bytes that are no UTF-8 text ({text!a:.80}); expected "
                             f"text, so check the encoding of what it was made from")
    width = config.default_width if width is None else width
    height = config.default_height if height is None else height
    steps = config.default_steps if steps is None else steps
    guidance = config.default_guidance if guidance_scale is None else guidance_scale
    sampler = config.default_sampler if sampler is None else sampler
    if isinstance(sampler, str):
        sampler, named = split_label(sampler)
        noise = named if noise is None else noise
    noise = config.default_noise if noise is None else noise
    _check_size(config, width, height, memory_bytes)
    steps = _whole("steps", steps, 1, STEPS_MAX)
    batch_size = _whole("batch_size", batch_size, 1, BATCH_MAX)
    guidance = _scale("guidance_scale", guidance, "7 is usual, 1 turns guidance off")
    check_name("sampler", sampler, SAMPLERS)
    schedule = _schedule(noise, SAMPLERS[sampler], config)
    steps = schedule.fixed_steps or steps
    check_name("rng", rng, RNGS)
    check_name("emphasis", emphasis, EMPHASES)
    if seed == RANDOM_SEED:
        seed = secrets.randbits(RANDOM_SEED_BITS)
    seed = _whole("seed", seed, 0, SEED_END - 1, f"; {RANDOM_SEED} draws one")
    if clip_skip is not None:
        clip_skip = _whole("clip_skip", clip_skip, 1, min(
            (text.layers for text in config.texts.values()), default=1))
    if tiling:
        _check_tiling(tiling, config)
    larger = hires(*enlarging, (width, height), size_multiple(config), steps, STEPS_MAX)
    if larger is not None:
        _check_size(config, larger.width, larger.height, memory_bytes)
    return Request(prompt, negative_prompt, int(width), int(height), steps, guidance,
                   SAMPLERS[sampler].name, schedule.name, seed, rng, batch_size, model, clip_skip,
                   _distilled(config, distilled_guidance), emphasis, loras,
                   controls, tiling, refiner, _switch(refiner, refiner_switch),
                   _guide(guide, config), change, variation, larger, cache)


def _guide(guide: Guide, config: ModelConfig) -> Guide:
    """How guidance is done. Raises InputError for layers to skip that the model has not."""
    if guide.skip is None:
        return guide
    if not config.denoiser.skippable_blocks:
        raise InputError("layers can be skipped in models of the family of Stable Diffusion 3 only")
    for layer in guide.skip.layers:
        _whole("a layer to skip", layer, 0, config.denoiser.skippable_blocks - 1)
    return guide


def _switch(refiner: str | None, share: object) -> float | None:
    """The share of the steps after which a refiner takes over; None without one."""
    if refiner is None:
        if share is not None:
            raise InputError("refiner_switch is given, but no refiner; load the pipeline with one")
        return None
    share = REFINER_SWITCH if share is None else share
    if not isinstance(share, Real) or not 0 <= share <= 1:
        raise InputError(f"refiner_switch is {share!r}; expected a share of the steps from 0 to 1, "
                         f"such as 0.8")
    return float(share)


def _check_tiling(tiling: object, config: ModelConfig) -> None:
    """Raise InputError for other directions, or a denoiser whose edges cannot be joined."""
    check_name("tiling", tiling, DIRECTIONS)
    if not config.denoiser.tileable:
        raise InputError("pictures that can be repeated are made by models with a UNet; this one "
                         "is a transformer")


def check_name(what: str, name: object, known: Collection[str]) -> None:
    """Raise InputError listing the known names when `name` is none of them.

    >>> check_name("rng", "gpu", ("cpu", "cuda"))
    Traceback (most recent call last):
        ...
    smalti.errors.InputError: rng is 'gpu'; known: cpu, cuda
    """
    if not isinstance(name, str) or name not in known:
        raise InputError(f"{what} is {name!r}; known: {', '.join(known)}")


def _schedule(noise: object, sampler: Sampler, config: ModelConfig) -> Schedule:
    """The schedule of a name, of "automatic", or of noise levels such as "14.6, 1.5, 0"."""
    if isinstance(noise, str):
        noise = sampler.chosen(noise, config.prediction == "flow")
        if "," in noise:
            return find_schedule(noise)
    check_name("noise", noise, NOISES)
    return NOISES[noise]


def _scale(what: str, number: object, advice: str) -> float:
    """`number`, which may be numpy's, as a float. Raises InputError below 0 or above the most."""
    real = isinstance(number, Real) and math.isfinite(number)
    if not real or not 0 <= number <= GUIDANCE_MAX:
        raise InputError(f"{what} is {number!r}; expected a number from 0 to {GUIDANCE_MAX:g}; "
                         f"{advice}")
    return float(number)


def _distilled(config: ModelConfig, number: object) -> float | None:
    """What a model is told that was distilled from guided ones; None for the others."""
    if config.denoiser.guidance:
        number = config.default_distilled_guidance if number is None else number
        return _scale("distilled_guidance", number, "3.5 is usual")
    if number is not None:
        raise InputError("distilled_guidance is for models that were distilled from guided ones, "
                         "such as FLUX.1 dev; use guidance_scale")
    return None


def _whole(what: str, number: object, low: int, high: int, more: str = "") -> int:
    """`number`, which may be numpy's, as an int. Raises InputError outside of low to high."""
    whole = isinstance(number, Integral) and not isinstance(number, bool)
    if not whole or not low <= number <= high:
        raise InputError(f"{what} is {number!r}; expected a whole number from {low} to "
                         f"{high}{more}")
    return int(number)


def size_multiple(config: ModelConfig) -> int:
    """What width and height are multiples of: the autoencoder's factor times the UNet's halvings,
    or the two pixels that a transformer makes one token of.

    >>> from smalti.models.config import SD15
    >>> size_multiple(SD15)
    64
    """
    return config.vae.downscale * config.denoiser.multiple


def working_bytes(config: ModelConfig, width: int, height: int) -> int:
    """A guess of the memory that decoding needs: two of the largest activations, in f32.

    The largest is the first of the full-size level, as wide as the level before it.
    """
    channels = max(config.vae.block_channels[:2])
    return 2 * 4 * channels * width * height


def denoising_bytes(config: ModelConfig, width: int, height: int) -> int:
    """A guess of the memory that denoising needs beside weights: `COPIES` of the activations at
    full size, in f32, for a batch of two."""
    return 2 * 4 * COPIES * config.denoiser.widest(width * height // config.vae.downscale**2)


def memory_bytes(text: int | str) -> int:
    """Bytes as a number, or written as "6GB", "800 MB" or "1.5GiB". Raises InputError.

    >>> memory_bytes("6GB"), memory_bytes("1.5 GiB"), memory_bytes(2**30)
    (6000000000, 1610612736, 1073741824)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", str(text).lower())
    if found is None or isinstance(text, bool):
        raise InputError(f"memory is {text!r}; expected bytes, or a number such as 6GB")
    number, letter, binary = found.groups()
    bytes_ = int(float(number) * (1024 if binary else 1000) ** " kmgt".index(letter or " "))
    if not MEMORY_MIN <= bytes_ <= MEMORY_MAX:
        raise InputError(f"memory is {text!r}; expected {MEMORY_MIN >> 20} MiB at least")
    return bytes_


def _check_size(config: ModelConfig, width: object, height: object, memory_bytes: int) -> None:
    multiple = size_multiple(config)
    for what, extent in (("width", width), ("height", height)):
        extent = _whole(what, extent, multiple, SIZE_MAX, " pixels")
        if extent % multiple:
            below = extent // multiple * multiple
            raise InputError(f"{what} is {extent}; this model makes pictures whose sides are "
                             f"multiples of {multiple} pixels; the next are {below} and "
                             f"{below + multiple}")
    need = denoising_bytes(config, width, height)
    if need > memory_bytes:
        raise InputError(f"a picture of {width}x{height} needs about {need / 2**30:.1f} GiB of "
                         f"working memory (an estimate); there are {memory_bytes / 2**30:.1f} GiB; "
                         f"choose a smaller size")
