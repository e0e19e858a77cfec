"""Everything that decides a picture: each option once.

An option stands here with its type, what it may be, its default, what it is for, its name on the
command line and its key in the text of a picture. From that are made: the keywords of
`Pipeline.steps`, the options of `smalti generate`, the checks, the text in a PNG file and what is
read from one (`option_text`), and the JSON Schema. An option that is added here works in all of
them; what remains is the place that uses it (docs/pipeline.md shows one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, InitVar, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from smalti.dataclass import dataclass
from smalti.diffusion.control import Control
from smalti.diffusion.emphasis import EMPHASES
from smalti.diffusion.guidance import Guide, Projected, SkipLayers
from smalti.diffusion.images import Picture
from smalti.diffusion.keywords import check_known
from smalti.diffusion.kinds import (
    FlagKind,
    NameKind,
    NumberKind,
    NumbersKind,
    OpenedKind,
    ProjectionKind,
    RowKind,
    SeedKind,
    TextKind,
    ValueKind,
    WholeKind,
)
from smalti.diffusion.noise import NOISES, STEPS_MAX, find_schedule
from smalti.diffusion.random import RNGS, SEED_END
from smalti.diffusion.samplers import SAMPLERS
from smalti.diffusion.upscale import Upscaler
from smalti.errors import InputError
from smalti.models.config import WHOLE_WAY
from smalti.models.tileable import DIRECTIONS

SIDE_MAX = 4096
"""Pixels of a side: larger ones are made by upscalers, and latents of 4096 take gigabytes."""
BATCH_MAX = 64
"""Pictures of a batch are made one after another: more of them is a loop that nobody watches."""
GUIDANCE_MAX = 100.0
"""Far beyond what any model stands (SD 1.5 burns above 30); a larger number is a slip."""
PIXELS_MAX = 1024
"""Of what fades and is padded around a mask: about the side of a picture."""
HIRES_MAX = 8.0
"""From 512 pixels to `SIDE_MAX`."""
REDUX_MAX = 10.0
"""Of a strength of Redux: beyond 2 nothing of the prompt is seen; a larger one is a slip."""
BLOCKS_MAX = 1000
"""More than any model has; which layers it has is checked with the model."""
GROUPS = ("prompt", "picture", "steps", "guidance", "text", "image", "variation", "larger")
"""What options belong together in a form, in order."""


@dataclass(frozen=True)
class PictureOption:
    """One thing that decides a picture.

    `kind` is what its values may be, `help` what it is for, `usual` what it is where nothing is
    given and `default` does not say it. `label` is its key in the text of a picture, where it
    stands if it is other than `default`, or `always`. `flags` are its names on the command line.
    It belongs to one of the options that it `needs`; `advice` says how to give that. `aliases` are
    names of diffusers that mean the same, `kin` names of others that remind of it. What the model
    decides about it is checked `later`. Messages call it `title`, or by its name.
    """

    kind: ValueKind
    help: str
    group: str
    usual: str = ""
    label: str = ""
    always: bool = False
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    needs: tuple[str, ...] = ()
    advice: str = ""
    aliases: tuple[str, ...] = ()
    kin: tuple[str, ...] = ()
    later: bool = False
    title: str = ""
    name: str = ""
    default: Any = None

    def given(self, value: Any) -> bool:
        """Whether a value is another than the default.

        >>> OPTIONS["steps"].given(None), OPTIONS["cache"].given(0.1)
        (False, True)
        """
        return value is not self.default and not (
            isinstance(value, type(self.default)) and value == self.default
            and isinstance(value, bool) == isinstance(self.default, bool))

    def checked(self, value: Any) -> Any:
        """The value in one form. Raises InputError for one that cannot be."""
        return self.kind.checked(self.title or self.name, value) if self.given(value) else value

    @property
    def told(self) -> str:
        """What it is where nothing is given, in words."""
        if self.usual or self.default is None or self.default is False:
            return self.usual
        return self.default if isinstance(self.default, str) else (
            self.kind.written(self.default) if self.default != () else "")


def option(kind: ValueKind, help: str, group: str, default: Any = None, **more: Any) -> Any:
    """A field that is an option."""
    return field(default=default, metadata={"option": PictureOption(kind, help, group, **more)})


def _label(names: Mapping[str, Any]) -> dict[str, str]:
    return {name: names[name].label for name in names}


PICTURE = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"}
PICTURES_MAX = 10
"""That one request may give: as many as FLUX.2 reads."""
PICTURES = {"anyOf": [PICTURE, {"type": "array", "items": PICTURE, "minItems": 1,
                                "maxItems": PICTURES_MAX}]}
MODELS_OWN = "the model's own"
SHARE = NumberKind(0, 1)


@dataclass(frozen=True)
class PictureOptions:
    """What is asked for: a prompt, and whatever else decides the picture; sizes are in pixels.

    None is the model's own default. `guide` says the four options of guidance at once; where it
    counts all of the way, when guidance counts is still the model's own. Raises InputError that
    says what was given, what was expected and what to do; what a model decides, such as sizes, is
    checked when it is known.

    >>> asked = PictureOptions("a red apple", steps=20)
    >>> asked.steps, asked.sampler, asked.seed
    (20, None, 7)
    """

    prompt: str = field(metadata={"option": PictureOption(
        TextKind("the prompt"), "What the picture shows.", "prompt")})
    negative_prompt: str = option(
        TextKind("the negative prompt"), "What the picture should not show.", "prompt", "",
        flags=("-n", "--negative-prompt"), usual="empty", kin=("negative",))
    _: KW_ONLY
    steps: int | None = option(
        WholeKind(1, STEPS_MAX), "Denoising steps.", "steps", usual=MODELS_OWN, label="Steps",
        aliases=("num_inference_steps",), kin=("num_steps", "sampling_steps", "n_steps"))
    sampler: str | None = option(
        NameKind(SAMPLERS, _label(SAMPLERS), SAMPLERS.__getitem__),
        "How the picture comes out of noise: euler, euler_a, heun, dpm++_2m, uni_pc, lcm, ...: "
        "names of A1111 and ComfyUI.", "steps", usual=MODELS_OWN, label="Sampler", later=True,
        kin=("sampler_name", "sampling_method", "sample_method"))
    noise: str | None = option(
        NameKind(NOISES, _label(NOISES), find_schedule),
        "How noise falls from step to step: automatic, normal, karras, ..., or the levels that "
        "fall to 0: '14.6,7.8,1.5,0'.", "steps", usual=MODELS_OWN, label="Schedule type",
        later=True, kin=("scheduler", "schedule", "sigmas", "schedule_type"))
    eta: float | None = option(
        NumberKind(0, 1, "; 0 draws none"), "How much noise samplers that draw it put back: those "
        "called ancestral, and TCD.", "steps", usual="1; 0.3 for tcd", label="Eta")
    guidance_scale: float | None = option(
        NumberKind(0, GUIDANCE_MAX, "; 7 is usual, 1 turns guidance off"),
        "How strongly the prompt steers; 1 turns guidance off and halves the work.", "guidance",
        usual=MODELS_OWN, label="CFG scale", flags=("--guidance",),
        kin=("cfg", "cfg_scale", "guidance", "scale"))
    seed: int = option(
        SeedKind(0, SEED_END - 1, "; -1 draws one"), "Which noise to start from; -1 draws one.",
        "picture", 7, label="Seed", always=True, aliases=("generator",), kin=("manual_seed",))
    width: int | None = option(
        WholeKind(1, SIDE_MAX, " pixels"), "Pixels of a side, or width x height.", "picture",
        usual=MODELS_OWN, label="Size", flags=("--size",), metavar="WIDTH[xHEIGHT]", later=True)
    height: int | None = option(
        WholeKind(1, SIDE_MAX, " pixels"), "Pixels from top to bottom.", "picture",
        usual=MODELS_OWN, later=True)
    rng: str = option(
        NameKind(RNGS, {"cpu": "CPU", "cuda": "NV"}),
        "Random numbers of torch on the cpu, or of torch on cuda.", "picture", "cpu", label="RNG",
        always=True)
    batch_size: int = option(
        WholeKind(1, BATCH_MAX), "Pictures to make; their seeds follow one another.", "picture", 1,
        flags=("--batch",), aliases=("num_images_per_prompt",),
        kin=("batch", "num_images", "n_iter", "batch_count", "n_images"))
    clip_skip: int | None = option(
        WholeKind(1, BLOCKS_MAX), "The state of CLIP to read, counted from the last, 1.", "text",
        usual=MODELS_OWN, label="Clip skip", later=True)
    distilled_guidance: float | None = option(
        NumberKind(0, GUIDANCE_MAX, "; 3.5 is usual"),
        "What models such as FLUX.1 dev are told of guidance.", "guidance", usual=MODELS_OWN,
        label="Distilled CFG Scale")
    refiner_switch: float | None = option(
        NumberKind(0, 1, expected="a share of the steps from 0 to 1, such as 0.8"),
        "Share of the steps after which the refiner takes over.", "steps", usual="0.8",
        label="Refiner switch at", kin=("denoising_end", "high_noise_frac"))
    cache: float = option(
        NumberKind(0, 1, expected="a number from 0, which leaves out no evaluation, to 1; 0.1 is "
               "usual"),
        "Leave out evaluations whose change is foretold to be below this; 0.1 is usual.", "steps",
        0.0, label="Step cache", flags=("--step-cache",), metavar="SHARE", kin=("step_cache",))
    token_downsampling: int = option(
        WholeKind(1, 8), "Self-attention reads keys and values of every STEPth token down and "
        "across, in UNets; 2 is usual.", "steps", 1, label="Token downsampling", metavar="STEP",
        kin=("token_merging_ratio", "tome", "todo"))
    emphasis: str = option(
        NameKind(EMPHASES, {name: name.capitalize() for name in EMPHASES}),
        "What weights in a prompt do: original, 'no norm' or comfy.", "text", "original",
        label="Emphasis")
    guidance_rescale: float = option(
        SHARE, "How far guidance leaves the contrast as it was, 0 to 1; 0.7 is usual.", "guidance",
        0.0, label="CFG rescale", title="guidance rescale")
    apg: Projected | bool | None = option(
        ProjectionKind(), "Adaptive projected guidance, which keeps strong guidance from burning "
        "colours.", "guidance", usual="off", label="APG")
    guidance_time: tuple[float, float] | None = option(
        RowKind(("START", "END"), SHARE, "(0, 0.8)", "-"),
        "From when to when guidance counts, as shares of the way; 0 and 1 are all of it.",
        "guidance", usual=MODELS_OWN, label="CFG interval", metavar="START END")
    skip_layers: Sequence[int] = option(
        NumbersKind(WholeKind(0, BLOCKS_MAX), "numbers of layers", "a layer to skip", "7,8,9"),
        "Skip-layer guidance for SD 3.5 medium: away from "
        "the picture without these, such as 7,8,9.", "guidance", (), usual="none",
        label="Skip layers", metavar="N,N,...")
    skip_guidance: tuple[float, float, float] = option(
        RowKind(("SCALE", "START", "END"), NumberKind(0, GUIDANCE_MAX), "(2.5, 0.01, 0.2)",
            " -"),
        "How strongly, and from when to when, skip-layer guidance counts.", "guidance",
        (2.5, 0.01, 0.2), label="SLG", usual="2.5 0.01 0.2", metavar="SCALE START END",
        needs=("skip_layers",))
    image: Picture | Sequence[Picture] | None = option(
        OpenedKind(PICTURES, several=True),
        "A picture to change (img2img), instead of making one from noise alone; several for models "
        "that read more, such as FLUX.2 and Qwen-Image-Edit, which change the first.", "image",
        usual="none", metavar="PICTURE", kin=("images", "init_image", "init_images", "input_image"))
    strength: float | None = option(
        NumberKind(0, 1, above=True, expected="a number above 0, which changes nothing, to 1, "
                   "which leaves nothing"),
        "How much of it is changed, above 0 to 1: the share of the steps that are done.", "image",
        usual="0.75; 1 for --extend and for models that read pictures",
        label="Denoising strength", needs=("image",), kin=("denoising_strength", "denoise"))
    mask: Picture | None = option(
        OpenedKind(PICTURE), "White where it is made anew (inpainting); the rest stays as it is.",
        "image", usual="none", metavar="PICTURE", needs=("image",), aliases=("mask_image",))
    mask_blur: int | None = option(
        WholeKind(0, PIXELS_MAX, ", in pixels"), "Pixels over which the mask fades.", "image",
        usual="4", label="Mask blur", needs=("mask", "extend"))
    only_masked: bool = option(
        FlagKind("Only masked"), "Make what is masked in the size asked for, and put it back.",
        "image", False, usual="off", label="Inpaint area", needs=("mask", "extend"))
    padding: int | None = option(
        WholeKind(0, PIXELS_MAX, ", in pixels"), "Pixels around it that are made with it.", "image",
        usual="32", label="Masked area padding", needs=("only_masked",))
    extend: Sequence[int] | None = option(
        RowKind(("LEFT", "TOP", "RIGHT", "BOTTOM"), WholeKind(0, SIDE_MAX), "(0, 0, 256, 0)"),
        "Pixels to add to the picture on each side (outpainting).", "image", usual="none",
        label="Extended by", metavar="LEFT TOP RIGHT BOTTOM", needs=("image",), later=True)
    image_guidance: float | None = option(
        NumberKind(0, GUIDANCE_MAX, "; 1.5 is usual"),
        "How strongly the picture steers models for edits, such as InstructPix2Pix.", "image",
        usual="1.5", label="Image CFG scale", aliases=("image_guidance_scale",))
    redux: Picture | Sequence[Picture] | None = option(
        OpenedKind(PICTURES, several=True),
        "A picture, or several, whose things and look the prompt takes on, as FLUX.1 Redux reads "
        "them.", "image", usual="none", label="Redux pictures", metavar="PICTURE",
        kin=("style_image", "ip_adapter_image", "reference_image"))
    redux_strength: Sequence[float] = option(
        NumbersKind(NumberKind(0, REDUX_MAX), "numbers", "a strength of Redux", "0.8,0.4"),
        "How strongly these count: a number for all, or one for each.", "image", (), usual="1",
        label="Redux strength", metavar="N,N,...", needs=("redux",))
    redux_pooled: float = option(
        NumberKind(0, REDUX_MAX), "How strongly the prompt as a whole counts beside them.",
        "image", 1.0, label="Redux pooled", needs=("redux",))
    redux_sum: bool = option(
        FlagKind("added up"), "Add the tokens of several up, and count those of the prompt as "
        "strongly, as diffusers does; else they stand side by side, as in ComfyUI.", "image", False,
        usual="off", label="Redux tokens", needs=("redux",))
    redux_bias: bool = option(
        FlagKind("attn_bias"), "Strengths say how much is looked at these pictures and leave their "
        "tokens as they are, as attn_bias of ComfyUI; else tokens are multiplied by them.", "image",
        False, usual="off", label="Redux strength type", needs=("redux",))
    variation_seed: int | None = option(
        SeedKind(0, SEED_END - 1, "; -1 draws one"),
        "Noise to go towards, for a picture a little different.", "variation",
        usual="a random one", label="Variation seed", needs=("variation_strength",),
        advice="; 0.1 changes little, 1 takes the other seed", kin=("subseed",))
    variation_strength: float = option(
        SHARE, "How far, 0 to 1; 0.1 changes little.", "variation", 0.0,
        label="Variation seed strength", kin=("subseed_strength",))
    hires_strength: float | None = option(
        NumberKind(0, 1, above=True), "How much is made anew in the second pass.", "larger",
        usual="0.7", label="Denoising strength", needs=("hires",))
    hires: float | None = option(
        NumberKind(1, HIRES_MAX, above=True), "Make it so many times as large in a second pass.",
        "larger", usual="none", label="Hires upscale", kin=("enable_hr", "hr_scale", "upscale"))
    hires_steps: int | None = option(
        WholeKind(1, STEPS_MAX), "Its steps.", "larger", usual="--steps times --hires-strength",
        label="Hires steps", needs=("hires",), later=True, kin=("hr_second_pass_steps",))
    hires_upscaler: Upscaler | str | Path | None = option(
        OpenedKind({"type": "string"}), "A network of the ESRGAN family that enlarges before it.",
        "larger", usual="latents are enlarged", label="Hires upscaler", metavar="PATH",
        needs=("hires",), kin=("hr_upscaler",))
    tiling: str = option(
        NameKind(DIRECTIONS, {"xy": "True"}),
        "Directions in which the picture can be repeated without a seam: x, y or xy.", "picture",
        "", usual="off", label="Tiling", metavar="x|y|xy")
    controls: Sequence[Control] = option(
        OpenedKind({"type": "array", "items": {"type": "object"}}),
        "ControlNets with the pictures that they read.", "image", (), flags=(),
        kin=("control", "controlnet", "control_image", "controlnets"))
    guide: InitVar[Guide | None] = None

    def __post_init__(self, guide: Guide | None) -> None:
        if guide is not None:
            self._take(guide)
        for each in OPTIONS.values():
            if not each.later:
                object.__setattr__(self, each.name, each.checked(getattr(self, each.name)))
        for each in OPTIONS.values():
            if each.needs and each.given(getattr(self, each.name)):
                self._check_needed(each)
        self._check_controls()
        guide = self.guiding()  # raises for numbers that do not go together
        if self.cache and guide.projected is not None:
            raise InputError("cache leaves out evaluations that projected guidance needs for its "
                             "momentum; choose one of them")

    def _check_controls(self) -> None:
        """Raises InputError where the ControlNets are none; they are opened before."""
        given: Any = self.controls
        if not isinstance(given, list | tuple) or not all(isinstance(c, Control) for c in given):
            raise InputError(f"controls is {given!r:.80}; expected a list of what "
                             f"smalti.Control.load gives")

    def _take(self, guide: Guide) -> None:
        """The options of guidance that a guide says."""
        if not isinstance(guide, Guide):
            raise InputError(f"guide is {guide!r:.80}; expected a smalti.Guide")
        skip = guide.skip
        said: dict[str, Any] = {"guidance_rescale": guide.rescale, "apg": guide.projected,
                "skip_layers": () if skip is None else skip.layers}
        if (guide.start, guide.end) != WHOLE_WAY:
            said["guidance_time"] = guide.start, guide.end
        if skip is not None:
            said["skip_guidance"] = (skip.scale, skip.start, skip.end)
        for name, value in said.items():
            if OPTIONS[name].given(getattr(self, name)):
                raise InputError(f"{name} is given, and guide, which says it too; give one of them")
            object.__setattr__(self, name, value)

    def _check_needed(self, each: PictureOption) -> None:
        """Raise InputError for an option without one that it belongs to."""
        if any(OPTIONS[name].given(getattr(self, name)) for name in each.needs):
            return
        first = each.needs[0]
        if each.group == "larger":
            raise InputError(f"{each.name} is given, but no hires; give how many times as large "
                             f"the picture is to be, such as hires=2")
        absent = f"{first} is 0{each.advice}" if each.advice else f"no {first}, which it belongs to"
        raise InputError(f"{each.name} is given, but {absent}")

    def guiding(self) -> Guide:
        """How guidance is done besides its scale."""
        start, end = self.guidance_time or WHOLE_WAY
        skip = None
        if self.skip_layers:
            skip = SkipLayers(tuple(self.skip_layers), *self.skip_guidance)
        projected = self.apg if isinstance(self.apg, Projected) else None
        return Guide(self.guidance_rescale, projected, start, end, skip)

    @classmethod
    def of(cls, *args: Any, **given: Any) -> PictureOptions:
        """The options of these arguments, where names of diffusers mean what they do there.

        Raises UnknownOptionError for another name, which says what is near.

        >>> PictureOptions.of("a cat", num_inference_steps=4).steps
        4
        """
        if len(args) > 2:
            raise InputError(f"{len(args)} values are given without a name; expected a prompt and "
                             f"a negative prompt, and all else by its name, such as steps=20")
        found: dict[str, Any] = {}
        for name, value in given.items():
            own = ALIASES.get(name, name)
            check_known([own], (*OPTIONS, "guide"), KIN)
            if own in found:
                raise InputError(f"{own} is given twice; {', '.join(_names(own))} mean the same")
            found[own] = value
        if not args and "prompt" not in found:
            raise InputError("no prompt is given; expected text that says what the picture shows")
        return cls(*args, **found)

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """All options as JSON Schema (2020-12): types, ranges, defaults, what each is for, the
        group of a form that it belongs to, and those of which it `needs` one."""
        properties = {}
        for each in by_group():
            told = {} if each.default in (None, MISSING) else {"default": each.default}
            properties[each.name] = {
                **each.kind.schema(), "description": each.help, "group": each.group, **told}
            if each.usual and each.default is None:
                properties[each.name]["usual"] = each.usual
            if each.needs:
                properties[each.name]["needs"] = list(each.needs)
            if isinstance(each.default, tuple):
                properties[each.name]["default"] = list(each.default)
        return {"$schema": "https://json-schema.org/draft/2020-12/schema",
                "title": "PictureOptions", "type": "object", "properties": properties,
                "required": ["prompt"], "additionalProperties": False}


def _collected() -> dict[str, PictureOption]:
    """All options by name, in the order of the text of a picture."""
    return {each.name: replace(
        each.metadata["option"], name=each.name, default=each.default)
        for each in fields(PictureOptions) if "option" in each.metadata}


OPTIONS: Mapping[str, PictureOption] = MappingProxyType(_collected())
ALIASES: Mapping[str, str] = MappingProxyType({
    alias: each.name for each in OPTIONS.values() for alias in each.aliases})


KIN: Mapping[str, str] = MappingProxyType({
    other: each.name for each in OPTIONS.values() for other in each.kin})


PICTURE_NAMES: tuple[str, ...] = tuple(
    each.name for each in OPTIONS.values()
    if isinstance(each.kind, OpenedKind) and each.kind.json in (PICTURE, PICTURES))
"""Options that are pictures, one or several."""
SEVERAL_PICTURES: tuple[str, ...] = tuple(
    name for name in PICTURE_NAMES if OPTIONS[name].kind.schema() == PICTURES)
"""Those that may be several."""


def by_group() -> list[PictureOption]:
    """All options, those of a group of a form one after the other."""
    return sorted(OPTIONS.values(), key=lambda each: GROUPS.index(each.group))


def _names(name: str) -> list[str]:
    return [name, *OPTIONS[name].aliases]
