"""Text to image: prompt -> tokens -> context -> denoising steps -> picture; or from a picture on.

Rombach et al. 2022, "High-Resolution Image Synthesis with Latent Diffusion Models",
arXiv:2112.10752. All arrays are f32 and channels come first, as in the paper; the UNet sees the
negative prompt and the prompt as a batch of two, one picture at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from smalti import checkpoint
from smalti.checkpoint.adapters import Adapted, Fit, WeightedAdapter
from smalti.checkpoint.folder import model_name
from smalti.compiler.options import ROUNDED
from smalti.diffusion.adapters import Adapters, Entry, few_steps, labels
from smalti.diffusion.fit import (
    check_parts,
    check_refiner,
    size_warnings,
    weight_warnings,
    word_warnings,
)
from smalti.diffusion.forecast import Forecast, forecast, usual_shape
from smalti.diffusion.init_image import init_image
from smalti.diffusion.inpainting import check_purpose
from smalti.diffusion.job import PictureJob
from smalti.diffusion.keywords import taking
from smalti.diffusion.kinds import check_name
from smalti.diffusion.load_options import DEFAULTS, LoadOptions
from smalti.diffusion.named import budget, fetched, given_budget, outside
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.placement import PartDevices
from smalti.diffusion.prompt import AdapterUse, parse
from smalti.diffusion.purpose import purpose
from smalti.diffusion.request import request
from smalti.diffusion.residents import Residents
from smalti.diffusion.result import Result, Step
from smalti.diffusion.submodels import Submodels
from smalti.diffusion.text_devices import best
from smalti.diffusion.upscale import Upscaler
from smalti.diffusion.words import Vocabulary
from smalti.runtime import Program, ahead
from smalti.runtime.choice import described, gone, precisions

SHIPPED_MODEL = Path(__file__).parents[1] / "assets" / "emoji-256.safetensors"


class Pipeline:
    """A text-to-image model, ready to be asked.

    >>> pipe = Pipeline.load(threads=1)
    >>> result = pipe("a red apple", steps=1)
    >>> result.images[0].size, result.seeds, result.parameters.sampler
    ((256, 256), (7,), 'euler_a')
    """

    def __init__(self, submodels: Submodels, name: str, memory_bytes: int,
                 refiner: Submodels | None = None,
                 lora_folders: Sequence[str | Path] = (),
                 embeddings: Sequence[str | Path] = ()) -> None:
        self.config = submodels.checkpoint.config
        self._refiner = refiner
        self.name = name
        self._submodels = submodels
        self._adapters = Adapters(submodels, lora_folders)
        self._words = Vocabulary(self.config, embeddings)
        self._memory_bytes = memory_bytes
        self._asking = threading.Lock()
        self._lost: list[str] = []
        self._notes: list[str] = []
        self._residents = submodels.residents

    def __repr__(self) -> str:
        parts, adapters = ", ".join(self.parts), ", ".join(labels(self._adapters.given))
        models = self._submodels
        return (f"<Pipeline {self.name}: {self.config.family}, "
                f"{self.config.default_width}x{self.config.default_height}, "
                f"{models.precision} on {models.placement}; parts {parts}"
                + f"; adapters {adapters}" * bool(adapters) + ">")

    @classmethod
    @taking(LoadOptions)
    def load(cls, asked: LoadOptions) -> Pipeline:
        """Open a checkpoint; nothing is compiled yet.

        The arguments are the fields of `LoadOptions`: `Pipeline.load("sdxl.safetensors",
        vae="fixed.safetensors", memory="6GB")`. What is given by name, such as
        `Pipeline.load("hf:org/name")`, is fetched where it is not here yet. Raises CheckpointError
        for a file that is no complete model of a known family, FetchError for a name that nothing
        can be had by, and InputError for what cannot be used.
        """
        ahead.expect(asked.threads)
        asked = fetched(asked)
        opened = checkpoint.load(SHIPPED_MODEL if asked.path is None else asked.path,
                                 asked.text_encoder_files, asked.vae, asked.prediction,
                                 asked.zero_terminal_snr,
                                 {DEFAULTS[name]: value for name, value in asked.defaults.items()})
        check_parts(opened)
        device = asked.placement.of("denoiser")
        usable = budget(asked, device)
        residents = asked.residents or Residents(usable, device, asked.keep, partial(budget, asked),
                                                 outside(asked))

        def models(part_of: checkpoint.Checkpoint, placement: PartDevices) -> Submodels:
            return Submodels(part_of, asked.precision, asked.threads, asked.progress,
                             asked.supervise, residents=residents, placement=placement,
                             objective=asked.objective)

        submodels, second = models(opened, asked.placement), None
        placement, notes = best(asked, submodels)
        submodels = replace(submodels, placement=placement)
        if asked.refiner is not None:
            second = models(checkpoint.load(asked.refiner), placement.refining())
            check_parts(second.checkpoint)
            check_refiner(opened, second.checkpoint)
        there = described(device).memory_bytes if given_budget(asked, device) is None else usable
        pipe = cls(submodels, model_name(opened.report.path), there, second,
                   asked.lora_folders, asked.embedding_files)
        pipe.loras = asked.loras
        pipe._notes = notes
        return pipe

    @taking(PictureOptions)
    def __call__(self, asked: PictureOptions) -> Result:
        """Pictures of a prompt; the options are those of `steps`, and so are the errors."""
        for step in self.job(asked).steps():
            if step.result is not None:
                return step.result
        raise RuntimeError("the last step of a picture has no result")

    @taking(PictureOptions)
    def steps(self, asked: PictureOptions) -> Iterator[Step]:
        """The same work as a generator of steps, of which the last has the result.

        What is asked for is given by the names of `PictureOptions`, the prompt and the negative
        prompt by position, too: `pipe.steps("a red apple", steps=20, seed=7)`. Raises InputError at
        once for anything that cannot be used, and NumericsError, when it happens, for NaN or Inf in
        weights, latents or picture.
        """
        return self.job(asked).steps()

    def job(self, options: PictureOptions) -> PictureJob:
        """What makes the pictures of some options: checked, with adapters and words, not begun.

        Raises InputError for anything that cannot be used with this model.
        """
        lost = self._on_a_device_that_works()
        kind = purpose(self.config)
        changed = init_image(self.config, options, kind)
        check_purpose(self.config, changed, options.hires is not None)
        upscaler = self._upscaler(options.hires_upscaler)
        with self._asking:
            weights, named = self._weights(options)
        config, notes, doubts = few_steps(self.config, weights)
        asked = request(
            config, options, model=self.name, memory_bytes=self._memory_bytes,
            change=None if changed is None else changed.change,
            size=None if changed is None else (changed.width, changed.height),
            read=() if changed is None else changed.read_by(self.config),
            refiner=self._refiner_name, loras=labels(self._adapters.given),
            precision=ROUNDED if self._submodels.precision == ROUNDED else "")
        second = asked.second_pass()
        larger = None if asked.second is None else (second.width, second.height)
        texts = (asked.prompt, asked.negative_prompt)
        with self._asking:
            bundled = [word for use in weights.uses for word in use.adapter.embeddings]
            words, warnings = self._words.named(texts, bundled)
        return PictureJob(asked, self._submodels, self._refiner, weights, words,
                   [*size_warnings(self.config, asked.width, asked.height, larger),
                    *weight_warnings(self.config, texts, asked.steps),
                    *word_warnings(
                        self._submodels.checkpoint.report.words, asked.prompt, asked.steps,
                        [word.name for word in words], changed=bool(weights.uses)),
                    *self._adapters.warnings(weights, named), *doubts, *warnings, *lost],
                   changed, upscaler, [*self._notes, *notes])

    @taking(PictureOptions)
    def forecast(self, asked: PictureOptions) -> Forecast:
        """What a picture would take, of memory and of time: nothing is read or made for it.

        It is the plan that the picture is then made by, with the adapters in use and those that the
        prompt names. The device may be one of the timing model's library,
        `Pipeline.load(path, device="library:rtx_3060")`, on which nothing runs. Raises InputError
        for anything that cannot be used, and for a refiner and options whose part is not foretold.
        """
        with self._asking:
            weights, _ = self._weights(asked)
        config, *_ = few_steps(self.config, weights)
        read = purpose(self.config) == "reference" and asked.mask is None and asked.extend is None
        changed = init_image(self.config, asked, "reference") if read else None
        complete = request(config, asked, model=self.name, memory_bytes=self._memory_bytes,
                           size=None if changed is None else (changed.width, changed.height),
                           read=() if changed is None else changed.read_by(self.config),
                           refiner=self._refiner_name)
        return forecast(self._submodels.using(weights), complete, self.name, changed)

    @property
    def _refiner_name(self) -> str | None:
        """What the model that takes the last steps over is called; None without one."""
        refiner = self._refiner
        return None if refiner is None else model_name(refiner.checkpoint.report.path)

    def _weights(self, options: PictureOptions) -> tuple[Adapted, list[AdapterUse]]:
        """The weights with the adapters that were given and those that the prompts name, and how
        these do."""
        steps = self.config.default_steps if options.steps is None else options.steps
        named = [use for text in (options.prompt, options.negative_prompt)
                 for use in parse(text, steps).adapters]
        return self._adapters.with_named(named), named

    def _on_a_device_that_works(self) -> list[str]:
        """Go on with the CPU where a device was lost and does not come back; what is said then.
        """
        with self._asking:
            for device in self.placement.devices:
                if not gone(device):
                    continue
                self._lost = [*self._lost, (
                    f"the device {device} was lost and does not come back: what ran there runs on "
                    f"the CPU; a new process may find it again")]
                self._submodels = _without(device, self._submodels)
                if self._refiner is not None:
                    self._refiner = _without(device, self._refiner)
                self._residents.on(device).clear()
                here = self.placement.of("denoiser")
                self._memory_bytes = (self._residents.on(here).budget_bytes
                                      or described(here).memory_bytes)
            return self._lost

    @property
    def placement(self) -> PartDevices:
        """Which device each part runs on."""
        return self._submodels.placement

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

    def offer(self, embeddings: Sequence[Path], lora_folders: Sequence[Path]) -> None:
        """Let prompts name these files of embeddings, and adapters in these folders, instead of
        those of the folders that were given before.

        Nothing is compiled or bound for it: an embedding is read when a prompt has its name, and
        one that does not fit the model is then a warning.
        """
        with self._asking:
            self._words.offer(embeddings)
            self._adapters.folders = list(lora_folders)

    @property
    def residents(self) -> Residents:
        """What holds the programs of this pipeline, which others may share: see `LoadOptions`."""
        return self._residents

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
        return models.lent(part, self._shape(part, width, height))

    def _shape(self, part: str, width: int | None, height: int | None) -> tuple[int, ...]:
        """What a part is compiled for."""
        check_name("part", part, self.parts)
        asked = request(self.config, PictureOptions("", width=width, height=height),
                        memory_bytes=self._memory_bytes)
        return usual_shape(self.config, part, asked)

    def _upscaler(self, given: Upscaler | str | Path | None) -> Upscaler | None:
        """A network that enlarges pictures, or that in a file."""
        if given is None or isinstance(given, Upscaler):
            return given
        models, device = self._submodels, self.placement.of("upscaler")
        found = Upscaler.load(given, models.precision, models.threads, models.progress, device)
        return replace(found, residents=models.residents.on(device))


def _without(device: str, models: Submodels) -> Submodels:
    """Parts of a model without a device that was lost: what ran there runs on the CPU, and in
    "auto" where it has no such precision."""
    precision = models.precision if models.precision in precisions("cpu") else "auto"
    return replace(models, placement=models.placement.moved(device, "cpu"), precision=precision)
