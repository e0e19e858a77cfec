"""The drivers that programs run through, each loaded when it is first asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from smalti.runtime.device import LIBRARY
from smalti.runtime.driver import Driver

HOMES = {
    "cpu": "smalti.runtime.cpu.driver",
    "vulkan": "smalti.runtime.vulkan.driver",
    "wgpu": "smalti.runtime.webgpu.driver",
}
"""The module of each, which has it as `DRIVER`, by what ids of its devices begin with."""


def gpus() -> tuple[str, ...]:
    """The names of those of GPUs, the better one first; they reach the same devices."""
    return tuple(name for name in HOMES if name != "cpu")


@cache
def driver(name: str) -> Driver:
    """The driver of this name."""
    return import_module(HOMES[name]).DRIVER


def driver_of(device: str) -> Driver:
    """The driver of a device, by its id.

    >>> driver_of("cpu").precisions[:2]
    ('auto', 'f32')
    """
    kind, _, name = device.partition(":")
    if kind == LIBRARY:
        found: Driver = import_module("smalti.runtime.foretold").driver(name)
        return found
    return driver(kind)
