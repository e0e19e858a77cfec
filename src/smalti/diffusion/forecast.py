"""What a picture would take before anything of it is made: memory, parts that stay and parts that
come and go, and time.

The parts of a model are weighed by the very `Residents` that decide when the picture is made, in
the order in which it runs them; they only bind no weights. So what is foretold is what is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from smalti.dataclass import dataclass
from smalti.diffusion.conditioning import (
    Sizes,
    usual_conditioner_shape,
    usual_text_shape,
    usual_tokens,
    usual_vision_shapes,
)
from smalti.diffusion.decoding import fitting_side, tile_count
from smalti.diffusion.guidance import counts
from smalti.diffusion.init_image import InitImage, near
from smalti.diffusion.levels import noise_levels
from smalti.diffusion.network import MODULATION
from smalti.diffusion.options import OPTIONS
from smalti.diffusion.redux import biased_tokens, tokens_shown
from smalti.diffusion.request import Request
from smalti.diffusion.residents import BASE_BYTES, MemoryDecision, Residents
from smalti.diffusion.samplers import SAMPLERS
from smalti.diffusion.submodels import Submodels
from smalti.diffusion.text_devices import LOADED_BYTES_A_SECOND
from smalti.errors import DeviceError, InputError
from smalti.families import family_of
from smalti.families.parts import TEXTS
from smalti.families.record import CONDITIONER, VISION
from smalti.fetch.sizes import shown_bytes
from smalti.machine.uncertainty import uncertainty
from smalti.models.config import ModelConfig
from smalti.runtime.choice import described
from smalti.runtime.drivers import driver_of

UNTOLD = ("image", "hires", "controls", "skip_layers", "cache")
"""Options whose memory or time is not worked out."""
Shape = tuple[Any, ...]
"""What a part is compiled for: numbers, and of a denoiser the sizes of pictures that it reads."""
LINK_BYTES_A_SECOND = 12e9
"""At which they come to a GPU whose link is not known: a guess, of PCIe 3.0 with 16 lanes."""


@dataclass(frozen=True)
class PartForecast:
    """A part of the model in a picture: how its memory is decided, and how often it runs.

    `device` is the id of where it runs. `seconds` are those of a run, None where nothing is known
    of the device.
    """

    part: str
    title: str
    device: str
    shape: Shape
    precision: str
    memory: MemoryDecision
    runs: int
    seconds: float | None

    def __str__(self) -> str:
        size, working = (shown_bytes(each) for each in (
            self.memory.weights_bytes, self.memory.working_bytes))
        how = "of weights, resident" if not self.memory.streamed_bytes else (
            f"of weights, {shown_bytes(self.memory.held_bytes)} at a time, the rest streamed")
        time = "" if self.seconds is None else f"; {self.runs} x {_seconds(self.seconds)}"
        return f"{self.precision}, {size} {how}; {working} to compute in{time}"


@dataclass(frozen=True)
class Forecast:
    """What a picture would take.

    `device` is what that of the denoiser is called. `budget_bytes` is what may be taken of the
    memory that it computes in, `peak_bytes` what is taken there. `main_bytes` is the peak of main
    memory, which is the same where the device computes there. `step_seconds` and `seconds` are
    those of a step and of a whole picture without loading weights, which takes `loading_seconds`
    once; None where nothing is known of the device. Times may be off by the share `uncertainty`,
    for the reason that `assumed` tells. `warnings` say what is done because memory is short.
    `refusal` says why there is no picture.
    """

    model: str
    device: str
    kind: str
    width: int
    height: int
    steps: int
    budget_bytes: int
    peak_bytes: int
    main_bytes: int
    parts: tuple[PartForecast, ...]
    tile: int | None
    step_seconds: float | None
    seconds: float | None
    loading_seconds: float
    uncertainty: float | None
    assumed: str
    warnings: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def runs(self) -> bool:
        """Whether there is a picture."""
        return not self.refusal

    def __str__(self) -> str:
        return "\n".join(f"{label:<12}{text}" for label, text in self._lines())

    def document(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {"runs": self.runs, **asdict(self)}

    def _lines(self) -> Iterator[tuple[str, str]]:
        places = {each.device for each in self.parts}
        yield "model", self.model
        yield "device", f"{self.device}, {self.kind}"
        yield "runs", f"no: {self.refusal}" if self.refusal else "yes"
        yield "picture", f"{self.width}x{self.height}, steps: {self.steps}"
        for each in self.parts:
            yield each.part, str(each) + f"; on {each.device}" * (len(places) > 1)
        if self.tile is not None:
            yield "decoding", f"in tiles of {self.tile} pixels"
        if self.refusal:
            return
        peak, budget, main = map(shown_bytes, (self.peak_bytes, self.budget_bytes, self.main_bytes))
        if self.main_bytes != self.peak_bytes:
            yield "memory", (f"{peak} at most of the {budget} that it may take of the device's, "
                             f"and {main} of main memory")
        else:
            yield "memory", f"{peak} at most, of the {budget} that it may take"
        if self.step_seconds is None or self.seconds is None or self.uncertainty is None:
            yield "time", "unknown: the timing model does not know this device"
        else:
            yield "time", (f"{_seconds(self.step_seconds)} a step, {_seconds(self.seconds)} a "
                           f"picture, within {100 * self.uncertainty:.0f} %, {self.assumed}")
        yield "loading", (f"about {_seconds(self.loading_seconds)} in the first picture: weights "
                          f"are read and packed at {LOADED_BYTES_A_SECOND / 1e9:g} GB/s, a guess")


def forecast(models: Submodels, asked: Request, name: str,
             changed: InitImage | None = None) -> Forecast:
    """What the picture `asked` would take of a model called `name`, in the memory that its
    `residents` may take, where `changed` is what it reads pictures of.

    Raises InputError for options of which that is not known.
    """
    given = [each for each in UNTOLD if OPTIONS[each].given(getattr(asked, each))
             and (each != "image" or changed is None)]
    if given or asked.refiner:
        raise InputError(f"what {' and '.join(given) or 'a refiner'} would take is not foretold; "
                         f"leave {'it' if len(given) < 2 else 'them'} out")
    here, held = models.placement.of_part(models.denoiser), models.residents
    device, known = described(here), driver_of(here).model(described(here))
    dry = Residents(held.budget_bytes, held.device, held.keep, held.budget_of, held.outside_bytes,
                    foresee=True)
    weighed = replace(models.using(models.weights, user=object()), residents=dry)
    parts: list[PartForecast] = []
    refusal, tile = "", None
    try:
        for part, shape, runs in course(weighed, asked, changed):
            parts.append(_weighed(weighed, part, shape, runs))
            if part == "vae" and runs > asked.batch_size:
                tile = max(shape) * models.checkpoint.config.vae.downscale
    except (InputError, DeviceError) as error:
        refusal = str(error)
    main, peaks = _main_peak(parts), _peaks(parts)
    for place, peak in peaks.items():
        if not refusal and peak > described(place).memory_bytes:
            refusal = (f"{described(place).name} has {shown_bytes(described(place).memory_bytes)} "
                       f"of memory, and {shown_bytes(peak)} are needed; choose a smaller size")
    spread, assumed = (None, "") if known is None else uncertainty(known)
    times = [each.runs * each.seconds for each in parts if each.seconds is not None]
    denoising = [each.runs * each.seconds for each in parts
                 if each.part == models.denoiser and each.seconds is not None]
    return Forecast(
        name, device.name, device.kind, asked.width, asked.height, asked.steps,
        dry.on(here).budget_bytes or device.memory_bytes, peaks.get(here, main), main,
        tuple(parts), tile,
        sum(denoising) / (asked.batch_size * asked.steps) if denoising else None,
        sum(times) if len(times) == len(parts) else None,
        sum(each.memory.weights_bytes for each in parts) / LOADED_BYTES_A_SECOND, spread, assumed,
        tuple(weighed.said), refusal)


def course(models: Submodels, asked: Request, changed: InitImage | None = None
           ) -> Iterator[tuple[str, Shape, int]]:
    """The parts that a picture runs in order, what they are compiled for with a short prompt, and
    how often each runs. Each is done with when the next one is asked for."""
    config, pictures = models.checkpoint.config, None if changed is None else changed.sizes
    for size in _read(config, asked, pictures):
        side = fitting_side(models, *size, "vae_encoder")
        factor = config.vae.downscale
        yield "vae_encoder", tuple(factor * min(extent, side) for extent in size), tile_count(
            models, *size, side)
        models.done("vae_encoder")
    for part in models.parts:
        if part not in ("vae", "vae_encoder", MODULATION, models.denoiser):
            shapes = _usual_shapes(config, part, asked, pictures)
            if _of_pictures(config, part):
                shapes *= len(asked.redux_pictures)
            for shape, runs in Counter(shapes).items():
                yield part, shape, runs
            models.done(part)
    if MODULATION in models.parts:
        yield MODULATION, usual_shape(config, MODULATION, asked, pictures), 1
    plain = usual_shape(config, models.denoiser, asked, pictures)
    for rows, evaluations in sorted(_evaluations(config, asked).items(), reverse=True):
        yield models.denoiser, (rows, *plain[1:]), asked.batch_size * evaluations
    for part in (MODULATION, models.denoiser):
        models.done(part)
    height, width = (extent // config.vae.downscale for extent in (asked.height, asked.width))
    side = fitting_side(models, height, width)
    yield "vae", (min(height, side), min(width, side)), asked.batch_size * tile_count(
        models, height, width, side)
    models.done("vae")


def _evaluations(config: ModelConfig, asked: Request) -> dict[int, int]:
    """How often the denoiser is evaluated for a picture, by how many rows it is given at once: two
    where guidance counts. The sampler walks without a model, to see at which noise levels."""
    sampler, guide, found = SAMPLERS[asked.sampler], asked.guiding(), Counter[int]()
    levels = noise_levels(config, asked.width, asked.height, asked.steps)
    guided = asked.guidance_scale != 1

    class Counting:
        def __call__(self, x: np.ndarray, sigma: float) -> np.ndarray:
            both = sampler.needs_negative or (guided and counts(guide, levels, sigma))
            found[1 + both] += 1
            return x

        def both(self, x: np.ndarray, sigma: float) -> tuple[np.ndarray, np.ndarray]:
            return self(x, sigma), x

    nothing = np.zeros((1, 1, 1, 1), np.float32)
    for _ in sampler(Counting(), nothing, sampler.sigmas(asked.noise, levels, asked.steps).tolist(),
                     lambda: nothing, levels, asked.eta):
        pass
    return dict(found)


def usual_shape(config: ModelConfig, part: str, asked: Request,
                pictures: Sizes | None = None) -> Shape:
    """What a part is compiled for, for a picture of a short prompt, and of others of these sizes
    where they are read; of one of the usual size where the model cannot do without."""
    return _usual_shapes(config, part, asked, pictures)[0]


def _usual_shapes(config: ModelConfig, part: str, asked: Request,
                  pictures: Sizes | None) -> list[Shape]:
    """The same; of what reads pictures, for each of them."""
    given = _given(config, pictures)
    if part == VISION:
        return [*usual_vision_shapes(config, given)]
    return [_shape(config, part, asked, given, _read(config, asked, pictures))]


def _of_pictures(config: ModelConfig, part: str) -> bool:
    """Whether a part makes tokens of pictures, and of nothing else."""
    return part in TEXTS and family_of(config).text(
        list(config.texts)[TEXTS.index(part)]).encoder.of_pictures


def _given(config: ModelConfig, pictures: Sizes | None) -> Sizes:
    """Sizes of the pictures that are given, or what is assumed."""
    if pictures is None and config.denoiser.needs_reference:
        return [(config.default_width, config.default_height)]
    return pictures or ()


def _read(config: ModelConfig, asked: Request, pictures: Sizes | None) -> list[tuple[int, int]]:
    """Height and width of the latents of these pictures."""
    factor = config.vae.downscale
    sizes = [near(size, config) if config.denoiser.apart else (asked.width, asked.height)
             for size in _given(config, pictures)]
    return [(height // factor, width // factor) for width, height in sizes]


def _shape(config: ModelConfig, part: str, asked: Request, pictures: Sizes,
           read: Sequence[tuple[int, int]]) -> Shape:
    """What a part other than that which reads pictures is compiled for."""
    if part in TEXTS:
        return usual_text_shape(config, TEXTS.index(part), pictures)
    if part == CONDITIONER:
        return usual_conditioner_shape(config)
    rows, factor = 1 if asked.guidance_scale == 1 else 2, config.vae.downscale
    latent = asked.height // factor, asked.width // factor
    shapes = {MODULATION: (1,), "vae": latent, "vae_encoder": (asked.height, asked.width)}
    more: tuple[Any, ...] = (False, "", False, tuple(read)) if read else ()
    if asked.token_downsampling > 1:
        more = (False, "", asked.token_downsampling)
    if biased := biased_tokens(config, asked):
        more = (False, "", False, tuple(read), biased)
    tokens = usual_tokens(config, pictures, tokens_shown(config, asked))
    return shapes.get(part, (rows, *latent, tokens, *more))


def _weighed(models: Submodels, part: str, shape: Shape, runs: int) -> PartForecast:
    """A part of a picture, with its place in memory."""
    device = models.placement.of_part(part)
    known = driver_of(device).model(described(device))
    program = models.bound(part, shape)
    placed, seconds = models.placed[part, shape], program.expected_seconds()
    if seconds is not None and known is not None:
        rate = LOADED_BYTES_A_SECOND if known.kind == "cpu" else known.link or LINK_BYTES_A_SECOND
        seconds = max(seconds, placed.streamed_bytes / rate)
    return PartForecast(part, models.parts[part].title, device, shape, program.precision, placed,
                        runs, seconds)


def _peaks(parts: Sequence[PartForecast]) -> dict[str, int]:
    """The most that is taken on each device with memory of its own, by ids."""
    found: dict[str, int] = {}
    for each in parts:
        if described(each.device).has_own_memory:
            stage = each.memory.staged_bytes if each.memory.streamed_bytes else 0
            found[each.device] = max(found.get(each.device, 0), each.memory.taken_bytes + stage)
    return found


def _main_peak(parts: Sequence[PartForecast]) -> int:
    """The most that is taken of main memory."""
    return BASE_BYTES + max((
        each.memory.streamed_bytes + each.memory.staged_bytes
        if described(each.device).has_own_memory else
        each.memory.taken_bytes + max(0, each.memory.staged_bytes - each.memory.working_bytes)
        for each in parts), default=0)


def _seconds(seconds: float) -> str:
    """A time as it is told.

    >>> _seconds(0.0125), _seconds(3.456), _seconds(250)
    ('12.5 ms', '3.5 s', '4.2 min')
    """
    if seconds < 0.9995:
        return f"{1e3 * seconds:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
