"""Which device programs run on: the one that is asked for, or the fastest there is."""

from __future__ import annotations

import sys

from smalti import machine, settings
from smalti.codegen.target import Target
from smalti.errors import InputError
from smalti.runtime.device import LIBRARY, Device
from smalti.runtime.devices import devices, found
from smalti.runtime.drivers import HOMES, driver_of, gpus
from smalti.runtime.gpu.removals import AUTOMATIC, DEVICE, removal_of


def chosen(asked: str) -> str:
    """The id of the device that is meant; "auto" is `SMALTI_DEVICE`, else the fastest.

    Raises InputError for one that is not here, naming those that are.
    """
    if not isinstance(asked, str):
        raise InputError(f"device is {asked!r}; expected \"auto\", or the id of one of "
                         f"`smalti devices`, such as \"cpu\"")
    if asked == "auto":
        asked = settings.device() or "auto"
    if asked == "auto":
        return max(candidates(), key=rate).id
    return described(asked).id


def candidates() -> list[Device]:
    """The CPU, and the GPUs that are chosen from. All drivers reach the same GPUs, so the first
    that has some is the last one asked; on Linux, where `wgpu` goes through Vulkan, so is one that
    has only such as compute on the CPU."""
    cpu = found("cpu")
    for driver in gpus():
        here = usual(driver)
        if here or found(driver) and sys.platform == "linux":
            return [*cpu, *here]
    return cpu


def usual(driver: str) -> list[Device]:
    """The GPUs of a driver that are chosen from: those that nothing is known against. Where the
    timing model knows a GPU with memory of its own, one whose speed is a mere guess is none."""
    here = [each for each in found(driver) if not any(
        removal_of(what, each.removals) for what in (AUTOMATIC, DEVICE))]
    sure = [each for each in here if each.cores > 1 or driver_of(each.id).model(each) is not None]
    return sure if any(each.kind == "discrete" for each in sure) else here


def local(name: str) -> bool:
    """Whether a name is meant as one of `smalti devices`, and not as one of the library.

    >>> local("vulkan:0"), local("cpu"), local("rtx_4060")
    (True, True, False)
    """
    return name == "auto" or name.partition(":")[0] in HOMES


def foreseen(name: str) -> str:
    """The id of a device that pictures are foretold for: one that is here, or "library:" and one of
    the timing model's library.

    Raises InputError for a name that is neither, with near ones.

    >>> foreseen("cpu"), foreseen("rtx_3060")
    ('cpu', 'library:rtx_3060_12_gb')
    """
    return chosen(name) if local(name) else f"{LIBRARY}:{machine.device(name).id}"


def described(name: str) -> Device:
    """The device of this id. Raises InputError where it is not here, naming those that are."""
    kind = name.partition(":")[0]
    if kind == LIBRARY:
        [foretold] = driver_of(name).found()
        if isinstance(foretold, Device):
            return foretold
    for each in found(kind) if kind in HOMES else ():
        if each.id == name:
            return each
    raise InputError(f"no device is named {name!r}; known: auto, "
                     f"{', '.join(each.id for each in devices())}")


def gone(device: str) -> bool:
    """Whether a device was lost, and cannot be opened anew."""
    return driver_of(device).gone(device)


def rate(device: Device) -> float:
    """Multiplications and additions of a product a second, by the model of the device; 0 of a
    driver that computes on the CPU, which Smalti's own code does better.

    >>> rate(devices()[0]) > 1e9
    True
    """
    return driver_of(device.id).rate(device)


def precisions(device: str) -> tuple[str, ...]:
    """The precisions that programs of a device may have."""
    return driver_of(device).precisions


def usual_target(device: str) -> Target | None:
    """The target that programs of a device are compiled for where none is asked for; None where the
    reference runs instead, or where its driver does not tell."""
    return driver_of(device).usual(device)


def of_wide_range(device: str, precision: str) -> str:
    """The precision for what overflows in f16, such as the VAE of SDXL: bf16, or f32 where the
    device has none; beside integers of 8 bits, that of all else there."""
    return driver_of(device).wide_range(device, precision)
