"""What people are told of a model before they use it: what it is for, sizes, what it draws."""

from __future__ import annotations

import math
from collections.abc import Mapping

from smalti.diffusion.pipeline import SHIPPED_MODEL
from smalti.families import families
from smalti.server.models import ModelFile

GRID = 64
"""Pixels that sides are multiples of, as in the sets that models were trained on."""
SHAPES = ((1, 1), (4, 3), (3, 4), (3, 2), (2, 3), (16, 9), (9, 16))
"""Of pictures, as cameras and screens have them."""
ABOUT_SHIPPED = (
    "This little model comes with Smalti, so that everything works at once: it draws one to "
    "four things, {size} pixels, from a few words such as “red apple”, “two cats” or “a dog left "
    "of a tree”. It has learnt about 200 things by heart and is no general picture model; for "
    "others, give a folder with --models.")
SEVERAL_EDITED = (
    "It changes a picture as a sentence in English or Chinese says, or puts what is in up to three "
    "pictures together: give them, and call them picture 1 to 3. What is made has about {size} "
    "pixels. Lightning models take 4 or 8 steps at guidance 1.")
ABOUT: Mapping[str, str] = {
    "sd1": "It makes pictures of about {size} pixels from a list of words and phrases, the "
           "important ones first. A negative prompt says what is to be left out, and most LoRAs "
           "and ControlNets that there are fit it.",
    "sd2": "It makes pictures of about {size} pixels from a list of words and phrases. A negative "
           "prompt helps it more than others.",
    "sdxl": "It makes pictures of about {size} pixels, from words or from sentences. Smaller ones "
            "fall apart; for speed take fewer steps instead.",
    "sdxl-refiner": "It improves details of pictures that SDXL has made, of about {size} pixels. "
                    "Give it such a picture to begin with, and a low strength.",
    "sd3": "It makes pictures of about {size} pixels from whole sentences, and can write short "
           "words. Describe the scene as you would to a person.",
    "flux": "It makes pictures of about {size} pixels from whole sentences, hands and writing "
            "included. At guidance 1, its own, a negative prompt is not read.",
    "z-image": "It makes pictures of about {size} pixels from whole sentences in English or "
               "Chinese, writing included. Turbo models take 8 steps, and read no negative "
               "prompt at guidance 1.",
    "flux2": "It makes pictures of about {size} pixels from whole sentences, writing included, in "
             "4 steps. It reads no negative prompt at guidance 1; its base, in 28 steps, does.",
    "anima": "It makes drawings of about {size} pixels, of anime and other styles, from tags as on "
             "Danbooru or from sentences, and reads negative prompts. Turbo models take 8 to 12 "
             "steps at guidance 1.",
    "qwen-image": "It makes pictures of about {size} pixels from whole sentences in English or "
                  "Chinese, long writing included, and reads negative prompts. Lightning models "
                  "take 4 steps at guidance 1.",
    "qwen-image21": "It makes pictures of about {size} pixels from whole sentences in English or "
                      "Chinese, long writing included, with see-through parts where these ask for "
                      "them. At guidance 1, its own, a negative prompt is not read. Lightning "
                      "models take 4 steps.",
    "qwen-image-edit": "It changes a picture as a sentence in English or Chinese says, and keeps "
                       "the rest of it: give it that picture, which is brought to about {size} "
                       "pixels. Lightning models take 4 or 8 steps at guidance 1.",
    "qwen-image-edit-2509": SEVERAL_EDITED,
    "qwen-image-edit-2511": SEVERAL_EDITED,
    "krea2": "It makes pictures of about {size} pixels from whole sentences, photographs above "
             "all, and reads negative prompts. Turbo models take 8 steps at guidance 1.",
    "ernie-image": "It makes pictures of about {size} pixels from whole sentences in English or "
                   "Chinese, long writing and posters included, and reads negative prompts. Turbo "
                   "models take 8 steps at guidance 1.",
    "longcat-image": "It makes pictures of about {size} pixels from whole sentences in English or "
                     "Chinese; what stands in quotes there it writes. It reads negative prompts.",
    "ovis-image": "It makes pictures of about {size} pixels from whole sentences in English or "
                  "Chinese, writing above all, and reads negative prompts.",
    "lumina2": "It makes pictures of about {size} pixels from whole sentences, or from tags where "
               "it was trained with drawings, and reads negative prompts.",
    "flux2-dev": "It makes pictures of about {size} pixels from whole sentences, writing included, "
                 "and changes pictures as they say. At guidance 1, its own, a negative prompt is "
                 "not read.",
    "flux3": "It makes pictures of about {size} pixels from whole sentences, writing included, and "
             "changes pictures as they say. The distilled model takes 16 steps and reads no "
             "negative prompt at guidance 1; its base, in 50 steps, does.",
    "chroma": "It makes pictures of about {size} pixels from whole sentences, and reads negative "
              "prompts. It follows FLUX.1, and LoRAs for that one mostly fit.",
}
"""By the family of a model, in two sentences."""
DRAWS = (
    "red apple", "banana", "grapes", "strawberry", "carrot", "pizza", "hamburger", "red heart",
    "blue heart", "smiling face", "yellow star", "rose", "sunflower", "cat", "dog", "lion", "panda",
    "fish", "owl", "butterfly", "car", "rocket", "house", "umbrella", "crown", "guitar", "book",
    "snowman", "rainbow", "birthday cake")
"""Some of what the shipped model has learnt, of the words in `training/concepts.txt`."""


def about(file: ModelFile) -> str:
    """Two sentences about a model."""
    if not file.defaults:
        return f"It cannot be used as it is: {file.problem}."
    size = "{width}×{height}".format(**file.defaults)
    if file.path == SHIPPED_MODEL:
        return ABOUT_SHIPPED.format(size=size)
    return ABOUT.get(file.family, "It makes pictures of about {size} pixels. What it was made for "
                                  "is not known.").format(size=size)


def draws(file: ModelFile) -> tuple[str, ...] | None:
    """Prompts that a model is known to draw well; None where nothing is known."""
    return DRAWS if file.path == SHIPPED_MODEL else None


def sizes(file: ModelFile) -> list[tuple[int, int]]:
    """Widths and heights that suit a model: of the area of its own size, in several shapes."""
    if not file.defaults:
        return []
    width, height = int(file.defaults["width"]), int(file.defaults["height"])
    if min(width, height) < 4 * GRID:
        return [(width, height)]  # of a model so small, one size is all that it has seen
    side, found = math.sqrt(width * height), [(width, height)]
    for across, down in SHAPES:
        stretch = math.sqrt(across / down)
        found.append((_near(side * stretch), _near(side / stretch)))
    return list(dict.fromkeys(found))


def family_title(file: ModelFile) -> str:
    """The models of its family, in words."""
    family = families().get(file.family)
    return file.title if family is None else family.title


def _near(pixels: float) -> int:
    return max(GRID, round(pixels / GRID) * GRID)
