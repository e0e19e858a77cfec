"""How far pictures are from those in f32, by what makes them sooner: decibels of PSNR.

    python bench/psnr.py [sd15.safetensors] [--size 256] [--steps 20] [--seeds 1,2,3]
        [--ways int8,cache=0.1] [--threads 2] [--sampler euler] [--json FILE]

Without a file it is the model that ships. All pictures of a seed have the same prompt, sampler and
number of steps, and begin with the same noise. A way is a precision, or an option of a picture with
its value, in f32. The least of all pictures counts.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
from report import finish

from smalti.benchmark.table import Row
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.pipeline import Pipeline
from smalti.errors import InputError

PROMPTS = ("a red apple", "a green car", "a yellow star")
"""In turns, a prompt for each seed: what the model that ships draws."""
DECIBELS_MIN = 30.0
SAME = ("prompt", "seed", "steps", "width", "height", "sampler")
"""Options that all pictures of a seed have in common."""


def psnr(found: np.ndarray, truth: np.ndarray) -> float:
    """Decibels between two pictures of 8 bits; infinite where they are equal."""
    square = float(np.mean((found.astype(np.float64) - truth) ** 2))
    return math.inf if not square else 10 * math.log10(255 ** 2 / square)


def read_way(text: str) -> tuple[str, dict[str, float]]:
    """The precision and the options of a picture that a way means.

    >>> read_way("int8"), read_way("cache=0.1"), read_way("token_downsampling=2")
    (('int8', {}), ('f32', {'cache': 0.1}), ('f32', {'token_downsampling': 2}))
    """
    name, given, value = text.partition("=")
    if not given:
        return name, {}
    if name in SAME:
        raise InputError(f"{text!r} would be of another picture: {name} is the same for all")
    try:
        options = {name: int(value) if value.isdigit() else float(value)}
    except ValueError:
        raise InputError(f"{text!r} is no option with a number, such as cache=0.1") from None
    PictureOptions.of(prompt=PROMPTS[0], **options)
    return "f32", options


def pictures(given: argparse.Namespace, precision: str, options: dict[str, float]
             ) -> tuple[list[np.ndarray], float]:
    """A picture for each seed, and the median of the seconds of a processor that one took."""
    model = {} if given.checkpoint is None else {"path": given.checkpoint}
    pipe = Pipeline.load(**model, device="cpu", threads=given.threads, precision=precision)
    found, took = [], []
    for number, seed in enumerate(given.seeds):
        asked = PictureOptions.of(
            prompt=PROMPTS[number % len(PROMPTS)], seed=seed, steps=given.steps,
            width=given.size, height=given.size, sampler=given.sampler, **options)
        started = time.process_time()
        for step in pipe.job(asked).steps():
            if step.result is not None:
                found.append(np.asarray(step.result.images[0].convert("RGB")))
        took.append(time.process_time() - started)
    return found, float(np.median(took))


def rows(given: argparse.Namespace) -> list[Row]:
    """A row for each way. Raises InputError for one that means nothing, before any is tried."""
    ways = {way: read_way(way) for way in given.ways}
    truth, plain = pictures(given, "f32", {})
    found = []
    for way, meant in ways.items():
        made, took = pictures(given, *meant)
        each = [psnr(*pair) for pair in zip(made, truth, strict=True)]
        found.append(Row(f"{way}: PSNR of {given.steps} steps from f32", f">= {DECIBELS_MIN:g} dB",
                         f"{min(each):.1f} dB ({', '.join(f'{one:.1f}' for one in each)}; a picture"
                         f" takes {took:.2f} s of a processor, in f32 {plain:.2f})",
                         min(each) >= DECIBELS_MIN))
    return found


def main() -> int:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, nargs="?")
    parser.add_argument("--size", type=int)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=lambda text: [*map(int, text.split(","))],
                        default=[1, 2, 3])
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["int8"])
    parser.add_argument("--sampler", default="euler")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    try:
        found = rows(given)
    except InputError as error:
        parser.error(str(error))
    return finish(found, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
