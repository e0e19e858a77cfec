"""Which device each part of a pipeline runs on.

    Pipeline.load("flux1-dev.safetensors", device={"denoiser": "vulkan:0", "text": "cpu"})
    Pipeline.load("flux1-dev.safetensors", device="denoiser=vulkan:0,text=cpu")

Parts are called by what they do, as `PLACES` lists them, whatever they are called in a model. What
nothing is said of follows the next one in `FOLLOWS`, at last the denoiser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.families.parts import TEXTS
from smalti.families.record import VISION
from smalti.runtime.choice import chosen

OTHERS = "others"
PLACES = {
    "text": "all text encoders",
    "text_2": "the second text encoder",
    "text_3": "the third text encoder",
    "denoiser": "the UNet or transformer",
    "refiner": "the denoiser of a refiner",
    "control": "ControlNets",
    "decoder": "the decoder of the autoencoder, and previews by TAESD",
    "encoder": "its encoder, for pictures that are given",
    "upscaler": "the network that enlarges pictures",
    OTHERS: "all that is not named",
}
"""What a device can be given for."""
FOLLOWS = {"text_2": "text", "text_3": "text", "refiner": "denoiser", "control": "denoiser",
           "encoder": "decoder"}
"""What a part that nothing is said of runs beside; others run with `OTHERS`."""
NAMED = {"vae": "decoder", "vae_encoder": "encoder", VISION: "text",
         **{part: part for part in TEXTS}}
"""The places of parts of a model; those that are not here are of the denoiser."""
AUTO = "auto"
EXAMPLE = "denoiser=vulkan:0,text=cpu"


@dataclass(frozen=True)
class PartDevices:
    """The devices of parts, by their ids: `others` is that of what is not among `named`.

    >>> both = PartDevices("vulkan:0", (("text", "cpu"),))
    >>> both.of("text_2"), both.of("control"), both.devices, str(both)
    ('cpu', 'vulkan:0', ('vulkan:0', 'cpu'), 'vulkan:0,text=cpu')
    """

    others: str = "cpu"
    named: tuple[tuple[str, str], ...] = ()

    def of(self, place: str) -> str:
        """The device of one of `PLACES`."""
        named = dict(self.named)
        while place not in named and place in FOLLOWS:
            place = FOLLOWS[place]
        return named.get(place, self.others)

    def of_part(self, part: str) -> str:
        """The device of a part of a model, by its name there.

        >>> PartDevices("cpu", (("denoiser", "wgpu:0"),)).of_part("transformer")
        'wgpu:0'
        """
        return self.of(NAMED.get(part, "denoiser"))

    @property
    def devices(self) -> tuple[str, ...]:
        """All of them, that of the denoiser first."""
        return tuple(dict.fromkeys([self.of("denoiser"), *map(self.of, PLACES)]))

    def refining(self) -> PartDevices:
        """That of a refiner, whose denoiser may have a device of its own."""
        return self.with_named(denoiser=self.of("refiner"))

    def with_named(self, **more: str) -> PartDevices:
        """The same with other devices for some parts."""
        return _tidy(self.others, {**dict(self.named), **more})

    def moved(self, device: str, to: str) -> PartDevices:
        """The same without one device, whose parts are on another one."""
        def there(before: str) -> str:
            return to if before == device else before

        return _tidy(there(self.others), {name: there(each) for name, each in self.named})

    def __str__(self) -> str:
        return ",".join([self.others, *(f"{name}={device}" for name, device in self.named)])


def placed(asked: str | Mapping[str, str]) -> PartDevices:
    """What is meant by the id of a device, by a text such as "vulkan:0,text=cpu", or by a mapping
    from `PLACES` to ids. "auto" is the fastest device.

    Raises InputError for a part or a device that is not known, naming those that are.

    >>> str(placed("denoiser=cpu,text=cpu")), str(placed({"others": "cpu", "decoder": "cpu"}))
    ('cpu', 'cpu')
    """
    given = asked if isinstance(asked, Mapping) else _read(asked)
    for name, device in given.items():
        if not isinstance(name, str) or name not in PLACES:
            raise InputError(f"device is given for {name!r:.80}; known parts: {', '.join(PLACES)}")
        if not isinstance(device, str):
            raise InputError(f"device of {name} is {device!r:.80}; expected the id of one of "
                             f"`smalti devices`")
    rest = given.get(OTHERS, given.get("denoiser", AUTO))
    found = {device: chosen(device) for device in dict.fromkeys([rest, *given.values()])}
    return _tidy(found[rest], {name: found[device] for name, device in given.items()})


def _read(text: object) -> dict[str, str]:
    """The devices of parts in a text; one without a part is that of all others."""
    given: dict[str, str] = {}
    for entry in text.split(",") if isinstance(text, str) else [""]:
        name, equals, device = (each.strip() for each in entry.rpartition("="))
        if not device or (equals and not name):
            raise InputError(f"device is {text!r:.80}; expected \"auto\", the id of one of "
                             f"`smalti devices`, such as \"cpu\", or parts and ids, such as "
                             f"\"{EXAMPLE}\"")
        if (name or OTHERS) in given:
            raise InputError(f"device is {text!r:.80}, with two devices for {name or OTHERS}; "
                             f"give one")
        given[name or OTHERS] = device
    return given


def _tidy(others: str, named: Mapping[str, str]) -> PartDevices:
    """A placement that says nothing twice, so that what is equal compares equal."""
    plain = PartDevices(others, tuple((name, named[name]) for name in PLACES
                                    if name in named and name != OTHERS))
    for entry in plain.named:
        fewer = replace(plain, named=tuple(each for each in plain.named if each != entry))
        if fewer.of(entry[0]) == entry[1] and all(
                fewer.of(name) == plain.of(name) for name in PLACES):
            plain = fewer
    return plain
