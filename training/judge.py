#!/usr/bin/env python3
"""Judge a model by held-out prompts: what share of its pictures shows what was asked for.

    judge.py train --data DATA.npz --out judge.pt [--steps 1800] [--threads 2]
    judge.py compare MODEL.safetensors [MODEL ...] --judge judge.pt --data DATA.npz
        [--seeds 2] [--steps N] [--sheet sheet.png]

The judge is a network that knows the art alone: it is trained on scenes put together from it, and
never on pictures of a model. How often it is right itself is said beside: the same prompts, drawn
by program. A training that is asked to end (`kill PID`), or killed, goes on with the same command
from `judge.state`, which is removed at its end. `prompts.txt` has the prompts; what they ask for
must not be put together in training.
"""

from __future__ import annotations

import argparse
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from judge_net import PX, Judge, Training, as_seen
from judged import GROUPS, Judgement, Wanted, met, read_prompts, shares, short_names
from pictures import Pictures, held_out
from run import ASSETS
from sampling import grid
from scene import Art, Scene, Thing, spread
from shortlist import SHORT_LIST, read_list

HERE = Path(__file__).resolve().parent
TABLE = ASSETS / "bpe_simple_vocab_16e6.txt.gz"
OWN_SCENES = 4
"""Scenes of each prompt by which the judge itself is judged."""
VARIED = 8
"""Seeds of a prompt whose pictures are compared with each other."""
SMALL = 32
"""Pixels a side at which two pictures are compared: finer noise is no variety."""
SHOWN = 48
"""Pictures of a sheet."""
SAVE_SECONDS = 240
"""Time between two states of a training; the most that a process which is killed loses."""


def art_of(data: Path, threads: int) -> Art:
    """The art of the short list, as scenes need it."""
    pictures = Pictures(data, TABLE, PX, ["fluent3d", "fluentflat"], threads)
    return Art(pictures, read_list(SHORT_LIST), PX)


def scene_of(wanted: Wanted, art: Art, rng: random.Random) -> Scene:
    """A scene that shows what a prompt asks for."""
    parts = [part for part in wanted.parts for _ in range(part.count)]
    things = []
    places = spread(rng, len(parts)) if parts else []
    for part, (x, y, size) in zip(parts, places, strict=True):
        things.append(drawn_thing(art, part.labels[0], part.hue, x, y, size))
    scene = Scene(tuple(things), wanted.ground or "white", wanted.style or "3d")
    if wanted.relation is None:
        return scene
    off, low, high = rng.uniform(-0.1, 0.1), rng.uniform(0.22, 0.3), rng.uniform(0.7, 0.78)
    ends = (low, high) if wanted.relation in ("left of", "above") else (high, low)
    across = wanted.relation in ("left of", "right of")
    at = [(end, 0.5 + off) if across else (0.5 + off, end) for end in ends]
    return replace(scene, things=tuple(
        replace(thing, x=x, y=y) for thing, (x, y) in zip(things, at, strict=True)))


def drawn_thing(art: Art, label: str, hue: str | None, x: float, y: float, size: float) -> Thing:
    """A thing in a hue, which need not be painted where it is its own."""
    return Thing(label, None if hue == art.colour(Thing(label)) else hue, x, y, size)


def own_shares(judge: Judge, art: Art, wanted: list[Wanted]) -> dict[str, float]:
    """How often the judge finds in scenes of the art what they were made to show."""
    rng, asked, results = random.Random(1), [], []
    for each in wanted:
        if each.group == "nonsense":
            continue
        images = torch.stack([as_seen(art.drawn(scene_of(each, art, rng)), rng)
                              for _ in range(OWN_SCENES)])
        asked += [each] * OWN_SCENES
        results += [met(each, seen) for seen in judge.judgements(images)]
    return shares(asked, results)


def pictures_of(model: Path, prompts: list[str], seeds: int, steps: int | None
                ) -> list[torch.Tensor]:
    """Pictures [3, h, w] in 0..1: all seeds of a prompt, then those of the next one."""
    from smalti.diffusion.pipeline import Pipeline

    pipe, found = Pipeline.load(model, device="cpu"), []
    more = {} if steps is None else {"steps": steps}
    for prompt in prompts:
        for seed in range(seeds):
            image = pipe(prompt=prompt, seed=seed, **more).images[0]
            found.append(torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1))
    return found


def distance(images: list[torch.Tensor]) -> float:
    """The mean distance of two of these pictures."""
    small = torch.stack([torch.nn.functional.interpolate(
        image[None], (SMALL, SMALL), mode="area")[0].flatten() for image in images])
    pairs = torch.cdist(small, small)
    return float(pairs.sum() / (len(images) * (len(images) - 1)))


def variety(model: Path, art: Art, wanted: list[Wanted], steps: int | None) -> float:
    """How far the seeds of a prompt are from each other, over the same of the art: a thing at
    other places, in other sizes, in the two sets."""
    rng, ratios = random.Random(2), []
    for each in [each for each in wanted if each.group == "known object"][:VARIED]:
        label = each.parts[0].labels[0]
        scenes = [Scene((Thing(label, None, *spread(rng, 1)[0]),), "white", style)
                  for style in ("3d", "flat") * (VARIED // 2)]
        ratios.append(distance(pictures_of(model, [each.prompt], VARIED, steps))
                      / distance([art.drawn(scene) for scene in scenes]))
    return sum(ratios) / len(ratios)


def pictures_in(art: Art, px: int) -> Pictures:
    """The art in the size of a model."""
    if px == art.px:
        return art.pictures
    if px > art.pictures.packed_px:
        raise SystemExit(f"the data has pictures of {art.pictures.packed_px} pixels a side; a "
                         f"model of {px} is judged by data of {px} (pack_data.py {px} ...)")
    return Pictures(art.pictures.data, TABLE, px, ["fluent3d"], torch.get_num_threads())


def held_out_db(model: Path, art: Art) -> float:
    """What the autoencoder keeps of art that is held out: its mean PSNR in dB."""
    from layout import from_single_file, preset_of, read_file
    from models import make_vae

    tensors, config = read_file(model)
    preset = preset_of(config)
    vae = from_single_file(make_vae(preset), "vae", preset, tensors).eval()
    known, found = set(art.labels), []
    pictures = pictures_in(art, preset["px"])
    for index, (concept, style) in enumerate(zip(pictures.concept, pictures.style, strict=True)):
        label = concept["label"]
        if style != "fluent3d" or label in known or not held_out(label):
            continue
        rgba = pictures.images[index].float().permute(2, 0, 1) / 255
        picture = (rgba[:3] * rgba[3:] + 1 - rgba[3:])[None] * 2 - 1
        with torch.no_grad():
            again = vae.decode(vae.encode(picture).latent_dist.mean).sample.clamp(-1, 1)
        found.append(-10 * torch.log10(((again - picture) / 2).square().mean()).item())
    return sum(found) / len(found)


def compare(options: argparse.Namespace) -> None:
    """Print a table: groups, the judge itself, and each model."""
    art, judge = art_of(options.data, options.threads), Judge.load(options.judge)
    wanted = read_prompts(options.prompts)
    columns = {"the judge, on scenes of the art": own_shares(judge, art, wanted)}
    for model, name in zip(options.models, short_names(options.models), strict=True):
        images = pictures_of(model, [each.prompt for each in wanted], options.seeds, options.steps)
        seen: list[Judgement] = []
        for start in range(0, len(images), 32):
            seen += judge.judgements(torch.stack(images[start:start + 32]))
        asked = [each for each in wanted for _ in range(options.seeds)]
        results = [met(each, found) for each, found in zip(asked, seen, strict=True)]
        columns[name] = shares(asked, results)
        columns[name]["variety"] = variety(model, art, wanted, options.steps)
        columns[name]["autoencoder, dB"] = held_out_db(model, art)
        if options.sheet:
            chosen = range(0, len(images), max(1, len(images) // SHOWN))[:SHOWN]
            grid([images[index] * 2 - 1 for index in chosen], 8,
                 options.sheet.with_stem(f"{options.sheet.stem}-{name.replace('/', '-')}"),
                 [("+ " if results[index] else "- ") + asked[index].prompt for index in chosen])
    print(f"| | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    for group in (*GROUPS, "variety", "autoencoder, dB"):
        cells = [told(group, found.get(group)) for found in columns.values()]
        print(f"| {group} | {' | '.join(cells)} |")


def told(group: str, value: float | None) -> str:
    """A number of the table."""
    if value is None:
        return ""
    return f"{value:.0%}" if group in GROUPS else f"{value:.2f}"


def learn(options: argparse.Namespace) -> None:
    """Train a judge, or go on with one that did not come to its end. SIGTERM saves it and ends."""
    training = Training(art_of(options.data, options.threads), options.steps, options.batch,
                        options.seed)
    state = options.out.with_suffix(".state")
    if state.exists():
        training.resume(torch.load(state, map_location="cpu", weights_only=False))
        print(f"goes on from step {training.step} of {options.steps}", flush=True)
    asked_to_end = False

    def end(*_: object) -> None:
        nonlocal asked_to_end
        asked_to_end = True

    before = signal.signal(signal.SIGTERM, end)
    began = saved = time.time()
    while training.step < options.steps and not asked_to_end:
        value = training.learn()
        if training.step % 50 == 0:
            print(f"step {training.step} of {options.steps}: {value:.3f}, "
                  f"{time.time() - began:.0f} s", flush=True)
        if time.time() - saved > SAVE_SECONDS:
            keep(training, state)
            saved = time.time()
    signal.signal(signal.SIGTERM, before)
    if training.step < options.steps:
        keep(training, state)
        print(f"{state}: step {training.step} of {options.steps}; the same command goes on")
        return
    training.judge().save(options.out)
    state.unlink(missing_ok=True)
    print(options.out)


def keep(training: Training, path: Path) -> None:
    """Save a state so that a crash leaves the earlier one."""
    part = path.with_suffix(".part")
    torch.save(training.state(), part)
    part.replace(path)


def main() -> None:
    """Read the command line; train a judge, or judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "compare"):
        command = commands.add_parser(name)
        command.add_argument("--data", type=Path, required=True, help="packed pictures (.npz)")
        command.add_argument("--threads", type=int, default=2)
    training, judging = commands.choices["train"], commands.choices["compare"]
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--steps", type=int, default=1800)
    training.add_argument("--batch", type=int, default=32)
    training.add_argument("--seed", type=int, default=0)
    judging.add_argument("models", type=Path, nargs="+")
    judging.add_argument("--judge", type=Path, required=True)
    judging.add_argument("--prompts", type=Path, default=HERE / "prompts.txt")
    judging.add_argument("--seeds", type=int, default=2)
    judging.add_argument("--steps", type=int, help="default: the model's own")
    judging.add_argument("--sheet", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.command == "compare":
        compare(options)
        return
    learn(options)


if __name__ == "__main__":
    main()
