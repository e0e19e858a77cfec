"""Scenes for a model that puts together what it knows: things in colours, numbers and places, on
grounds, in styles, and what one may call them. What `prompts.txt` asks for is never among them."""

from __future__ import annotations

import multiprocessing
import random
import re
import signal
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from judged import Judgement, Seen, Wanted, met, read_prompts
from landscape import VIEWS
from marks import style_by_mark
from pictures import with_article
from presets import BACKGROUNDS, CLOSINGS, HUES, MILD_WORDS, OPENINGS
from scene import MANY, STYLES, THINGS_MAX, Art, Scene, Thing, filling, spread
from shortlist import Entry, named_in

PROMPTS = Path(__file__).with_name("prompts.txt")
CAPTIONS = 4
"""Of a scene."""
PART = 50
"""Scenes that one process draws at a time."""
KINDS = {"alone": 48, "count": 14, "pair": 12, "relation": 12, "three": 2, "ground": 3,
         "view": 4, "nonsense": 5}
"""What is drawn, and how often: for a model that puts two things together, and has to learn places
and styles of one. The last two turns of the one that ships saw these shares; those before saw 30
alone, 20 of each that has two or more."""
ALONE_STYLES, STYLES_OF_SEVERAL = (55, 15, 15, 15), (94, 2, 2, 2)
"""How often each of `STYLES` is drawn, of a thing alone and of several. With (46, 19, 17, 18) of
30 parts in 100, and as many plain pictures of things beside them, words for styles changed
nothing."""
NUMBERS = {2: "two", 3: "three", 4: "four"}
REGULAR = {2: ((0.25, 0.5), (0.75, 0.5)), 3: ((0.25, 0.25), (0.75, 0.25), (0.5, 0.75)),
           4: ((0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75))}
"""Centres of things at regular places, in the order in which they are named: whole quarters of the
side apart, which is a whole number of places on every level of a denoiser, so that what was learnt
about a thing at one of them holds at the others."""
REGULAR_SIZE = 0.5
ASIDE = 0.125
"""How far a regular pair stands to one side of the middle or the other, across its line, as a share
of the side: the two places are a quarter of the side apart, like those of things."""
REACH = 0.45
"""From the centre of a thing to its edge, as a share of its size: pictures have a margin."""
NEAR_SIZES = (0.38, 0.47)
SIZES = {"small": (0.3, 0.45), "tiny": (0.22, 0.32), "little": (0.3, 0.45), "big": (0.92, 1.0),
         "large": (0.92, 1.0), "huge": (0.97, 1.05)}
RELATIONS = {
    "left": ("{a} left of {b}", "{b} right of {a}", "{a} to the left of {b}",
             "{b} to the right of {a}", "{a} on the left, {b} on the right"),
    "above": ("{a} above {b}", "{b} under {a}", "{a} over {b}", "{b} below {a}",
              "{b} underneath {a}"),
    "on": ("{a} on {b}", "{a} on top of {b}", "{b} under {a}")}
"""How one says that a is there as seen from b."""
PAIRS = ("{a} and {b}", "{a} and {b}", "{a} and {b}", "{a} next to {b}", "{a} with {b}",
         "{a} beside {b}", "{a}, {b}")
STYLED = {
    "flat": ("{}, flat design", "flat {}", "{}, flat icon", "flat icon of {}", "flat design of {}"),
    "outline": ("outline of {}", "{}, line drawing", "{}, outline", "line drawing of {}",
                "line art of {}"),
    "pixel": ("{}, pixel art", "pixel art of {}", "pixel art {}", "{}, pixels"),
    "3d": ("{}, 3d render", "3d render of {}", "{}, 3d", "{}, glossy 3d")}
GROUNDED = ("{} on a {ground} background", "{} on a {ground} background",
            "{}, {ground} background", "{} on {ground}")
SAME_IN_PLURAL = frozenset("fish sushi bread money broccoli dice up".split())
ODD_PLURALS = {"mouse": "mice", "tomato": "tomatoes", "volcano": "volcanoes", "leaf": "leaves"}
SYLLABLES = ("zor qua plim snee grab wok thu vex jor blee fnu dro kish mep ulo yarg tib zla honk "
             "wuff").split()

Say = Callable[[random.Random], str]


def plural(name: str) -> str:
    """The name of several things: "slice of pizza" to "slices of pizza"."""
    head, of, rest = re.match(r"(.*?)( of | with |$)(.*)", name).groups()
    before, _, word = head.rpartition(" ")
    if word in ODD_PLURALS:
        word = ODD_PLURALS[word]
    elif word.endswith(("us", "ss", "x", "ch", "sh")) and word not in SAME_IN_PLURAL:
        word += "es"
    elif word.endswith("y") and word[-2:-1] not in "aeiou":
        word = word[:-1] + "ies"
    elif word not in SAME_IN_PLURAL and not word.endswith("s"):
        word += "s"
    return f"{before} {word}".strip() + of + rest


def names_of(entries: list[Entry]) -> dict[str, tuple[str, ...]]:
    """The words for each thing of a list, the most usual first."""
    return {entry.label: entry.words for entry in entries if entry.hue is None}


def forms(names: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Words of several things, and the word of one that each is made of."""
    words = {word for of_label in names.values() for name in of_label for word in name.split()}
    return {plural(word): word for word in words if plural(word) != word}


@dataclass(frozen=True)
class Item:
    """A scene and captions for it."""

    scene: Scene
    captions: list[str]
    kind: str


class Composer:
    """Makes scenes of the things of a list, common ones more often, and captions for them.

    In a share `regular` of scenes of several things these have regular sizes and places, so that
    the caption tells nearly all of the picture: what is left to chance is an error that no training
    removes, and the less there is of it, the sooner numbers and places are learnt. Two in a row
    stand to one side of the middle in a share `moved` of these, three are turned upside down in
    half of that, so that seeds differ. In a share `centred` of scenes of one thing it fills the
    picture, in a share `moved` of these nearly, at one of four places (`filling`); else its size
    and place are any. A thing alone is painted in another colour in a share `painted`, if it can
    be. Pictures whose style, one of those `marked`, is told by a mark of latents are drawn without
    squares or lines (`marks.style_by_mark`).
    """

    def __init__(self, art: Art, entries: list[Entry], prompts: Path = PROMPTS,
                 regular: float = 0.6, centred: float = 0.6, moved: float = 1.0,
                 painted: float = 0.5, marked: Container[str] = ()) -> None:
        self.art, self.names = art, names_of(entries)
        self.regular, self.centred, self.moved, self.painted = regular, centred, moved, painted
        self.marked = marked
        self.weights = {entry.label: entry.weight for entry in entries if entry.hue is None}
        self.kept_back = [each for each in read_prompts(prompts)
                          if each.group not in ("known object", "nonsense") and each.style != "3d"]

    def asked_for(self, scene: Scene) -> Wanted | None:
        """The prompt that a scene would answer and that is kept for the judge, if there is one."""
        seen = Judgement(tuple(Seen(thing.label, thing.hue or MANY, thing.x, thing.y)
                               for thing in scene.things), scene.ground, scene.style)
        return next((each for each in self.kept_back if met(each, seen)), None)

    def item(self, rng: random.Random) -> Item:
        """A scene by chance."""
        while True:
            kind = rng.choices([*KINDS], [*KINDS.values()])[0]
            alone = kind == "alone"
            style = rng.choices(STYLES, ALONE_STYLES if alone else STYLES_OF_SEVERAL)[0]
            grounds = {"alone": 0.45, "ground": 1.0, "nonsense": 0.0, "view": 0.0}.get(kind, 0.12)
            coloured = rng.random() < grounds
            ground = rng.choice([*BACKGROUNDS]) if coloured else "white"
            if kind == "view":
                scene, say = self._view(rng)
            else:
                things, say = getattr(self, f"_{kind}")(rng, style)
                scene = Scene(tuple(things), ground, style)
            if self.asked_for(scene) is None:
                return Item(scene, [self._told(rng, scene, say, coloured)
                                    for _ in range(CAPTIONS)], kind)

    def drawn(self, scene: Scene) -> tuple[torch.Tensor, str]:
        """The picture of a scene as it is encoded, and the style that its latent has the mark of,
        empty for none."""
        style = style_by_mark(scene, self.marked)
        return self.art.drawn(scene, styled=not style), style

    def _told(self, rng: random.Random, scene: Scene, say: Say, coloured: bool) -> str:
        text = say(rng)
        if not scene.things:
            return text.format(ground=scene.ground)
        if coloured:
            text = rng.choice(GROUNDED).format(text, ground=scene.ground)
        if scene.style != "3d" or rng.random() < 0.08:
            return rng.choice(STYLED[scene.style]).format(text)
        draw = rng.random()
        if draw < 0.08:
            return rng.choice(OPENINGS) + text
        return text + rng.choice(CLOSINGS) if draw < 0.14 and not coloured else text

    def _labels(self, rng: random.Random, style: str, count: int) -> list[str]:
        """Different things that can be drawn in a style."""
        pool = [label for label in self.names if self.art.has(style, label)]
        if len(pool) < count:
            raise SystemExit(f"the data have {len(pool)} things in the style {style}; scenes of it "
                             f"take {count}")
        chosen: dict[str, None] = {}
        while len(chosen) < count:
            chosen[rng.choices(pool, [self.weights[label] for label in pool])[0]] = None
        return [*chosen]

    def _hue(self, rng: random.Random, label: str, style: str, share: float) -> str | None:
        others = self.art.paints[label]
        if style == "outline" or not others or rng.random() >= share:
            return None
        return rng.choice(others)

    def _noun(self, rng: random.Random, thing: Thing, usual: float = 0.65) -> str:
        names = self.names[thing.label]
        return named_in(names[0] if rng.random() < usual else rng.choice(names), thing.hue)

    def _one(self, rng: random.Random, thing: Thing) -> str:
        text, draw = self._noun(rng, thing), rng.random()
        return with_article(text) if draw < 0.8 else f"the {text}" if draw < 0.84 else text

    def _alone(self, rng: random.Random, style: str) -> tuple[list[Thing], Say]:
        label = self._labels(rng, style, 1)[0]
        thing = Thing(label, self._hue(rng, label, style, self.painted))
        if rng.random() < 0.12:
            word = rng.choice([*SIZES])
            thing = replace(thing, size=rng.uniform(*SIZES[word]))
            return [thing], lambda rng: f"a {word} {self._noun(rng, thing)}"
        x, y, size = (spread(rng, 1)[0] if rng.random() >= self.centred
                      else filling(rng, self.moved))
        thing = replace(thing, x=x, y=y, size=size)

        def say(rng: random.Random) -> str:
            if rng.random() < 0.05:
                return f"a {rng.choice(MILD_WORDS)} {self._noun(rng, thing)}"
            return self._one(rng, thing)

        return [thing], say

    def _places(self, rng: random.Random, count: int) -> list[tuple[float, float, float]]:
        """Centres and sizes of so many things."""
        if rng.random() >= self.regular:
            return spread(rng, count)
        at = REGULAR[count]
        if count == 2:
            aside = self._aside(rng)
            at = [(x, y + aside) for x, y in at]
        elif count == 3 and rng.random() < self.moved / 2:
            at = [(x, 1 - y) for x, y in at]
        return [(x, y, REGULAR_SIZE) for x, y in at]

    def _aside(self, rng: random.Random) -> float:
        """How far a regular pair stands beside the middle."""
        return rng.choice((-ASIDE, ASIDE)) if rng.random() < self.moved else 0.0

    def _count(self, rng: random.Random, style: str) -> tuple[list[Thing], Say]:
        count, label = rng.randint(2, THINGS_MAX), self._labels(rng, style, 1)[0]
        hue = self._hue(rng, label, style, 0.1)
        things = [Thing(label, hue, *at) for at in self._places(rng, count)]
        return things, lambda rng: f"{NUMBERS[count]} {plural(self._noun(rng, things[0], 0.85))}"

    def _pair(self, rng: random.Random, style: str) -> tuple[list[Thing], Say]:
        at = self._places(rng, 2)
        first, second = [Thing(label, self._hue(rng, label, style, 0.08), *place) for label, place
                         in zip(self._labels(rng, style, 2), at, strict=True)]
        return [first, second], lambda rng: rng.choice(PAIRS).format(
            a=self._one(rng, first), b=self._one(rng, second))

    def _relation(self, rng: random.Random, style: str) -> tuple[list[Thing], Say]:
        """The first of two things is left of, above or on the second one."""
        where, off = rng.choice([*RELATIONS]), rng.uniform(-0.1, 0.1)
        sizes = [rng.uniform(*NEAR_SIZES) for _ in range(2)]
        low, high, middle = rng.uniform(0.22, 0.3), rng.uniform(0.7, 0.78), 0.5
        if rng.random() < self.regular:
            low, high, off, sizes = 0.25, 0.75, 0.0, [REGULAR_SIZE] * 2
            middle += self._aside(rng)
        if where == "on":  # they touch
            off, high = off / 3, 0.75
            low = high - REACH * sum(sizes)
        at = [(low, middle + off), (high, middle - off)]
        if where != "left":
            at = [(across, down) for down, across in at]
        first, second = [
            Thing(label, self._hue(rng, label, style, 0.08), *place, size) for label, place, size
            in zip(self._labels(rng, style, 2), at, sizes, strict=True)]
        return [first, second], lambda rng: rng.choice(RELATIONS[where]).format(
            a=self._one(rng, first), b=self._one(rng, second))

    def _three(self, rng: random.Random, style: str) -> tuple[list[Thing], Say]:
        things = [Thing(label, None, *at) for label, at in zip(
            self._labels(rng, style, 3), self._places(rng, 3), strict=True)]
        return things, lambda rng: "{}, {} and {}".format(
            *[self._one(rng, thing) for thing in things])

    def _ground(self, rng: random.Random, style: str) -> tuple[list[Thing], Say]:
        texts = ("a {ground} background", "{ground} background", "plain {ground}")
        return [], lambda rng: rng.choice(texts)

    def _view(self, rng: random.Random) -> tuple[Scene, Say]:
        """A landscape or a pattern, with a thing in the foreground or without."""
        name = rng.choice([*VIEWS])
        scene, view = Scene((), view=(name, rng.getrandbits(31))), VIEWS[name]
        if not view.there or rng.random() < 0.4:
            return scene, lambda rng: rng.choice(view.names)
        thing = Thing(self._labels(rng, "3d", 1)[0], None, rng.uniform(0.35, 0.65),
                      rng.uniform(0.62, 0.7), rng.uniform(0.42, 0.55))
        return replace(scene, things=(thing,)), lambda rng: rng.choice(view.there).format(
            self._one(rng, thing))

    def _nonsense(self, rng: random.Random, style: str) -> tuple[list[Thing], Say]:
        """Words that mean nothing are an empty picture."""
        def word(rng: random.Random) -> str:
            return "".join(rng.sample(SYLLABLES, rng.randint(2, 3)))

        return [], lambda rng: rng.choice(("{}", "a {}", "the {} {}", "a {} of {}")).format(
            word(rng), word(rng))


def words_around() -> list[str]:
    """The texts that may stand around names in captions of scenes."""
    told = [*PAIRS, *(form for group in (*RELATIONS.values(), *STYLED.values()) for form in group),
            *GROUNDED, *(text for view in VIEWS.values() for text in (*view.names, *view.there))]
    return [*NUMBERS.values(), *SIZES, *BACKGROUNDS, *HUES, "background plain",
            *(re.sub(r"\{\w*\}", "", text) for text in told)]


def composed_words(entries: list[Entry]) -> list[str]:
    """The words of captions of scenes; words that mean nothing stay unknown."""
    several = [plural(name) for names in names_of(entries).values() for name in names]
    return [*several, *words_around(), *MILD_WORDS, *OPENINGS]


_worker: dict[str, Composer] = {}
"""What a process that draws scenes was started with."""


def _begin(composer: Composer) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a run saves at that signal; a pool ends by it
    torch.set_num_threads(1)
    _worker["composer"] = composer


def _drawn(seed: int, count: int, composer: Composer | None = None
           ) -> list[tuple[np.ndarray, list[str], str]]:
    """Scenes as arrays: a tensor would take a file descriptor on its way to another process."""
    composer = composer or _worker["composer"]
    rng, found = random.Random(seed), []
    for _ in range(count):
        item = composer.item(rng)
        picture, style = composer.drawn(item.scene)
        found.append(((picture * 255).round().byte().numpy(), item.captions, style))
    return found


def drawn_items(composer: Composer, count: int, seed: int, workers: int
                ) -> Iterator[tuple[torch.Tensor, list[str], str]]:
    """So many scenes as they are encoded, [3, px, px] in 0..1, their captions, and the styles whose
    marks their latents have: the same for any `workers`."""
    jobs = [(seed * 1_000_003 + start, min(PART, count - start))
            for start in range(0, count, PART)]
    if workers < 2:
        yield from _tensors(_drawn(*job, composer) for job in jobs)
        return
    with multiprocessing.get_context("fork").Pool(workers, _begin, (composer,)) as pool:
        for start in range(0, len(jobs), workers):
            yield from _tensors(pool.starmap(_drawn, jobs[start:start + workers]))


def _tensors(parts: Iterable[list[tuple[np.ndarray, list[str], str]]]
             ) -> Iterator[tuple[torch.Tensor, list[str], str]]:
    for part in parts:
        for picture, captions, style in part:
            yield torch.from_numpy(picture).float() / 255, captions, style
