"""Which device a text encoder runs on where nothing is said: one that has room for it.

A picture needs its text encoders once and its denoiser many times, so the denoiser and what works
on latents and pixels run on the fastest device. A text encoder runs there, too, if its weights have
room beside these. One that has not is expected to take, in each picture,

    on a device that keeps it    a run
    on one that does not         a run, and reading, checking, packing and copying its weights

and runs where that is the shortest time; a device that it does not fit on alone is none. A run
takes as long as its arithmetic at the peak of the timing model, or its bytes at that of memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from smalti import settings
from smalti.dataclass import dataclass
from smalti.diffusion.conditioning import usual_text_shape
from smalti.diffusion.load_options import LoadOptions
from smalti.diffusion.placement import AUTO, PartDevices
from smalti.diffusion.residents import Residents
from smalti.diffusion.submodels import Submodels
from smalti.families.parts import TEXTS
from smalti.kernel.form import ELEMENT_BYTES
from smalti.machine import DeviceModel
from smalti.runtime.choice import candidates, described
from smalti.runtime.drivers import driver_of

LOADED_BYTES_A_SECOND = 0.5e9
"""At which weights become those of a program: 0.78 GB of T5-XXL in bf16 took 0.9 to 2.7 seconds of
a core of Zen 4, to a GPU 1.5 to 2.3 (`bench/text_devices.py --measure`)."""


@dataclass(frozen=True)
class TextWork:
    """What a text encoder takes: bytes of weights, and operations of a run."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class DeviceRoom:
    """A device, the bytes that a picture may take there, and those that stay between pictures."""

    model: DeviceModel
    budget_bytes: float
    kept_bytes: float

    def seconds(self, work: TextWork, kept: bool) -> float:
        """What is expected of a text encoder in a picture."""
        rate = self.model.rate("f32" if self.model.kind == "cpu" else "f16")
        run = max(work.flops / rate, work.bytes / self.model.bandwidth)
        return run + (0 if kept else work.bytes / LOADED_BYTES_A_SECOND)


def text_devices(texts: Mapping[str, TextWork], beside_bytes: float,
                 rooms: Mapping[str, DeviceRoom]) -> dict[str, str]:
    """The device of each text encoder, small ones first; the first of `rooms` is that of the
    denoiser, which with what else runs there takes `beside_bytes`.

    >>> from smalti import machine
    >>> rooms = {"gpu": DeviceRoom(machine.device("rtx_4060"), 7e9, 7e9),
    ...          "cpu": DeviceRoom(machine.device("ryzen_7_7700x"), 28e9, 14e9)}
    >>> text_devices({"clip": TextWork(0.2e9, 4e10), "t5": TextWork(9.5e9, 5e12)}, 5e9, rooms)
    {'clip': 'gpu', 't5': 'cpu'}
    """
    first, found = next(iter(rooms)), {}
    left = {device: room.kept_bytes for device, room in rooms.items()}
    left[first] -= beside_bytes
    for name, work in sorted(texts.items(), key=lambda each: each[1].bytes):
        fitting = [device for device, room in rooms.items() if work.bytes <= room.budget_bytes]
        here = first if work.bytes <= left[first] else min(
            fitting, default=first,
            key=lambda each: rooms[each].seconds(work, work.bytes <= left[each]))
        if work.bytes <= left[here]:
            left[here] -= work.bytes
        found[name] = here
    return found


def best(asked: LoadOptions, models: Submodels) -> tuple[PartDevices, list[str]]:
    """The devices of parts where `asked` says nothing of them, and what is to be said of it."""
    first = asked.placement.of("denoiser")
    if asked.device != AUTO or settings.device() is not None or first == "cpu":
        return asked.placement, []
    rooms = {device: room for device in dict.fromkeys([first, *(each.id for each in candidates())])
             if (room := _room(device, models.residents)) is not None}
    sizes = _sizes(models)
    whole = sum(sizes.values())
    here = rooms.get(first)
    if here is None or whole <= (here.kept_bytes or here.budget_bytes):
        return asked.placement, []
    texts = {}
    for part in [part for part in TEXTS if part in models.parts]:
        graph = models.graph(part, usual_text_shape(models.checkpoint.config, TEXTS.index(part)))
        texts[part] = TextWork(sum(sizes[name] for name in graph.parameters), graph.flops())
    beside = whole - sum(work.bytes for work in texts.values())
    found = text_devices(texts, beside, rooms)
    said = [f"{models.parts[part].title} runs on {device}: {texts[part].bytes / 1e9:.1f} GB of "
            f"weights have no room on {first} beside the rest"
            for part, device in found.items() if device != first]
    return asked.placement.with_named(**found), said


def _room(device: str, residents: Residents) -> DeviceRoom | None:
    """What is known of a device; None where the timing model does not know it."""
    held, model = residents.on(device), driver_of(device).model(described(device))
    if model is None or held.budget_bytes is None or held.kept_bytes is None:
        return None
    return DeviceRoom(model, held.budget_bytes, held.kept_bytes if held.keep else 0)


def _sizes(models: Submodels) -> dict[str, float]:
    """The bytes of each weight, held as the file has it."""
    names = models.checkpoint.names()
    dtypes = models.held(names, models.weights)
    return {name: math.prod(models.checkpoint.shape(name)) * ELEMENT_BYTES[dtypes.get(name, "f32")]
            for name in names}
