"""Which device programs run on: the one that is asked for, or the fastest there is."""

from __future__ import annotations

import threading

from smalti import settings
from smalti.errors import InputError
from smalti.runtime.devices import DRIVERS, Device, cpu, devices, gpus, modelled, recorded
from smalti.runtime.gpu import Gpu

GUESSED_RATE = 0.3e12
"""Multiplications and additions a second of a compute unit of a GPU that the library does not know.
"""
GUESSED_RATES = {"discrete": 8e12, "virtual": 8e12, "integrated": 1e12, "other": 1e12}
"""Those of all of it, where its driver does not tell how many there are."""

_lock = threading.Lock()
_open: dict[str, Gpu] = {}


def chosen(asked: str) -> str:
    """The id of the device that is meant; "auto" is `SMALTI_DEVICE`, else the fastest.

    Raises InputError for one that is not here, naming those that are.
    """
    if not isinstance(asked, str):
        raise InputError(f"device is {asked!r}; expected \"auto\", or the id of one of "
                         f"`smalti devices`, such as \"cpu\"")
    if asked == "auto":
        asked = settings.device() or "auto"
    if asked == "cpu":
        return asked
    if asked == "auto":
        found = gpus("vulkan") or gpus("wgpu")  # which takes long to ask, and reaches the same
        return max([cpu(), *found], key=rate).id
    return described(asked).id


def local(name: str) -> bool:
    """Whether a name is meant as one of `smalti devices`, and not as one of the library.

    >>> local("vulkan:0"), local("cpu"), local("rtx_4060")
    (True, True, False)
    """
    return name in ("auto", "cpu") or name.partition(":")[0] in DRIVERS


def described(name: str) -> Device:
    """The device of this id. Raises InputError where it is not here, naming those that are."""
    driver = name.partition(":")[0]
    known = gpus(driver) if driver in DRIVERS else [cpu()]
    for found in known:
        if found.id == name:
            return found
    raise InputError(f"no device is named {name!r}; known: auto, "
                     f"{', '.join(found.id for found in devices())}")


def rate(found: Device) -> float:
    """Multiplications and additions of a product a second, by the model of the device; 0 of a
    driver that computes on the CPU, which Smalti's own code does better.

    >>> from smalti.runtime.devices import cpu
    >>> rate(cpu()) > 1e9
    True
    """
    if found.id == "cpu":
        return max(modelled().vector.values())
    if found.kind == "cpu":
        return 0.0
    line = recorded(found)
    if line is None:
        return GUESSED_RATE * found.cores if found.cores > 1 else GUESSED_RATES[found.kind]
    return max((line.matrix or line.vector).values())


def opened(name: str) -> Gpu:
    """The GPU of this id, opened once in a process, and anew when it was lost. Raises InputError
    for one that is not here, DeviceError where its driver refuses."""
    with _lock:
        if name not in _open or _open[name].lost:
            driver, _, number = described(name).id.partition(":")
            if driver == "vulkan":
                from smalti.runtime.vulkan import VulkanGpu, adapters

                _open[name] = VulkanGpu(adapters()[int(number)], int(number))
            else:
                from smalti.runtime.webgpu import open_device

                _open[name] = open_device(name)
        return _open[name]


def precisions(device: str) -> tuple[str, ...]:
    """The precisions that programs of a device may have."""
    return ("auto", "f32", "bf16") if device == "cpu" else ("auto", "f32", "f16", "bf16")


def of_wide_range(device: str, precision: str) -> str:
    """The precision for what overflows in f16, such as the VAE of SDXL: bf16, or f32 where the
    device has none."""
    if device == "cpu" or precision in ("f32", "bf16"):
        return precision
    gpu = opened(device)
    if precision == "auto" and not gpu.limits.storage16:
        return "f32"
    return "bf16" if "bf16" in gpu.target.precisions else "f32"
