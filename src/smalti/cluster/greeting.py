"""Whether a node can do what it is to do, asked before any work: its code, its model, its devices.
"""

from __future__ import annotations

from dataclasses import dataclass

from smalti import __version__
from smalti.errors import InputError
from smalti.runtime import cache
from smalti.runtime.choice import chosen, described, precisions, usual
from smalti.runtime.cpu.adapter import best_level
from smalti.runtime.device import Device


@dataclass(frozen=True)
class Greeting:
    """What a node has: ids of the devices that it computes on, and words that are the same on nodes
    whose pictures are the same, byte for byte."""

    devices: tuple[str, ...]
    kind: str


class Greeter:
    """Looks at the node that it is on, for a process whose Smalti has this `code`."""

    def __init__(self, code: str) -> None:
        if code != cache.code_digest():
            raise InputError(f"its Smalti {__version__} is of another code than the one "
                             f"that asks; install the same on all computers of the cluster")

    def look(self, device: str, precision: str) -> Greeting:
        """What there is of the device that is asked for; of "auto" every GPU, else the CPU."""
        found = every(device)
        for each in found:
            if precision != "auto" and precision not in precisions(each):
                raise InputError(f"{each} has no {precision}; it has "
                                 f"{', '.join(precisions(each))}")
        return Greeting(found, " and ".join(sorted({_kind(described(each)) for each in found})))


def every(device: str) -> tuple[str, ...]:
    """The ids of the devices that a node works on: with "auto" all GPUs like the fastest one."""
    fastest = chosen(device)
    if device != "auto" or fastest == "cpu":
        return (fastest,)
    kind = described(fastest).kind
    return tuple(each.id for each in usual(fastest.partition(":")[0]) if each.kind == kind)


def _kind(device: Device) -> str:
    """What a device computes like."""
    if device.id == "cpu":
        return f"{device.name}, {best_level() or 'no code for it'}"
    return f"{device.name}, {device.driver}"
