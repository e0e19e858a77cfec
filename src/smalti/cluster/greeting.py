"""Whether a node can do what it is to do, asked before any work: its code, its model, its devices.
"""

from __future__ import annotations

from smalti import __version__
from smalti.dataclass import dataclass
from smalti.diffusion.placement import AUTO, placed
from smalti.errors import InputError
from smalti.runtime import cache
from smalti.runtime.choice import chosen, described, precisions, usual
from smalti.runtime.cpu.adapter import best_level
from smalti.runtime.device import Device


@dataclass(frozen=True)
class Greeting:
    """What a node has: the device of each of its workers, as `LoadOptions` takes it, words that are
    the same on nodes whose pictures are the same, byte for byte, and whether its compile cache is
    `apart` from that of the one who asks."""

    devices: tuple[str, ...]
    kind: str
    apart: bool = False


class Greeter:
    """Looks at the node that it is on, for a process whose Smalti has this `code`."""

    def __init__(self, code: str) -> None:
        if code != cache.code_digest():
            raise InputError(f"its Smalti {__version__} is of another code than the one "
                             f"that asks; install the same on all computers of the cluster")

    def look(self, device: str, precision: str) -> Greeting:
        """What there is of the device, or the devices of parts, that are asked for."""
        given = every(device)
        used = sorted({one for each in given for one in placed(each).devices})
        for each in used:
            if precision != "auto" and precision not in precisions(each):
                raise InputError(f"{each} has no {precision}; it has "
                                 f"{', '.join(precisions(each))}")
        return Greeting(given, " and ".join(dict.fromkeys(_kind(described(one)) for one in used)))


def every(device: str) -> tuple[str, ...]:
    """What each worker of a node is told of its device: of "auto" each GPU like the fastest one,
    else the CPU. Where there is one GPU alone "auto" stays, so that parts may be elsewhere."""
    if device != AUTO:
        return (str(placed(device)),)
    fastest = chosen(AUTO)
    if fastest == "cpu":
        return ("cpu",)
    kind = described(fastest).kind
    alike = tuple(each.id for each in usual(fastest.partition(":")[0]) if each.kind == kind)
    return alike if len(alike) > 1 else (AUTO,)


def _kind(device: Device) -> str:
    """What a device computes like."""
    if device.id == "cpu":
        return f"{device.name}, {best_level() or 'no code for it'}"
    return f"{device.name}, {device.driver}"
