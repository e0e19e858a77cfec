"""Text to image: prompt -> tokens -> context -> denoising steps -> picture; or from a picture on.

Rombach et al. 2022, "High-Resolution Image Synthesis with Latent Diffusion Models",
arXiv:2112.10752. All arrays are f32 and channels come first, as in the paper; the UNet sees the
negative prompt and the prompt as a batch of two, one picture at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from smalti import checkpoint, settings
from smalti.checkpoint.adapters import Fit, WeightedAdapter
from smalti.diffusion.adapters import Adapters, Entry, labels
from smalti.diffusion.caching import checked_cache
from smalti.diffusion.change import checked_image_guidance
from smalti.diffusion.conditioning import usual_text_shape, usual_tokens
from smalti.diffusion.control import Control
from smalti.diffusion.fit import check_parts, check_refiner
from smalti.diffusion.guidance import PLAIN, Guide
from smalti.diffusion.images import Picture
from smalti.diffusion.inpainting import check_purpose, purpose
from smalti.diffusion.job import Job
from smalti.diffusion.prompt import parse
from smalti.diffusion.request import Request, check_name, memory_bytes, request
from smalti.diffusion.residents import Residents, ignore
from smalti.diffusion.result import Result, Step
from smalti.diffusion.source import Source, source
from smalti.diffusion.submodels import Submodels
from smalti.diffusion.upscale import Upscaler
from smalti.diffusion.variation import variation
from smalti.diffusion.words import Words
from smalti.families.parts import TEXTS
from smalti.runtime import Program
from smalti.runtime.choice import chosen, described, precisions
from smalti.tune.objective import OBJECTIVES

SHIPPED_MODEL = Path(__file__).parents[1] / "assets" / "emoji-128.safetensors"
USABLE_SHARE = 0.9  # of the device's memory, where nothing is said
KEPT_SHARE = 0.5  # of the device's memory, for weights that wait for the next call


class Pipeline:
    """A text-to-image model, ready to be asked.

    >>> pipe = Pipeline.load(threads=1)
    >>> result = pipe("a red apple", steps=1)
    >>> result.images[0].size, result.seeds, result.parameters.sampler
    ((128, 128), (7,), 'euler_a')
    """

    def __init__(self, submodels: Submodels, name: str, memory_bytes: int,
                 refiner: Submodels | None = None,
                 lora_folder: str | Path | None = None,
                 embeddings: Sequence[str | Path] = ()) -> None:
        self.config = submodels.checkpoint.config
        self._refiner = refiner
        self.name = name
        self._submodels = submodels
        self._adapters = Adapters(submodels, lora_folder)
        self._words = Words(self.config, embeddings)
        self._memory_bytes = memory_bytes
        self._asking = threading.Lock()
        self._residents = submodels.residents

    @classmethod
    def load(cls, path: str | Path | None = None, device: str = "auto", precision: str = "auto",
             threads: int | None = None, progress: Callable[[str], None] = ignore,
             keep: bool = True, *, text_encoders: Sequence[str | Path] = (),
             vae: str | Path | None = None, prediction: str | None = None,
             loras: Sequence[Entry] = (), lora_folder: str | Path | None = None,
             embeddings: Sequence[str | Path] = (), refiner: str | Path | None = None,
             supervise: bool = False, memory: int | str | None = None,
             objective: str = "latency") -> Pipeline:
        """Open a checkpoint: a file of weights, a diffusers folder, or None for the model that
        ships with Smalti. Nothing is compiled yet.

        `text_encoders` and `vae` are files of parts that the checkpoint does not hold, or that are
        to replace its own; which text encoder one is, is seen in it. `prediction` ("epsilon",
        "v_prediction", ...) is what the denoiser predicts, where the file tells it wrong. `loras`
        are adapters to begin with: see `loras`; `lora_folder` is where those are that prompts name
        as <lora:name:0.8>. `embeddings` are textual inversions, files or folders of them, which
        prompts name by their files. `refiner` is a model that takes the last steps over, such as
        that of SDXL. With `supervise`, faster schedules are looked for while pictures are made,
        which are the same with and without. `objective` is what schedules of a CPU are chosen for,
        as in `smalti.compile`.

        `memory` is what all of it may take: bytes, or "6GB"; default: what the device has. What
        does not fit is let go when another part is needed, weights of a denoiser come and go while
        it runs, and pictures are decoded in tiles; the result's warnings say so.
        Weights stay bound for the next call in up to half of that; without `keep` each part is let
        go as soon as it is done with, so that the next one takes over its memory.
        `progress` is called with a line of text before and during anything that takes long.
        Raises CheckpointError for a file that is no complete model of a known family, and
        InputError for an unknown device, precision or objective, or a number of threads outside 1
        to 256.
        """
        check_name("objective", objective, OBJECTIVES)
        if objective == "throughput" and threads is None:
            threads = 1
        if threads is not None:
            settings.checked_threads(threads)
        device = chosen(device)
        check_name("precision", precision, precisions(device))
        opened = checkpoint.load(SHIPPED_MODEL if path is None else path, text_encoders, vae,
                                 prediction)
        check_parts(opened)
        total = described(device).memory_bytes
        budget = int(USABLE_SHARE * total) if memory is None else memory_bytes(memory)

        residents = Residents(budget, device, keep)

        def models(part_of: checkpoint.Checkpoint) -> Submodels:
            return Submodels(part_of, precision, threads, progress, supervise,
                             residents=residents, device=device, objective=objective)

        submodels, second = models(opened), None
        if refiner is not None:
            second = models(checkpoint.load(refiner))
            check_parts(second.checkpoint)
            check_refiner(opened, second.checkpoint)
        stem = Path(opened.report.path).stem
        name = stem.encode("utf-8", "replace").decode()  # a file name need not be text
        pipe = cls(submodels, name, total if memory is None else budget, second,
                   lora_folder, embeddings)
        pipe.loras = loras
        return pipe

    def __call__(self, prompt: str, negative_prompt: str = "", **options: Any) -> Result:
        """Pictures of `prompt`; the options are those of `steps`, and so are the errors."""
        for step in self.steps(prompt, negative_prompt, **options):
            result = step.result
        return result

    def steps(self, prompt: str, negative_prompt: str = "", *,
              width: int | None = None, height: int | None = None, steps: int | None = None,
              guidance_scale: float | None = None, sampler: str | None = None,
              noise: str | None = None, seed: int = 7, rng: str = "cpu", batch_size: int = 1,
              clip_skip: int | None = None, distilled_guidance: float | None = None,
              emphasis: str = "original", controls: Sequence[Control] = (),
              tiling: str = "", refiner_switch: float | None = None,
              guide: Guide = PLAIN, image: Picture | None = None,
              strength: float | None = None, mask: Picture | None = None,
              mask_blur: int | None = None, only_masked: bool = False, padding: int | None = None,
              extend: Sequence[int] | None = None,
              image_guidance: float | None = None, variation_seed: int | None = None,
              variation_strength: float = 0.0, hires: float | None = None,
              hires_strength: float | None = None, hires_steps: int | None = None,
              hires_upscaler: Upscaler | str | Path | None = None,
              cache: float = 0.0) -> Iterator[Step]:
        """The same work as a generator of steps, of which the last has the result.

        Sizes are in pixels; None is the model's own default; seed -1 draws one. `clip_skip` is the
        state of CLIP that is read, counted from the last, 1. `distilled_guidance` is what a model
        such as FLUX.1 dev is told, which runs without a negative prompt. `emphasis` is what weights
        in a prompt do: "original", "no norm" or "comfy". `controls` are ControlNets with the
        pictures that they read. With `tiling` ("x", "y" or "xy") a picture can be repeated in these
        directions. After the share `refiner_switch` of the steps (0.8) the refiner takes over.
        `guide` says how guidance is done besides its scale. `image`, a PIL image or a path, is
        changed instead of making one from noise alone, in its own size where none is given:
        `strength` (0.75) is the share of the steps that are done. With a `mask`, which is white
        there and fades over `mask_blur` pixels (4), a part of it is made anew; `only_masked` makes
        that part in the size asked for, with `padding` (32) around it, and puts it back. `extend`
        are pixels to add on the left, top, right and bottom. `image_guidance` (1.5) is how much
        the picture steers a model such as InstructPix2Pix. `variation_strength` is the share of the
        way from the noise of `seed` to that of `variation_seed`. `hires` makes the picture so many
        times as large in a second pass, of which `hires_strength` (0.7) is made anew in
        `hires_steps`, after its latents, or the picture by `hires_upscaler`, are enlarged. With
        `cache` evaluations are left out where the change is foretold to be below this share.
        Raises InputError at once for anything that cannot be used, and NumericsError, when it
        happens, for NaN or Inf in weights, latents or picture.
        """
        kind = purpose(self.config)
        changed = source(self.config, image, width, height, strength=strength, mask=mask,
                         mask_blur=mask_blur, only_masked=only_masked, padding=padding,
                         extend=extend, whole=kind != "text",
                         image_guidance=checked_image_guidance(image_guidance, kind == "edit"))
        check_purpose(self.config, changed, hires is not None)
        upscaler = self._upscaler(hires_upscaler)
        if changed is not None:
            width, height = changed.width, changed.height
        asked = request(
            self.config, self.name, memory_bytes=self._memory_bytes, prompt=prompt,
            negative_prompt=negative_prompt, width=width, height=height, steps=steps,
            guidance_scale=guidance_scale, sampler=sampler, noise=noise, seed=seed, rng=rng,
            batch_size=batch_size, clip_skip=clip_skip, distilled_guidance=distilled_guidance,
            emphasis=emphasis, loras=labels(self._adapters.given),
            controls=tuple(control.text() for control in controls), tiling=tiling,
            refiner=self._refiner and Path(self._refiner.checkpoint.report.path).stem,
            refiner_switch=refiner_switch, guide=guide,
            change=None if changed is None else changed.change,
            variation=variation(variation_seed, variation_strength),
            enlarging=(hires, hires_strength, hires_steps, upscaler and upscaler.name),
            cache=checked_cache(cache, guide))
        return self._job(asked, changed, upscaler, controls).steps()

    @property
    def loras(self) -> tuple[WeightedAdapter, ...]:
        """The adapters in use (LoRA, LoCon, LoHa, LoKr, DoRA, ...), with their weights.

        Assign a sequence of paths, (path, weight) or (path, weight, text_weight), where the last is
        for the text encoders; () takes all away. Nothing is compiled for it, and what is taken
        away leaves no trace. Raises CheckpointError for a file that is no adapter, or one for
        another kind of model.
        """
        return self._adapters.uses

    @loras.setter
    def loras(self, entries: Sequence[Entry]) -> None:
        self._adapters.use(entries)

    def load_lora(self, path: str | Path, weight: float = 1.0,
                  text_weight: float | None = None) -> Fit:
        """Use one adapter more, or one in use with another weight; see `loras`.

        `print` of what is returned says how many of its tensors are applied, and why others are
        not.
        """
        return self._adapters.add(path, weight, text_weight)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the model: "text", "unet", "vae" and others; see `smalti.families.parts`."""
        return tuple(self._submodels.parts)

    def explain(self, part: str, width: int | None = None, height: int | None = None,
                device: str | None = None, *, all: bool = False, columns: int | None = None) -> str:
        """What one of `parts` became for a size in pixels, here or on a device of the library.

        `all` and `columns` are those of `Program.explain`.
        """
        program = self._submodels.compiled(
            part, self._submodels.graph(part, self._shape(part, width, height)))
        return program.explain(device, all=all, columns=columns)

    def program(self, part: str, width: int | None = None, height: int | None = None) -> Program:
        """The program of one part for a size in pixels, with the model's weights and `loras`."""
        models = self._submodels.using(self._adapters.given)
        return models.bound(part, self._shape(part, width, height))

    def _shape(self, part: str, width: int | None, height: int | None) -> tuple[int, ...]:
        """What a part is compiled for."""
        check_name("part", part, self.parts)
        asked = request(self.config, self.name, memory_bytes=self._memory_bytes, width=width,
                        height=height)
        if part in TEXTS:
            return usual_text_shape(self.config, TEXTS.index(part))
        rows, factor = 1 if asked.guidance_scale == 1 else 2, self.config.vae.downscale
        latent = asked.height // factor, asked.width // factor
        shapes = {"modulation": (1,), "vae": latent, "vae_encoder": (asked.height, asked.width)}
        return shapes.get(part, (rows, *latent, usual_tokens(self.config)))

    def _upscaler(self, given: Upscaler | str | Path | None) -> Upscaler | None:
        """A network that enlarges pictures, or that in a file."""
        if given is None or isinstance(given, Upscaler):
            return given
        models = self._submodels
        found = Upscaler.load(given, models.precision, models.threads, models.progress)
        return replace(found, residents=models.residents)

    def _job(self, asked: Request, changed: Source | None, upscaler: Upscaler | None,
             controls: Sequence[Control]) -> Job:
        """What makes the pictures of a request: with the adapters that are given or named, and the
        words that are named."""
        texts = (asked.prompt, asked.negative_prompt)
        named = [use for text in texts for use in parse(text, asked.steps).adapters]
        with self._asking:
            weights = self._adapters.with_named(named)
            bundled = [word for use in weights.uses for word in use.adapter.embeddings]
            words, warnings = self._words.named(texts, bundled)
        return Job(asked, self._submodels, self._refiner, weights, words,
                   [*self._adapters.warnings(weights, named), *warnings],
                   int(KEPT_SHARE * self._memory_bytes), changed, upscaler, controls)
