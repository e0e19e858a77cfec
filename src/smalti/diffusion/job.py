"""The making of one picture, or of a batch: everything that belongs to it and to no other.

A `PictureJob` has the weights with the adapters of its prompt, the words that stand for vectors,
what its prompts became, its ControlNets, timings and warnings. Programs are shared by all jobs of a
pipeline; so any number of jobs, in turns or in threads, make the pictures that each makes alone.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import field, replace
from functools import partial

import numpy as np
from PIL import Image

from smalti.checkpoint.adapters import Adapted
from smalti.checkpoint.embeddings import Embedding
from smalti.dataclass import dataclass
from smalti.diffusion.caching import Cached, Saved
from smalti.diffusion.control import Control, Controls, SteeredModel
from smalti.diffusion.decoding import decoded, expected, fitting_side
from smalti.diffusion.encoding import PART, encoded, to_model_space
from smalti.diffusion.guidance import Guidance
from smalti.diffusion.hires import enlarged
from smalti.diffusion.images import as_pixels, resized
from smalti.diffusion.img2img import Img2Img
from smalti.diffusion.init_image import InitImage
from smalti.diffusion.inpainting import FROM_NOISE, Start, start
from smalti.diffusion.levels import noise_levels
from smalti.diffusion.made_picture import MadePicture
from smalti.diffusion.option_text import written
from smalti.diffusion.random import NoiseSource
from smalti.diffusion.request import Request, check_sides
from smalti.diffusion.result import Result, Step, Stopwatch, to_image
from smalti.diffusion.samplers import SAMPLERS
from smalti.diffusion.stage import DenoiserStage
from smalti.diffusion.submodels import Submodels
from smalti.diffusion.upscale import Upscaler
from smalti.diffusion.words import fitting
from smalti.errors import InputError
from smalti.models.denoiser_config import DenoiserConfig
from smalti.runtime.cpu.memory import free_bytes


@dataclass(eq=False)
class PictureJob:
    """What makes the pictures of a request: `steps` does, once.

    `models` are the parts of a pipeline's model, and `refiner` those of the one that takes the last
    steps over; what the job knows of them, `weights` with adapters and `words`, is its own.
    `changed` is the initial picture of img2img, None without one. `notes` say which defaults hold,
    and why.
    """

    asked: Request
    models: Submodels
    refiner: Submodels | None
    weights: Adapted
    words: Sequence[Embedding]
    warnings: list[str]
    changed: InitImage | None = None
    upscaler: Upscaler | None = None
    notes: Sequence[str] = ()
    timings: Stopwatch = field(default_factory=Stopwatch)
    saved: Saved = field(default_factory=Saved)

    def __post_init__(self) -> None:
        self.config = self.models.checkpoint.config
        self._check_sides()
        self._user = object()  # not the job itself, which would keep programs alive in a circle
        last = self.asked if self.asked.second is None else self.asked.second_pass()
        height, width = self._latent(last)
        self.models = replace(
            self.models.using(self.weights, self.words, self._user),
            after=partial(expected, height=height, width=width, directions=last.tiling))
        if self.refiner is not None:
            theirs = fitting(self.words, self.refiner.checkpoint.config)
            self.refiner = self.refiner.using(self.refiner.weights, theirs, self._user)
        if isinstance(self.upscaler, Upscaler) and (
                self.upscaler.residents is self.models.residents.on(self.upscaler.device)):
            self.upscaler = replace(self.upscaler, user=self._user, say=self.models.say)
        self.controls = self._controls(self.asked.controls)

    def steps(self) -> Generator[Step, None, None]:
        """The denoising steps, of which the last has the result."""
        self.models.checkpoint.ahead(free_bytes(swap=False) or 0)
        try:
            begun = FROM_NOISE if self.changed is None else self._start(self.changed)
            for step in self._passes(begun):
                if step.index + 1 == step.total:
                    step.result = self._result(step.latents)
                    self._end()
                yield step
        finally:
            self._end()

    def _end(self) -> None:
        """Programs are free for others."""
        self.models.residents.end(self._user)

    def _result(self, latents: np.ndarray) -> Result:
        """The pictures of the last latents, and how they came about."""
        asked = self.asked
        last = asked if asked.second is None else asked.second_pass()
        images = self._decoded(last, latents)
        if self.changed is not None:
            images = [self.changed.put_back(image) for image in images]
        texts = [str(written(asked, number)) for number in range(asked.batch_size)]
        made = [MadePicture.of(image, text) for image, text in zip(images, texts, strict=True)]
        said = [*self.models.said, *(self.refiner.said if self.refiner else ())]
        return Result(made, asked.seeds, texts, asked, self.timings.seconds,
                      list(dict.fromkeys([*self.warnings, *said])), self.saved, tuple(self.notes))

    def _check_sides(self) -> None:
        """Raise InputError for a size that a network beside the model has no positions for."""
        beside: dict[str, object] = {use.net.path: use.net.config for use in self.asked.controls}
        if self.refiner is not None:
            beside["the refiner"] = self.refiner.checkpoint.config.denoiser
        for what, network in beside.items():
            if isinstance(network, DenoiserConfig):
                check_sides(what, network, self.config.vae.downscale, self.asked)

    def _controls(self, uses: Sequence[Control]) -> Controls | None:
        """The ControlNets as one function; None without any."""
        if not uses:
            return None
        changed = None if self.changed is None else self.changed.holed()
        uses = [use.shown(changed) for use in uses]
        if self.changed is not None and self.config.denoiser.reference:
            raise InputError("controls are given, and an image that the model reads as tokens; "
                             "ControlNets do not know these: give one of them")
        models, vae = self.models, self.config.vae
        device = models.placement.of("control")
        levels = noise_levels(self.config, self.asked.width, self.asked.height,
                              self.asked.steps)

        def encode(pixels: np.ndarray) -> np.ndarray:
            return encoded(models, pixels)

        def trained_step(timestep: float) -> float:
            return float(levels.timestep(timestep / 1000)) if levels.flow else timestep

        return Controls(uses, self.config.denoiser, models.precision, models.threads,
                        models.progress, models.residents.on(device), self.asked.tiling,
                        SteeredModel(vae, encode, models.weights, trained_step,
                                     partial(models.held, weights=models.weights)), device,
                        user=self._user, say=models.say)

    def _passes(self, begun: Start) -> Iterator[Step]:
        """The steps of the only walk, or of the first and one at a larger size, counted on."""
        asked = self.asked
        if asked.second is None:
            yield from self._walk(asked, begun)
            return
        larger, change = asked.second_pass(), Img2Img(asked.second.strength)
        more = change.steps(len(self._sigmas(larger)) - 1)
        for step in self._walk(asked, begun):
            step.total += more
            yield step
        done, clean = step.total - more, self._enlarged(larger, step.latents)
        for step in self._walk(larger, Start(change, clean)):
            step.index, step.total = done + step.index, done + more
            yield step

    def _enlarged(self, larger: Request, latents: np.ndarray) -> np.ndarray:
        """Latents [pictures, z, h, w] of the size of the second pass."""
        models, upscaler = self.models, self.upscaler
        if upscaler is None:
            return enlarged(latents, *self._latent(larger), patch=self.config.vae.patch)
        pictures = self._decoded(self.asked, latents)
        with self.timings.of("upscale"):
            pictures = [resized(upscaler(picture), larger.width, larger.height)
                        for picture in pictures]
        upscaler.end()
        with self.timings.of("encode"):
            return np.stack([to_model_space(models, encoded(models, as_pixels(picture)))
                             for picture in pictures])

    def _sigmas(self, asked: Request) -> list[float]:
        """The noise levels from noise to picture, the last one 0."""
        levels = noise_levels(self.config, asked.width, asked.height, asked.steps)
        return SAMPLERS[asked.sampler].sigmas(asked.noise, levels, asked.steps).tolist()

    def _walk(self, asked: Request, begun: Start) -> Iterator[Step]:
        """The steps from noise, or a picture with noise on it, to clean latents."""
        levels = noise_levels(self.config, asked.width, asked.height, asked.steps)
        sampler, latent = SAMPLERS[asked.sampler], self._latent(asked)
        sigmas = self._sigmas(asked)
        total = begun.steps(len(sigmas) - 1)
        sigmas, taken_over = sigmas[-(total + 1):], asked.refiner_start(total)
        stage = DenoiserStage.of(self.models, asked, total, self.timings, self.controls, begun)
        self.warnings += stage.prompts.warnings
        positive, negative = stage.prompts.at(0)
        guidance = Guidance(stage.denoiser, positive, negative, asked.guidance_scale,
                            asked.guiding(), always_both=sampler.needs_negative,
                            image=begun.image_guidance(negative),
                            layers=self.config.denoiser.skippable_blocks,
                            normed=self.config.denoiser.normed,
                            shrunk=self.config.denoiser.shrunk)
        if asked.negative_prompt and not guidance.reads_negative:
            self.warnings.append("the negative prompt is not read at guidance 1")
        random = NoiseSource(asked.rng, asked.seeds, (self.config.vae.z_channels, *latent))
        noise = random.draw()
        if asked.variation is not None:
            noise = asked.variation.mixed(noise, asked.rng)
        cached = Cached(guidance, stage.network, asked.cache, self.saved)
        walk = sampler(begun.known(cached if asked.cache else guidance),
                       begun.noised(noise, sigmas, levels), sigmas, random.draw, levels, asked.eta)
        if taken_over > 0:
            stage.begin(guidance, 0, latent, sigmas, self.timings)
        for index in range(total):
            before = time.perf_counter()
            if index == taken_over and self.refiner is not None:
                stage.end()
                stage = DenoiserStage.of(self.refiner, asked, total, self.timings)
                stage.begin(guidance, index, latent, sigmas, self.timings)
                cached.go_on(stage.network)
            positive, negative = stage.prompts.at(index)
            guidance.condition(positive, negative)
            guidance.image = begun.image_guidance(negative)
            cached.share = index / total
            with self.timings.of("denoise"):
                done = next(walk)
            seconds = time.perf_counter() - before
            if index + 1 == total:
                stage.end()
            yield Step(index, total, done.sigma_next, seconds, done.x, done.denoised)

    def _latent(self, asked: Request) -> tuple[int, int]:
        """Height and width of the latent."""
        factor = self.config.vae.downscale
        return asked.height // factor, asked.width // factor

    def _start(self, changed: InitImage) -> Start:
        """What denoising starts from in img2img."""
        height, width = self._latent(self.asked)
        side, factor = fitting_side(self.models, height, width, PART), self.config.vae.downscale
        if not self.config.denoiser.apart:
            with self.timings.of("prepare"):
                self.models.bound(PART, (factor * min(height, side), factor * min(width, side)))
        with self.timings.of("encode"):
            return start(self.models, changed, self._filled)

    @property
    def _filled(self) -> bool:
        """Whether a ControlNet fills what is masked in the initial picture, and keeps the rest."""
        return (self.changed is not None and self.changed.mask is not None
                and any(use.fills_changed for use in self.asked.controls))

    def _decoded(self, asked: Request, latents: np.ndarray) -> list[Image.Image]:
        """Pictures of latents [batch, z, h, w]."""
        models, (height, width) = self.models, self._latent(asked)
        side = fitting_side(models, height, width)
        tile = min(height, side), min(width, side)
        with self.timings.of("prepare"):
            models.bound("vae", (height, width, asked.tiling) if asked.tiling else tile)
        images = []
        with self.timings.of("decode"):
            for latent in latents[:, None]:
                models.progress("decoding")
                images.append(to_image(decoded(models, latent, asked.tiling, side)[0]))
        models.done("vae")
        return images
