"""The short list of concepts for the continued training: pictures, recoloured ones, captions."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from colour import repaint
from pictures import Pictures, with_article
from presets import CLOSINGS, COLOUR_WORDS, MILD_WORDS, OPENINGS

SHORT_LIST = Path(__file__).with_name("concepts.txt")
HUE_WEIGHT = 0.4


@dataclass(frozen=True)
class Entry:
    """One picture to learn: an emoji, how often to show it, words for it, a hue to paint it in."""

    label: str
    weight: float
    words: tuple[str, ...]
    hue: str | None = None


def read_list(path: Path) -> list[Entry]:
    """The entries of a file of lines `label | weight | words | hues`; hues are optional."""
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        label, weight, words, *hues = [field.strip() for field in line.split("|")]
        names = tuple(word.strip() for word in words.split(","))
        entries.append(Entry(label, float(weight), names))
        for hue in hues[0].split() if hues else []:
            entries.append(Entry(label, HUE_WEIGHT, names, hue))
    return entries


def taught_words(entries: list[Entry], more: Sequence[str] = ()) -> str:
    """The list of words that goes with a model, as `smalti.checkpoint.taught_words` reads it: what
    may stand around a name, then the names of each thing, the colours it was painted in besides.
    `more` are other texts that may stand around names.
    """
    texts = [*OPENINGS, *CLOSINGS, *MILD_WORDS, "a an the", *more]
    around = dict.fromkeys(word for text in texts for word in re.findall(r"\w+", text))
    things: dict[str, dict[str, None]] = {}
    for entry in entries:
        names = things.setdefault(entry.label, {})
        names |= dict.fromkeys(named_in(text, entry.hue) for text in entry.words)
    return "\n".join([f"around: {', '.join(around)}",
                      *(", ".join(names) for names in things.values())]) + "\n"


def named_in(text: str, hue: str | None) -> str:
    """A name of a thing, where it is painted in a hue with that instead of its own colour."""
    if not hue:
        return text
    return " ".join([hue, *(word for word in text.split() if word not in COLOUR_WORDS)])


def caption_of(rng: random.Random, entry: Entry) -> str:
    """One way of asking for an entry."""
    text = entry.words[0] if rng.random() < 0.5 else rng.choice(entry.words)
    text = named_in(text, entry.hue)
    if rng.random() < 0.08:
        text = f"{rng.choice(MILD_WORDS)} {text}"
    draw = rng.random()
    if draw < 0.45:
        text = with_article(text)
    elif draw < 0.50:
        text = f"the {text}"
    draw = rng.random()
    if draw < 0.16:
        return rng.choice(OPENINGS) + text
    return text + rng.choice(CLOSINGS) if draw < 0.40 else text


def pictures_of(entries: list[Entry], pictures: Pictures) -> torch.Tensor:
    """The pictures of the entries on white, (N, 3, px, px) in 0..1."""
    number = {concept["label"]: index for index, (concept, style)
              in enumerate(zip(pictures.concept, pictures.style, strict=True))
              if style == "fluent3d"}
    missing = [entry.label for entry in entries if entry.label not in number]
    if missing:
        raise SystemExit(f"no picture of these labels in the data: {missing}")
    result = []
    for entry in entries:
        rgba = pictures.images[number[entry.label]].float() / 255
        rgb, alpha = rgba[..., :3], rgba[..., 3:]
        if entry.hue:
            rgb = repaint(rgba, entry.hue)
        result.append((rgb * alpha + 1 - alpha).permute(2, 0, 1))
    return torch.stack(result)
