"""The options of a picture as the text that A1111 keeps in PNG files, and back.

    text = str(written(asked, 0))                     # a picture of a request
    found = read(parse(text))                         # by whatever program it was written
    pipe(**{**found.options, "seed": 8})

A text does not hold files: the pictures and networks that made a picture are named in it, and what
is missing is said. Other programs leave out what is their default, which may not be ours; where
that is known of A1111, it is filled in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from smalti import __version__
from smalti.dataclass import dataclass
from smalti.diffusion.hires import LATENT
from smalti.diffusion.kinds import NumberKind, RowKind, WholeKind
from smalti.diffusion.metadata import Parameters
from smalti.diffusion.noise import NOISES
from smalti.diffusion.options import OPTIONS, PictureOption
from smalti.diffusion.prompt import AdapterUse
from smalti.diffusion.request import Request
from smalti.diffusion.samplers import SAMPLERS, split_label
from smalti.errors import InputError

SIZE = re.compile(r"(\d{1,6})x(\d{1,6})")
OF_A1111 = re.compile(r"v?1\.\d+|f\d")
"""Versions of A1111 and Forge, as their texts state them."""
IDLE = ("model hash", "vae hash", "lora hashes", "ti hashes", "hashes", "version", "user",
        "refiner hash")
"""Keys that say nothing of how to make a picture again."""
STRENGTH = "Denoising strength"
ADAPTER = re.compile(r"(.+?):([-+\d.e]+)(?::([-+\d.e]+))?")
GIVEN_BY = {"image": "--image PICTURE", "mask": "--mask PICTURE", "redux": "--redux PICTURE",
            "refiner": "--refiner PATH", "hires_upscaler": "--hires-upscaler PATH",
            "controls": "--control MODEL PICTURE"}
"""Options of the command line for what is missing."""
CONTROLS_MAX = 10
"""ControlNets of a text: the most that A1111's extension may be set to."""


def written(asked: Request, number: int = 0) -> Parameters:
    """What made a picture of a batch, as A1111 writes it."""
    one, pairs = asked.one(number), {}
    for option in OPTIONS.values():
        value = getattr(one, option.name)
        if option.label and (option.always or _told(one, option, value)):
            pairs[option.label] = _text(one, option, value)
    if asked.loras:
        pairs["Lora"] = ", ".join(asked.loras)
    if asked.refiner:
        pairs["Refiner"] = asked.refiner
    if asked.tiling:  # behind the names of models, where it always stood
        pairs["Tiling"] = pairs.pop("Tiling")
    pairs |= {f"ControlNet {number}": control.text()
              for number, control in enumerate(asked.controls)}
    if asked.precision:
        pairs["Precision"] = asked.precision
    return Parameters(asked.prompt, asked.negative_prompt, {
        **pairs, "Model": asked.model, "Version": f"Smalti {__version__}"})


def _told(one: Request, option: PictureOption, value: Any) -> bool:
    """Whether a value stands in the text."""
    if option.name == "skip_guidance":
        return bool(one.skip_layers)
    if option.name == "hires_upscaler":
        return one.second is not None
    return option.given(value)


def _text(one: Request, option: PictureOption, value: Any) -> str:
    """A value as it stands in the text."""
    if option.name == "width":
        return f"{one.width}x{one.height}"
    if option.name == "redux":
        return str(len(value))
    if option.name == "hires_upscaler" and one.second is not None:
        return one.second.upscaler
    return option.kind.written(value)


@dataclass
class PictureText:
    """What a text says of how a picture was made.

    `options` are those of `PictureOptions`, the prompts among them; `adapters` are named with their
    weights; `precision` is "" where nothing is said of it. `missing` says of files that the text
    names and does not hold what they were, by the name of the option that gives one, and `files`
    how those are called that have a name; `unknown` are pairs that are not understood.
    """

    options: dict[str, Any]
    adapters: list[AdapterUse] = field(default_factory=list)
    model: str | None = None
    version: str = ""
    precision: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)

    def advice(self) -> list[str]:
        """What is missing, and how it is given on the command line.

        >>> PictureText({}, missing={"mask": "a mask"}).advice()
        ['a mask: give --mask PICTURE']
        """
        return [f"{text}: give {GIVEN_BY[name]}" for name, text in self.missing.items()]

    def with_given(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options, with those that are given besides in place of their own.

        What is given is not missing any more; options that belong to what still is are left out.

        >>> PictureText({"strength": 0.5, "steps": 3}).with_given({"steps": 4})
        {'steps': 4}
        """
        self.missing = {name: text for name, text in self.missing.items() if name not in given}
        found = {**self.options, **{name: given[name] for name in given if name in OPTIONS
                                    and name != "controls"}}
        if "refiner" not in given:
            found.pop("refiner_switch", None)
        for name in ("mask_blur", "only_masked", "extend", "padding", "strength", "image_guidance",
                     "redux_strength", "redux_pooled", "redux_sum", "redux_bias"):
            needs = OPTIONS[name].needs or ("image",)
            if name not in given and not any(other in found for other in needs):
                found.pop(name, None)
        return found


def read(parameters: Parameters) -> PictureText:
    """Read a parameters text, by whatever program it was written.

    Raises InputError for values that cannot be.

    >>> from smalti.diffusion.metadata import parse
    >>> found = read(parse("a cat\\nSteps: 20, Sampler: Euler a, Seed: 7, Size: 64x32, ENSD: 3"))
    >>> found.options["sampler"], found.options["width"], found.unknown
    ('euler_a', 64, {'ENSD': '3'})
    """
    pairs = {key.casefold(): (key, value) for key, value in parameters.pairs.items()}

    def take(key: str) -> str | None:
        return pairs.pop(key.casefold(), (key, None))[1]

    found = PictureText({"prompt": parameters.prompt,
                         "negative_prompt": parameters.negative_prompt})
    found.model, found.version = take("Model"), take("Version") or ""
    found.precision = take("Precision") or ""
    if (size := take("Size")) is not None:
        found.options["width"], found.options["height"] = _size(size)
    strength, upscaler = take(STRENGTH), take("Hires upscaler")
    for option in OPTIONS.values():
        text = take(option.label) if option.label else None
        if text is not None:
            found.options[option.name] = _value(option, text)
    if strength is not None:
        name = "hires_strength" if "hires" in found.options else "strength"
        found.options[name] = _value(OPTIONS[name], strength)
    _complete(found)
    found.missing = dict(_missing(found, upscaler, take))
    found.adapters = [_adapter(text) for text in (take("Lora") or "").split(", ") if text]
    found.unknown = {key: value for lower, (key, value) in pairs.items() if lower not in IDLE}
    return found


def _value(option: PictureOption, text: str) -> Any:
    """What a text gives for an option. Raises InputError that names the key."""
    try:
        return option.kind.read(text)
    except ValueError:
        expected = "other words"
        if isinstance(option.kind, WholeKind | NumberKind):
            expected = "a number"
        elif isinstance(option.kind, RowKind):
            expected = f"numbers such as {option.kind.example}"
        elif option.default:
            expected = f"such as {option.kind.written(option.default)}"
        raise InputError(f"picture parameters say {option.label}: {text!r:.40}; expected "
                         f"{expected}") from None


def _size(text: str) -> tuple[int, int]:
    match = SIZE.fullmatch(text)
    if not match:
        raise InputError(f"picture parameters say Size: {text!r:.40}; expected WIDTHxHEIGHT")
    return int(match[1]), int(match[2])


def _complete(found: PictureText) -> None:
    """Fill in what other programs leave out because it is their default."""
    options = found.options
    if options.get("only_masked") is False:  # "Whole picture"
        del options["only_masked"]
    if "hires" in options and not options.get("hires_steps") and "steps" in options:
        options["hires_steps"] = options["steps"]
    if "rng" not in options and OF_A1111.match(found.version):
        options["rng"] = "cuda"  # A1111 names its random numbers where they are no GPU's
    sampler = options.get("sampler")
    if sampler is None or "noise" in options:
        return
    if sampler not in SAMPLERS:  # of ComfyUI: dpmpp_2m_karras
        cuts = [match.start() for match in re.finditer("_", sampler)]
        pair = next(((sampler[:at], sampler[at + 1:]) for at in cuts
                     if sampler[:at] in SAMPLERS and sampler[at + 1:] in NOISES), None)
        if pair is not None:
            options["sampler"], options["noise"] = pair
    elif split_label(sampler)[1] is None:
        options["noise"] = "normal" if "comfyui" in found.version.lower() else "automatic"


def _missing(found: PictureText, upscaler: str | None,
             take: Callable[[str], str | None]) -> Iterator[tuple[str, str]]:
    """Files that made a picture and are not in its text; those with a name are noted by it."""
    if "strength" in found.options:
        yield "image", "another picture, which was changed"
    if "mask_blur" in found.options and "extend" not in found.options:
        yield "mask", "a mask"
    if (count := found.options.pop("redux", None)) is not None:
        yield "redux", f"{count:.10} picture{'s' * (count != '1')} that Redux read"
    if upscaler is not None and not upscaler.startswith(LATENT):
        found.files["hires_upscaler"] = upscaler
        yield "hires_upscaler", f"the upscaler {upscaler}"
    if (refiner := take("Refiner")) is not None:
        found.files["refiner"] = refiner
        yield "refiner", f"the refiner {refiner}"
    texts = [take(f"ControlNet {number}") for number in range(CONTROLS_MAX)]
    if any(texts):
        told = "; ".join(text for text in texts if text)
        yield "controls", f"ControlNets ({told:.200})"


def _adapter(text: str) -> AdapterUse:
    """An adapter as `labels` writes it: name:weight, or name:text_weight:weight."""
    match = ADAPTER.fullmatch(text)
    if match is None:
        raise InputError(f"picture parameters say Lora: {text!r:.40}; expected name:weight")
    name, first, second = match.groups()
    return AdapterUse(name, float(second or first), float(first))
