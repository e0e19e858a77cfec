"""How a picture was made, as the text that A1111 keeps in PNG files and that other programs read.

    a red apple
    Negative prompt: blurry
    Steps: 20, Sampler: Euler a, Schedule type: Karras, CFG scale: 7, Seed: 7, Size: 512x512

The text stands in a PNG text chunk named `parameters`. Source: the `infotext` of
AUTOMATIC1111/stable-diffusion-webui.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from smalti.errors import InputError

PNG_KEY = "parameters"
NEGATIVE = "Negative prompt:"
RNG_LABELS = {"cpu": "CPU", "cuda": "NV"}  # A1111's names of the random-number sources

_PAIR = re.compile(r'\s*(\w[\w \-/]*):\s*("(?:\\.|[^\\"])*"|[^,]*)(?:,|$)')


@dataclass(frozen=True)
class Parameters:
    """All that is needed to make a picture again.

    `sampler` and `schedule` are labels such as "Euler a" and "Karras"; `rng` is "cpu" or "cuda".
    `others` holds further pairs, such as "Model" and "Version". A value that a text does not give
    is None.
    """

    prompt: str
    negative_prompt: str = ""
    steps: int | None = None
    sampler: str | None = None
    schedule: str | None = None
    guidance: float | None = None
    seed: int | None = None
    width: int | None = None
    height: int | None = None
    rng: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        size = None if self.width is None else f"{self.width}x{self.height}"
        pairs = {
            "Steps": self.steps,
            "Sampler": self.sampler,
            "Schedule type": self.schedule,
            "CFG scale": None if self.guidance is None else f"{self.guidance:.12g}",
            "Seed": self.seed,
            "Size": size,
            "RNG": RNG_LABELS.get(self.rng or ""),
            **self.others,
        }
        told = [
            f"{key}: {_quoted(str(value))}" for key, value in pairs.items() if value is not None
        ]
        lines = [self.prompt]
        if self.negative_prompt:
            lines.append(f"{NEGATIVE} {self.negative_prompt}")
        return "\n".join([*lines, ", ".join(told)] if told else lines)


def parse(text: str) -> Parameters:
    """Read an A1111 parameters text, by whatever program it was written.

    Raises `InputError` where a number is none.

    >>> found = parse("a cat\\nNegative prompt: dog\\nSteps: 20, Sampler: Euler a, Seed: 7")
    >>> found.prompt, found.negative_prompt, found.sampler, found.seed
    ('a cat', 'dog', 'Euler a', 7)
    """
    lines = text.strip("\n").split("\n")
    pairs: dict[str, str] = {}
    found = _PAIR.findall(lines[-1])
    if len(found) >= 3 or lines[-1].startswith("Steps: "):
        pairs = {key.strip(): _unquoted(value.strip()) for key, value in found}
        lines = lines[:-1]
    start = next((i for i, line in enumerate(lines) if line.startswith(NEGATIVE)), len(lines))
    negative = "\n".join(lines[start:]).removeprefix(NEGATIVE).removeprefix(" ")
    labels = {label: name for name, label in RNG_LABELS.items()}
    width, height = _size(pairs.pop("Size", None))
    return Parameters(
        prompt="\n".join(lines[:start]),
        negative_prompt=negative,
        steps=_number(pairs, "Steps", int),
        sampler=pairs.pop("Sampler", None),
        schedule=pairs.pop("Schedule type", None),
        guidance=_number(pairs, "CFG scale", float),
        seed=_number(pairs, "Seed", int),
        width=width,
        height=height,
        rng=labels.get(pairs.pop("RNG", "")),
        others=pairs,
    )


def _number(pairs: dict[str, str], key: str, kind: type[int] | type[float]) -> float | None:
    text = pairs.pop(key, None)
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"picture parameters say {key}: {text!r:.40}; expected a number") from None


def _size(text: str | None) -> tuple[int, int] | tuple[None, None]:
    if text is None:
        return None, None
    match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    if not match:
        raise InputError(f"picture parameters say Size: {text!r:.40}; expected WIDTHxHEIGHT")
    return int(match[1]), int(match[2])


def _quoted(value: str) -> str:
    special = any(mark in value for mark in ',:\n"') or value != value.strip()
    return json.dumps(value, ensure_ascii=False) if special else value


def _unquoted(value: str) -> str:
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value
