"""The packed pictures and the words for them."""

from __future__ import annotations

import io
import json
import random
import re
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from colour import main_hue
from PIL import Image
from presets import (
    BACKGROUNDS,
    COLOUR_WORDS,
    CORE_GROUPS,
    END_TOKEN,
    HUES,
    MILD_WORDS,
    OPENINGS,
    SIGN_SUBGROUPS,
    START_TOKEN,
    STYLE_WORDS,
)
from tokenizer import PATTERN, Tokenizer

NOT_FREE = re.compile(r"paperclip|technologist|video game")
HELD_OUT = 16
"""Of so many labels one is held out."""
ONE_WAY = re.compile(r"left|right|clock|abc|1st|2nd|3rd|musical|calendar|date")
COMMON = ("a an the and of photo picture image drawing illustration painting emoji icon on "
          "background with next to two , . in style isolated high quality")


def clean(text: str) -> str:
    """A label or short code as plain words."""
    person = text.startswith(("person:", "man:", "woman:"))
    for old, new in (("“", ""), ("”", ""), ("’", "'"), ("_", " "),
                     (": ", " with " if person else " ")):
        text = text.replace(old, new)
    return re.sub(r"\s+", " ", text.lower()).strip()


def plain_word(text: str) -> bool:
    """Whether a tag can stand in a caption."""
    return len(text) > 1 and not re.search(r"\d|[^a-z \-']", text)


def with_article(text: str) -> str:
    """`a` or `an` before a text."""
    return ("an " if text[0] in "aeiou" else "a ") + text


def describe(concept: dict, tag_count: Counter) -> None:
    """Add the names, the weight and whether mirroring is harmless to a concept."""
    concept["name"] = clean(concept["label"])
    synonyms = {clean(code) for code in concept["shortcodes"]} - {concept["name"]}
    concept["synonyms"] = sorted(filter(plain_word, synonyms))
    rare = {clean(tag) for tag in concept["tags"] if tag_count[tag] <= 3} - {concept["name"]}
    concept["rare"] = sorted(filter(plain_word, rare))
    concept["all_tags"] = sorted(filter(plain_word, {clean(tag) for tag in concept["tags"]}))
    core = concept["group"] in CORE_GROUPS
    sign = concept["subgroup"] in SIGN_SUBGROUPS
    weight = 1.0 if core else 0.3
    if sign:
        weight = min(weight, 0.15)
    concept["weight"] = min(weight, 0.1) if concept["gender_variant"] else weight
    concept["flip"] = core and not sign and not ONE_WAY.search(concept["name"])


def held_out(label: str) -> bool:
    """Whether pictures of a label are kept from the autoencoder, to measure it by; those of the
    short list are not."""
    return zlib.crc32(label.encode()) % HELD_OUT == 0


class Pictures:
    """All pictures of the wanted styles, as one tensor, with their concepts."""

    def __init__(self, data: Path, table: Path, px: int, styles: list[str], threads: int):
        packed = np.load(data)
        self.data, self.packed_px = data, int(packed["px"])
        self.px, self.tokenizer = px, Tokenizer(table)
        self.concepts = json.loads(data.with_name("concepts.json").read_text(encoding="utf-8"))
        names = [str(name) for name in packed["styles"]]
        self.origin = list(zip([names[index] for index in packed["style"]],
                               [int(index) for index in packed["concept"]], strict=True))
        keep = self.free_pictures(styles or names)
        blob, offset = packed["blob"].tobytes(), packed["off"]

        def decode(index: int) -> np.ndarray:
            image = Image.open(io.BytesIO(blob[offset[index]:offset[index + 1]])).convert("RGBA")
            if image.size[0] != px:
                whole = image.size[0] % px == 0
                image = image.resize((px, px), Image.BOX if whole else Image.LANCZOS)
            return np.asarray(image)

        with ThreadPoolExecutor(threads) as pool:
            self.images = torch.from_numpy(np.stack(list(pool.map(decode, keep))))
        self.style = [self.origin[index][0] for index in keep]
        self.concept = [self.concepts[self.origin[index][1]] for index in keep]
        tag_count = Counter(tag for concept in self.concepts for tag in set(concept["tags"]))
        for concept in self.concepts:
            describe(concept, tag_count)
        self.hue = [main_hue(image[::4, ::4].float() / 255) for image in self.images]

    def free_pictures(self, styles: list[str]) -> list[int]:
        """Numbers of the pictures of these styles that the open licence covers.

        The packaged 3D set also holds pictures that Microsoft's MIT repository does not (families,
        couples; its notes except the paperclip, technologist and video game too). What the
        repository's flat set has as well is kept, where that set is at hand to compare with.
        """
        flat = {concept for style, concept in self.origin if style == "fluentflat"}

        def free(style: str, concept: int) -> bool:
            if not style.startswith("fluent"):
                return True
            listed = style != "fluent3d" or not flat or concept in flat
            return listed and not NOT_FREE.search(self.concepts[concept]["label"])

        return [index for index, (style, concept) in enumerate(self.origin)
                if style in styles and free(style, concept)]

    def name_of(self, rng: random.Random, index: int) -> str:
        """One of the names of a picture: mostly its label, else a synonym, a tag or several."""
        concept, draw = self.concept[index], rng.random()
        if draw < 0.5:
            return concept["name"]
        if draw < 0.72 and concept["synonyms"]:
            return rng.choice(concept["synonyms"])
        if draw < 0.86 and concept["rare"]:
            return rng.choice(concept["rare"])
        tags = concept["all_tags"]
        chosen = rng.sample(tags, min(len(tags), rng.randint(1, 3)))
        return ", ".join([concept["name"], *chosen])

    def caption(self, rng: random.Random, index: int, hue: str | None = None,
                background: str | None = None, short: bool = False) -> str:
        """One caption; `hue` is the colour a picture was painted in, `background` its ground."""
        style = self.style[index]
        text = self.concept[index]["name"] if hue else self.name_of(rng, index)
        colour = hue
        if not hue and self.hue[index] and rng.random() < 0.2:
            colour = self.hue[index][0]
        if colour and (hue or not set(text.split()) & COLOUR_WORDS):
            words = [word for word in text.split() if word not in COLOUR_WORDS]
            text = f"{colour} {' '.join(words) or text}"
        if rng.random() < 0.45 and "," not in text:
            text = with_article(text)
        if short:
            return text
        draw = rng.random()
        if draw < 0.12:
            text = OPENINGS[int(draw / 0.03)] + text
        elif draw < 0.24:
            text += " emoji" if draw < 0.20 else " icon"
        if background and (background != "white" or rng.random() < 0.15):
            text += (f" on a {background} background" if rng.random() < 0.7
                     else f", {background} background")
        if rng.random() < (0.3 if style == "fluent3d" else 1.0):  # no style word means 3D
            word = rng.choice(STYLE_WORDS[style])
            text = f"{text}, {word}" if rng.random() < 0.6 else f"{word} of {text}"
        return text

    def vocabulary(self, more: list[str] = ()) -> list[int]:
        """Every token of CLIP's table that a caption can contain, in order."""
        texts = [" ".join([concept["name"], *concept["synonyms"], *concept["all_tags"]])
                 for concept in self.concepts]
        texts += [" ".join(words) for words in STYLE_WORDS.values()]
        texts += [*HUES, *BACKGROUNDS, *COLOUR_WORDS, *MILD_WORDS, *OPENINGS, COMMON, "a , b",
                  *more]
        found = {token for text in texts for token in self.tokenizer.ids(text)}
        found |= {token for text in texts for word in PATTERN.findall(text)
                  for token in self.tokenizer.word(word)}
        return sorted(found | {START_TOKEN, END_TOKEN})
