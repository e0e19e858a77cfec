"""Which device programs run on: the one that is asked for, or the fastest there is."""

from __future__ import annotations

import re
import threading

from smalti import machine, settings
from smalti.errors import InputError, UnknownDeviceError
from smalti.runtime.compiler import PRECISIONS
from smalti.runtime.devices import Device, devices, modelled
from smalti.runtime.gpu import Gpu

GUESSED_RATE = 2e12
"""Multiplications and additions a second of a GPU that the library does not know."""
BRAND = re.compile(r"\((?:R|TM)\)|\(.*|Graphics$|/.*", re.I)
"""What drivers say besides the name of a GPU."""

_lock = threading.Lock()
_open: dict[str, Gpu] = {}


def chosen(asked: str) -> str:
    """The id of the device that is meant; "auto" is `SMALTI_DEVICE`, else the fastest.

    Raises InputError for one that is not here, naming those that are.
    """
    if asked == "auto":
        asked = settings.device() or "auto"
    if asked == "cpu":
        return asked
    known = devices()
    if asked == "auto":
        return max(known, key=rate).id
    if asked not in [entry.id for entry in known]:
        raise InputError(f"no device is named {asked!r}; known: auto, "
                         f"{', '.join(entry.id for entry in known)}")
    return asked


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
    try:
        line = machine.device(BRAND.sub("", found.name).strip())
    except UnknownDeviceError:
        return GUESSED_RATE
    reached = line.matrix if "matrices" in found.features else line.vector
    return max(reached.values(), default=0.0) or max(line.vector.values())


def opened(name: str) -> Gpu:
    """The GPU of this id, opened once in a process. Raises InputError for one that is not here,
    DeviceError where its driver refuses."""
    with _lock:
        if name not in _open:
            if name.startswith("wgpu:"):
                from smalti.runtime.webgpu import open_device

                _open[name] = open_device(name)
            else:
                from smalti.runtime.vulkan import VulkanGpu, adapters

                number, found = name.removeprefix("vulkan:"), adapters()
                if not number.isdigit() or int(number) >= len(found):
                    raise InputError(f"no device is named {name!r}; known: "
                                     f"{', '.join(entry.id for entry in devices())}")
                _open[name] = VulkanGpu(found[int(number)], int(number))
        return _open[name]


def forget(name: str) -> None:
    """Close a GPU, so that it is opened anew when it is needed next."""
    with _lock:
        gone = _open.pop(name, None)
    if gone is not None:
        gone.close()


def precisions(device: str) -> tuple[str, ...]:
    """The precisions that programs of a device may have."""
    return PRECISIONS if device == "cpu" else ("auto", "f32", "f16", "bf16")


def of_wide_range(device: str, precision: str) -> str:
    """The precision for what overflows in f16, such as the VAE of SDXL: bf16, or f32 where the
    device has none."""
    if device == "cpu" or precision in ("f32", "bf16"):
        return precision
    gpu = opened(device)
    if precision == "auto" and not gpu.limits.storage16:
        return "f32"
    return "bf16" if gpu.language == "spirv" else "f32"
