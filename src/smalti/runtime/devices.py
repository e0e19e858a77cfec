"""What programs can run on, as the drivers of this machine tell."""

from __future__ import annotations

from smalti.runtime.device import Device
from smalti.runtime.drivers import HOMES, driver, gpus


def devices() -> list[Device]:
    """Everything that programs can run on: the CPU, then GPUs through Vulkan and through `wgpu`.

    >>> devices()[0].id
    'cpu'
    """
    return [each for name in HOMES for each in found(name)]


def found(name: str) -> list[Device]:
    """The devices that the driver "cpu", "vulkan" or "wgpu" reaches; no other one is asked."""
    return [each for each in driver(name).found() if isinstance(each, Device)]


def absences() -> list[str]:
    """Why there are no devices of Vulkan, or of `wgpu`, or why some of them cannot be used."""
    return [each for name in gpus() for each in driver(name).found() if isinstance(each, str)]
