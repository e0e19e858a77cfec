"""Models and adapters that were distilled to few steps: words in their names, and what their
authors recommend.

The tensors of most tell nothing of it. A record has a table of its own where its models differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from smalti.dataclass import dataclass

Values = Mapping[str, float | str]
"""Fields of `Hints`, which hold where the file states none."""

Recommended = Mapping[str, Values]
"""Words in the name of a model, in small letters and between single spaces -> what is recommended.
"""

DISTILLED: Recommended = {
    "turbo": {"steps": 4, "guidance": 1.0, "sampler": "euler_a", "noise": "trailing"},
    "lightning": {"steps": 4, "guidance": 1.0, "sampler": "euler", "noise": "sgm_uniform"},
    "hyper": {"steps": 8, "guidance": 1.0, "sampler": "euler", "noise": "trailing"},
    "lcm": {"steps": 6, "guidance": 1.5, "sampler": "lcm", "noise": "lcm"},
    "dmd2": {"steps": 4, "guidance": 1.0, "sampler": "lcm", "noise": "trailing"},
    "tcd": {"steps": 4, "guidance": 1.0, "sampler": "tcd", "noise": "lcm"},
}
"""Of Stable Diffusion and SDXL: ADD (Sauer et al. 2023), SDXL-Lightning (Lin et al. 2024), Hyper-SD
(Ren et al. 2024), latent consistency models (Luo et al. 2023), improved distribution matching (Yin
et al. 2024), trajectory consistency (Zheng et al. 2024)."""

DISTILLED_FLOW: Recommended = {
    word: {name: values[name] for name in ("steps", "guidance")}
    for word, values in DISTILLED.items()}
"""Of models that predict a flow, whose sampler and noise levels stay those of their family."""

_ONE = r"(?<!\d)1 ?step(?![a-z])"
PARTICULAR: tuple[tuple[str, str, Values], ...] = (
    ("hyper", r"(?<![a-z])cfg(?![a-z])", {"guidance": 5.0}),
    ("hyper", _ONE, {"sampler": "lcm", "noise": "5.1110,0"}),
    ("lightning", rf"{_ONE}.*(?<![a-z])x0", {"prediction": "sample"}),
)
"""Of diffusion models: word, what else stands in a name, and what is then recommended. Adapters of
Hyper-SD that keep guidance take 5 to 8 of it; for one step it goes from training step 800, at noise
5.111, and Lightning gives the picture itself."""

LCM_WHOLE: Values = {"steps": 4, "guidance": 1.0, "distilled_guidance": 8.5, "sampler": "lcm",
                     "noise": "lcm"}
"""Of latent consistency models that are told of guidance, which adapters are not; diffusers'
`LatentConsistencyModelPipeline`."""

FEW_MAX = 16
"""Steps of the longest walks that models were distilled to (Hyper-SD for FLUX.1)."""

COMMON_WORDS = ("turbo", "lightning", "hyper", "kv")
"""These mean other things, too: an adapter may be of lightning in the sky."""

_WHOLE = (r"(?:sd|xl|flux)[ \d]*(?:dev )?{word}"
          r"|(?:qwen image|krea|anima)[ \d]*(?:raw |preview\d? )?{word} lo ?ra"
          r"(?: ?(?:v|r|(?:avg )?rank|bf|fp|\d))*$"
          r"|qwen image 2 1 {word}(?: pytorch lora weights)?$")
"""A distilled model as an adapter. Behind Krea's and Anima's, names of styles for it go on."""

_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_STEPS = re.compile(r"(?<!\d)([1-9]\d?) ?steps?(?![a-z])")
_OTHER = r"(?![a-z]| (?:real|detail|focus))"
"""What may not follow: the word goes on, or is about a style ("HyperRealism")."""


@dataclass(frozen=True)
class Distilled:
    """How a model or an adapter was distilled: the `word` for it, and what is recommended; `steps`
    tells whether its name has their number, `shown` what all of this is known by."""

    word: str
    values: Values
    steps: bool
    shown: str = "its name says"

    @property
    def few(self) -> bool:
        """Whether it makes pictures in few steps; some names tell of other things."""
        return float(self.values.get("steps", FEW_MAX + 1)) <= FEW_MAX

    def __str__(self) -> str:
        told = [f"{self.values[name]:g} steps" if name == "steps" else
                f"{name.replace('_', ' ')} {self.values[name]:g}" if "guidance" in name else
                f"{name.replace('_', ' ')} {self.values[name]}" for name in self.values]
        return f"{self.word}: {', '.join(told)}"


def words(*names: str) -> str:
    """Names as words in small letters between single spaces, split where capitals begin, too.

    >>> words("dreamshaperXL_v2.1-TurboDPMSDE")
    'dreamshaper xl v2 1 turbo dpmsde'
    """
    return " ".join(re.split(r"[\W_]+", _CAPITALS.sub(" ", " ".join(names)))).strip().lower()


def distilled(recommended: Recommended, *names: str) -> Distilled | None:
    """What the names of a model say of how it was distilled, with the number of steps that they
    tell; the words are those that have recommendations.

    >>> print(distilled(DISTILLED, "sdxl_lightning_8step"))
    lightning: 8 steps, guidance 1, sampler euler, noise sgm_uniform
    >>> distilled(DISTILLED, "hyperrealism"), distilled(DISTILLED, "HyperRealism")
    (None, None)
    """
    text = words(*names)
    word = _word(recommended, text)
    if word is None:
        return None
    found = _told(word, recommended[word], text)
    more = {} if word not in DISTILLED or "noise" not in found.values else {
        key: value for kind, pattern, values in PARTICULAR
        if kind == word and re.search(pattern, text) for key, value in values.items()}
    return replace(found, values={**found.values, **more})


def with_guidance(*names: str) -> Distilled:
    """What is known of a UNet that is told of guidance, which names may say the steps of.

    >>> print(with_guidance("dreamshaper_8steps"))
    lcm: 8 steps, guidance 1, distilled guidance 8.5, sampler lcm, noise lcm
    """
    return _told("lcm", LCM_WHOLE, words(*names), "its layers show")


def distilled_adapter(recommended: Recommended, *names: str) -> Distilled | None:
    """The same of an adapter, whose name must tell more: with `COMMON_WORDS` the number of steps,
    or the model that was distilled.

    >>> print(distilled_adapter(DISTILLED, "Hyper-SDXL-8steps-CFG-lora"))
    hyper: 8 steps, guidance 5, sampler euler, noise trailing
    >>> distilled_adapter(DISTILLED, "lightning-in-the-sky")
    >>> distilled_adapter(DISTILLED_FLOW, "FLUX.1-Turbo-Alpha").word
    'turbo'
    >>> distilled_adapter(DISTILLED_FLOW, "krea2_turbo_lora_rank64").word
    'turbo'
    >>> distilled_adapter(DISTILLED_FLOW, "krea2_turbo_lora_of_castles")
    """
    few = {word: values for word, values in recommended.items()
           if Distilled(word, values, False).few}
    found = distilled(few, *names)
    if found is None or found.steps or found.word not in COMMON_WORDS:
        return found
    return found if re.search(_WHOLE.replace("{word}", found.word), words(*names)) else None


def _told(word: str, values: Values, text: str, shown: str = Distilled.shown) -> Distilled:
    """What is recommended, with the number of steps that a text has."""
    steps = _STEPS.search(text)
    named = {} if steps is None else {"steps": int(steps[1])}
    found = {**values, **named}
    if str(found.get("noise", "")).count(",") not in (0, found.get("steps")):
        del found["noise"]  # levels of another number of steps
    return Distilled(word, found, steps is not None, shown)


def _word(recommended: Iterable[str], text: str) -> str | None:
    """The first of the words that stands in a text; of two that begin there, the longer one."""
    known = "|".join(sorted(map(re.escape, recommended), key=len, reverse=True))
    found = re.search(rf"(?<![a-z])({known}){_OTHER}", text) if known else None
    return found[1] if found else None
