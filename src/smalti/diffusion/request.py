"""What is asked of a pipeline, complete for its model and checked before any work starts."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, cast

from PIL import Image

from smalti.dataclass import dataclass
from smalti.diffusion.guidance import Guide
from smalti.diffusion.hires import Hires, hires
from smalti.diffusion.img2img import Img2Img
from smalti.diffusion.kinds import WholeKind, check_name
from smalti.diffusion.noise import NOISES, Schedule, find_schedule
from smalti.diffusion.options import OPTIONS, SIDE_MAX, PictureOptions
from smalti.diffusion.purpose import untaken
from smalti.diffusion.random import SEED_END, batch_seeds
from smalti.diffusion.redux import check_alone, pictures_of, tokens_shown
from smalti.diffusion.samplers import SAMPLERS, Sampler, split_label
from smalti.diffusion.variation import Variation, variation
from smalti.errors import InputError
from smalti.models.config import WHOLE_WAY, ModelConfig, UNetConfig
from smalti.models.denoiser_config import DenoiserConfig
from smalti.models.token_downsampling import check_step, tokens_along

COPIES = 10
"""Activations of a denoiser that are there at a time, as a guess."""
MEMORY_MIN, MEMORY_MAX = 256 << 20, 1 << 50
"""Python with numpy takes 100 MB before any weight; above is a slip of the unit."""
REFINER_SWITCH = 0.8
"""The share that Stability AI gives for SDXL."""
RANDOM_SEED = -1  # what stands for a seed that is drawn
RANDOM_SEED_BITS = 32  # what people can still type


@dataclass(frozen=True, kw_only=True)
class Request(PictureOptions):
    """Options that are complete for a model, and what they become for those who use them.

    `model` and `refiner` are the names of models, `loras` names and weights of adapters. `change`
    are the options of img2img, None where the picture is made from noise alone; `variation` is how
    the first noise differs from that of the seed, `second` the hires pass. `precision` is what a
    picture should say of that: "" for those that differ from f32 by what nobody sees.
    """

    steps: int
    sampler: str
    noise: str
    guidance_scale: float
    width: int
    height: int
    model: str
    refiner: str | None = None
    loras: tuple[str, ...] = ()
    change: Img2Img | None = None
    variation: Variation | None = None
    second: Hires | None = None
    precision: str = ""

    def __post_init__(self, guide: Guide | None) -> None:
        """Nothing is left to be checked."""

    def refiner_start(self, steps: int) -> int:
        """The step of so many, counted from 0, from which on the refiner denoises."""
        return steps if self.refiner_switch is None else math.ceil(self.refiner_switch * steps)

    @property
    def seeds(self) -> tuple[int, ...]:
        """One seed a picture: they follow one another, but for variations of one."""
        if self.variation is not None:
            return (self.seed,) * self.batch_size
        return batch_seeds(self.seed, self.batch_size)

    @property
    def redux_pictures(self) -> tuple[Image.Image, ...]:
        """The pictures that Redux reads; none without it."""
        return cast("tuple[Image.Image, ...]", self.redux or ())

    def second_pass(self) -> Request:
        """What is asked of the second pass, from the picture of the first on.

        Noise levels of the first are those of the second, too, where their share has as many steps
        as it is to have.
        """
        larger, given = self.second, self.noise.count(",")
        if larger is None:
            return self
        other = given and Img2Img(larger.strength).steps(given) != larger.steps
        return replace(self, width=larger.width, height=larger.height, second=None,
                       steps=larger.schedule_steps, noise="automatic" if other else self.noise)

    def one(self, number: int) -> Request:
        """What makes a picture of the batch alone."""
        seed = None if self.variation is None else (self.variation.seed + number) % SEED_END
        return replace(self, seed=self.seeds[number], variation_seed=seed, batch_size=1)


def request(config: ModelConfig, options: PictureOptions, *, model: str = "model",
            memory_bytes: int, change: Img2Img | None = None,
            size: tuple[int, int] | None = None, read: Sequence[tuple[int, int]] = (),
            refiner: str | None = None, loras: tuple[str, ...] = (), precision: str = ""
            ) -> Request:
    """A complete `Request`; None becomes the model's own default, seed -1 a random seed.

    `change` and `size` are those of img2img, `read` the sizes in which the model reads other
    pictures as tokens. Raises InputError that says what was
    given, what was expected and what to do.

    >>> from smalti.models.config import SD15
    >>> asked = PictureOptions("a red apple", height=768, seed=7, batch_size=2)
    >>> made = request(SD15, asked, memory_bytes=2**34)
    >>> made.width, made.height, made.steps, made.guidance_scale, made.seeds
    (512, 768, 20, 7.0, (7, 8))
    """
    width, height = size or (_or(options.width, config.default_width),
                             _or(options.height, config.default_height))
    shown = tokens_shown(config, options)
    check_size(config, width, height, memory_bytes, read, shown)
    sampler, schedule = _walk(options, config)
    if options.eta is not None and sampler.eta is None:
        able = ", ".join(name for name in SAMPLERS if SAMPLERS[name].eta is not None)
        raise InputError(f"eta is {options.eta}, and the sampler {sampler.name} has none; leave it "
                         f"out, or use one of {able}")
    steps = schedule.fixed_steps or _or(options.steps, config.default_steps)
    for name, why in untaken(config).items():
        if OPTIONS[name].given(getattr(options, name)):
            raise InputError(why)
    if isinstance(config.denoiser, UNetConfig):
        side = min(width, height) // config.vae.downscale
        check_step(options.token_downsampling, tokens_along(config.denoiser, side))
    clip_skip = options.clip_skip
    if clip_skip is not None:
        layers = min((text.layers for text in config.texts.values()), default=1)
        clip_skip = WholeKind(1, layers).checked("clip_skip", clip_skip)
    for layer in options.skip_layers:
        WholeKind(0, config.denoiser.skippable_blocks - 1).checked("a layer to skip", layer)
    guidance = _or(options.guidance_scale, config.default_guidance)
    check_alone(options, guidance, sampler, steps, refiner)
    varied = variation(options.variation_seed, options.variation_strength)
    larger = hires(options, (width, height), size_multiple(config), steps)
    if larger is not None:
        check_second("this model", config.denoiser, config.vae.downscale, (width, height), larger)
        check_size(config, larger.width, larger.height, memory_bytes, tokens=shown)
    filled: dict[str, Any] = {
        "width": int(width), "height": int(height), "steps": steps, "sampler": sampler.name,
        "noise": schedule.name, "clip_skip": clip_skip,
        "guidance_scale": guidance, "guidance_time": _interval(config, options),
        "redux": pictures_of(options),
        "seed": secrets.randbits(RANDOM_SEED_BITS) if options.seed == RANDOM_SEED else options.seed,
        "distilled_guidance": _distilled(config, options.distilled_guidance),
        "refiner_switch": _switch(refiner, options.refiner_switch)}
    if change is not None:
        filled |= change.options()
    if larger is not None:
        filled |= {"hires_strength": larger.strength, "hires_steps": larger.steps}
    given = {each.name: getattr(options, each.name) for each in fields(PictureOptions)}
    return Request(**{**given, **filled}, model=model, refiner=refiner, loras=loras, change=change,
                   variation=varied, second=larger, precision=precision)


def _interval(config: ModelConfig, options: PictureOptions) -> tuple[float, float] | None:
    """From when to when guidance counts; None, which no text of a picture has, where neither the
    options nor the model say it."""
    own = config.default_guidance_time
    return options.guidance_time or (None if own == WHOLE_WAY else own)


def _or(value: Any, default: Any) -> Any:
    """A value, or the model's own."""
    return default if value is None else value


def _walk(options: PictureOptions, config: ModelConfig) -> tuple[Sampler, Schedule]:
    """The sampler of a name, and the schedule of a name, of "automatic", or of noise levels such as
    "14.6, 1.5, 0"; old labels of A1111 name both."""
    name, noise = _or(options.sampler, config.default_sampler), options.noise
    if isinstance(name, str):
        name, named = split_label(name)
        noise = _or(noise, named)
    noise = _or(noise, _usual_noise(config, options.steps))
    check_name("sampler", name, SAMPLERS)
    sampler = SAMPLERS[name]
    if isinstance(noise, str):
        noise = sampler.chosen(noise, config.prediction == "flow")
        if "," in noise:
            return sampler, find_schedule(noise)
    check_name("noise", noise, NOISES)
    return sampler, NOISES[noise]


def _usual_noise(config: ModelConfig, steps: object) -> str:
    """The model's own schedule; where that is noise levels, they are for as many steps as they
    lead through, and other walks are those of the sampler.

    >>> from smalti.models.config import SD15
    >>> turbo = replace(SD15, default_noise="14.6,1.5,0", default_steps=2)
    >>> _usual_noise(turbo, None), _usual_noise(turbo, 4), _usual_noise(SD15, 4)
    ('14.6,1.5,0', 'automatic', 'karras')
    """
    own = config.default_noise
    return "automatic" if own.count(",") not in (0, _or(steps, config.default_steps)) else own


def _switch(refiner: str | None, share: float | None) -> float | None:
    """The share of the steps after which a refiner takes over; None without one."""
    if refiner is None:
        if share is not None:
            raise InputError("refiner_switch is given, but no refiner; load the pipeline with one")
        return None
    return _or(share, REFINER_SWITCH)


def _distilled(config: ModelConfig, number: float | None) -> float | None:
    """What a model is told that was distilled from guided ones; None for the others."""
    if not config.denoiser.guidance:
        return None
    return float(_or(number, config.default_distilled_guidance))


def size_multiple(config: ModelConfig) -> int:
    """What width and height are multiples of: the autoencoder's factor times the UNet's halvings,
    or the two pixels that a transformer makes one token of.

    >>> from smalti.models.config import SD15
    >>> size_multiple(SD15)
    64
    """
    return config.vae.downscale * config.denoiser.multiple


def working_bytes(config: ModelConfig, width: int, height: int) -> int:
    """A guess of the memory that decoding, or encoding, needs: two of the largest activations, in
    f32.

    The largest is the first of the full-size level, as wide as the level before it.
    """
    channels = max(*config.vae.block_channels[:2], *config.vae.decoder_widths[:2])
    return 2 * 4 * channels * width * height


def denoising_bytes(config: ModelConfig, width: int, height: int,
                    read: Sequence[tuple[int, int]] = (), tokens: int = 0) -> int:
    """A guess of the memory that denoising needs beside weights: `COPIES` of the activations at
    full size, in f32, for a batch of two; those of pictures of these sizes that are `read` as
    tokens beside them, and of so many `tokens` that Redux makes of pictures."""
    area = sum(width * height // config.vae.downscale**2
               for width, height in ((width, height), *read))
    area += tokens * config.denoiser.patch**2
    return 2 * 4 * COPIES * config.denoiser.widest(area)


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


def side_max(denoiser: DenoiserConfig, downscale: int) -> int:
    """The longest side of a picture in pixels, of an autoencoder with this factor: what there are
    positions for, and never more than `SIDE_MAX`.

    >>> from smalti.models import SD15, SD3_MEDIUM
    >>> side_max(SD3_MEDIUM, 8), side_max(SD15.denoiser, 8)
    (3072, 4096)
    """
    positions = denoiser.side_max
    return SIDE_MAX if positions is None else min(SIDE_MAX, positions * downscale)


def check_sides(what: str, denoiser: DenoiserConfig, downscale: int, asked: Request) -> None:
    """Raise InputError for a picture that is larger, in one of its passes, than a network makes
    that messages call `what`."""
    longest = side_max(denoiser, downscale)
    if max(asked.width, asked.height) > longest:
        raise InputError(f"a picture of {asked.width}x{asked.height} is asked for; {what} makes "
                         f"pictures of at most {longest} pixels a side")
    if asked.second is not None:
        check_second(what, denoiser, downscale, (asked.width, asked.height), asked.second)


def check_second(what: str, denoiser: DenoiserConfig, downscale: int, size: tuple[int, int],
                 larger: Hires) -> None:
    """Raise InputError for a second pass behind a first one of a `size` that is larger than `what`
    makes, with the factor that it makes."""
    longest = side_max(denoiser, downscale)
    if max(larger.width, larger.height) > longest:
        factor = math.floor(100 * longest / max(size)) / 100
        advice = f"expected hires of at most {factor:g}" if factor > 1 else "leave hires out"
        raise InputError(f"hires is {larger.factor:g}, which makes {larger.width}x{larger.height} "
                         f"of {size[0]}x{size[1]}; {what} makes pictures of at most {longest} "
                         f"pixels a side; {advice}, or make the first pass smaller")


def check_size(config: ModelConfig, width: int, height: int, memory_bytes: int,
               read: Sequence[tuple[int, int]] = (), tokens: int = 0) -> None:
    """Raise InputError for a size that the model does not make, or that memory does not hold with
    the pictures that it reads, and the tokens that Redux makes of others."""
    multiple = size_multiple(config)
    longest = side_max(config.denoiser, config.vae.downscale)
    for what, extent in (("width", width), ("height", height)):
        extent = WholeKind(multiple, longest, " pixels").checked(what, extent)
        if extent % multiple:
            below = extent // multiple * multiple
            raise InputError(f"{what} is {extent}; this model makes pictures whose sides are "
                             f"multiples of {multiple} pixels; the next are {below} and "
                             f"{below + multiple}")
    need = denoising_bytes(config, width, height, read, tokens)
    if need > memory_bytes:
        beside = (f", with {len(read)} that are read," if read else
                  f", with {tokens} tokens of Redux," if tokens else "")
        fewer = (", or give fewer pictures" if len(read) > 1 else
                 ", or give fewer pictures as redux, or none" if tokens else "")
        raise InputError(f"a picture of {width}x{height}{beside} needs about "
                         f"{need / 2**30:.1f} GiB of working memory (an estimate); there are "
                         f"{memory_bytes / 2**30:.1f} GiB; choose a smaller size{fewer}")
