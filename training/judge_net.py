"""The judge's network: which things a picture shows, where, in which colours, on which ground."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from judged import Judgement, Seen
from kernels import quicken_convolutions
from models import multiplies_bfloat16, reorder
from presets import BACKGROUNDS, HUES
from scene import MANY, STYLES, Art, Scene, any_scene
from torch import nn

PX, CELLS = 128, 16
"""Sides of the picture that is read, and of the map of centres."""
WIDTHS = (24, 48, 96, 144)
COLOURS = (*HUES, MANY)
GROUNDS = tuple(BACKGROUNDS)
SURE = 0.35
"""The least probability of a centre that counts, where the judge is right most often on scenes of
the art."""
SPREAD = 0.7
"""Standard deviation of the mark of a centre, in cells."""


class Block(nn.Module):
    """Two convolutions with a short cut; the first one may halve the sides."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.short = nn.Conv2d(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.short(x))


class JudgeNet(nn.Module):
    """Pictures [n, 3, 128, 128] in 0..1 to maps [n, ., 16, 16] of centres, labels and colours, and
    to logits of ground and style."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        first, second, third, last = WIDTHS
        self.near = nn.Sequential(
            nn.Conv2d(3, first, 5, 2, 2), nn.ReLU(), Block(first, second, 2),
            Block(second, third, 2), Block(third, last, 1))
        self.far = nn.Sequential(Block(last, last, 2), Block(last, last, 1), nn.Upsample(
            scale_factor=2))
        self.both = Block(2 * last, last, 1)
        self.maps = nn.Conv2d(last, 1 + labels + len(COLOURS), 1)
        self.whole = nn.Linear(2 * last, len(GROUNDS) + len(STYLES))
        self.parts = (1, labels, len(COLOURS))
        with torch.no_grad():
            self.maps.bias[0] = -4.0  # few cells are centres

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        near = self.near(x - 0.5)
        found = self.both(torch.cat([near, self.far(near)], 1))
        whole = self.whole(torch.cat([found.mean((2, 3)), found.amax((2, 3))], 1))
        return (*self.maps(found).split(self.parts, 1), *whole.split(
            (len(GROUNDS), len(STYLES)), 1))


def marks(scene: Scene) -> torch.Tensor:
    """Where the centres of a scene are, [16, 16]: 1 at each, less around it."""
    steps = torch.arange(CELLS) + 0.5
    found = torch.zeros(CELLS, CELLS)
    for thing in scene.things:
        row, column = cell(thing.y), cell(thing.x)
        away = (steps[:, None] - row - 0.5).square() + (steps[None] - column - 0.5).square()
        found = torch.maximum(found, torch.exp(-away / (2 * SPREAD ** 2)))
    return found


def cell(share: float) -> int:
    """The row or column of cells in which a share of the side lies."""
    return min(CELLS - 1, int(share * CELLS))


def loss(net: JudgeNet, art: Art, images: torch.Tensor, scenes: list[Scene]) -> torch.Tensor:
    """Of a batch: marks by the focal loss of CenterNet (arXiv:1904.07850), the others by cross
    entropy at the centres."""
    centre, label, colour, ground, style = net(images)
    wanted = torch.stack([marks(each) for each in scenes])
    sure = torch.sigmoid(centre[:, 0]).clamp(1e-5, 1 - 1e-5)
    here = wanted == 1
    found = -torch.where(here, (1 - sure).square() * sure.log(),
                         (1 - wanted) ** 4 * sure.square() * (1 - sure).log())
    things = [(number, cell(thing.y), cell(thing.x), art.labels.index(thing.label),
               COLOURS.index(art.colour(thing)), scene.style == "outline")
              for number, scene in enumerate(scenes) for thing in scene.things]
    at = torch.tensor(things)
    number, row, column, label_of, colour_of, plain = at.T
    entropy = nn.functional.cross_entropy
    coloured = plain == 0
    return (found.sum() / len(things)
            + entropy(label[number, :, row, column], label_of)
            + 0.5 * entropy(colour[number, :, row, column][coloured], colour_of[coloured])
            + 0.5 * entropy(ground, torch.tensor([GROUNDS.index(each.ground) for each in scenes]))
            + 0.5 * entropy(style, torch.tensor([STYLES.index(each.style) for each in scenes])))


def as_seen(image: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """A scene [3, h, w] as a model might draw it: softer, lighter or darker, with a little noise.
    """
    if rng.random() < 0.6:
        side = round(image.shape[-1] * rng.uniform(0.4, 0.9))
        small = nn.functional.interpolate(image[None], (side, side), mode="area")
        image = nn.functional.interpolate(small, image.shape[1:], mode="bicubic")[0]
    image = (image - 0.5) * rng.uniform(0.85, 1.1) + 0.5 + rng.uniform(-0.05, 0.05)
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(rng.getrandbits(31)))
    return (image + rng.uniform(0, 0.03) * noise).clamp(0, 1)


@dataclass
class Judge:
    """A trained network, and the labels that it knows."""

    net: JudgeNet
    labels: list[str]
    trained: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it to a file."""
        torch.save({"labels": self.labels, "state": self.net.half().state_dict(),
                    "trained": self.trained}, path)
        self.net.float()

    @classmethod
    def load(cls, path: Path) -> Judge:
        """Read a file that `save` wrote."""
        found = torch.load(path, map_location="cpu", weights_only=True)
        net = JudgeNet(len(found["labels"]))
        net.load_state_dict(found["state"])
        return cls(net.float().eval(), found["labels"], found["trained"])

    @torch.no_grad()
    def judgements(self, images: torch.Tensor) -> list[Judgement]:
        """What pictures [n, 3, h, w] in 0..1 show."""
        if images.shape[-1] != PX:
            images = nn.functional.interpolate(images, (PX, PX), mode="area")
        centre, label, colour, ground, style = self.net(images)
        sure = torch.sigmoid(centre)
        peak = (sure == nn.functional.max_pool2d(sure, 3, 1, 1)) & (sure > SURE)
        found = []
        for number in range(len(images)):
            things = []
            for row, column in peak[number, 0].nonzero().tolist():
                things.append(Seen(
                    self.labels[int(label[number, :, row, column].argmax())],
                    COLOURS[int(colour[number, :, row, column].argmax())],
                    (column + 0.5) / CELLS, (row + 0.5) / CELLS))
            found.append(Judgement(tuple(things), GROUNDS[int(ground[number].argmax())],
                                   STYLES[int(style[number].argmax())]))
        return found


class Training:
    """A judge that is being trained on scenes by chance, `batch` of them at each of `steps` steps.

    What `state` gives is all that `resume` needs to go on as if it had never stopped.
    """

    def __init__(self, art: Art, steps: int, batch: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.art, self.steps, self.batch, self.seed, self.step = art, steps, batch, seed, 0
        self.rng, net = random.Random(seed), JudgeNet(len(art.labels))
        self.half = multiplies_bfloat16(torch.device("cpu"))
        self.net = net.to(memory_format=torch.channels_last)
        if not self.half:
            quicken_convolutions(self.net)
        self.adam = torch.optim.AdamW(self.net.parameters(), 2e-3, weight_decay=1e-2)
        self.rate = torch.optim.lr_scheduler.OneCycleLR(self.adam, 2e-3, steps, pct_start=0.1)

    def learn(self) -> float:
        """One step; returns its loss."""
        scenes = [any_scene(self.rng, self.art) for _ in range(self.batch)]
        images = torch.stack([as_seen(self.art.drawn(each), self.rng) for each in scenes])
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            value = loss(self.net, self.art, images, scenes)
        self.adam.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.adam.step()
        self.rate.step()
        self.step += 1
        return value.item()

    def state(self) -> dict:
        """All that has to be kept to go on, and what it belongs to."""
        return {"asked": self._asked(), "step": self.step, "net": self.net.state_dict(),
                "adam": self.adam.state_dict(), "rate": self.rate.state_dict(),
                "scenes": self.rng.getstate()}

    def _asked(self) -> dict:
        return {"labels": self.art.labels, "steps": self.steps, "batch": self.batch,
                "seed": self.seed}

    def resume(self, state: dict) -> None:
        """Go on from a state. Raises ValueError if it is of another training."""
        if state["asked"] != self._asked():
            raise ValueError("labels, steps, batch or seed are others than those of the state")
        self.net.load_state_dict(state["net"])
        self.adam.load_state_dict(state["adam"])
        reorder(self.adam)
        self.rate.load_state_dict(state["rate"])
        self.step = state["step"]
        self.rng.setstate(state["scenes"])

    def judge(self) -> Judge:
        """What was learnt."""
        return Judge(self.net.eval(), self.art.labels, {"steps": self.step, "batch": self.batch})
