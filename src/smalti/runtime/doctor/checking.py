"""The check of a device by its id: kept, or done now."""

from __future__ import annotations

from collections.abc import Callable

from smalti.errors import InputError
from smalti.runtime.choice import described
from smalti.runtime.device import Device
from smalti.runtime.devices import devices
from smalti.runtime.doctor import verdict
from smalti.runtime.doctor.supervision import supervised
from smalti.runtime.doctor.verdict import Verdict
from smalti.runtime.drivers import HOMES


def checkable(id: str | None = None) -> list[Device]:
    """The GPUs that a check is about: the one of this id, or all that do not compute on the CPU.

    Raises InputError for an id that is not here, and for "cpu".
    """
    if id is None:
        return [device for device in devices() if device.kind != "cpu"]
    device = described(id)
    if not device.identity:
        raise InputError(f"{id} is no GPU: its code is compared with numpy by "
                         f"`smalti devices --check {id}`")
    return [device]


def checked(device: Device, again: bool = False,
            progress: Callable[[str], None] = lambda text: None) -> Verdict:
    """The verdict on a GPU: the one that is kept, unless it is to be made `again`, or a new one,
    which is kept then."""
    found = None if again else verdict.kept(device.identity)
    if found is None:
        found = supervised(device, HOMES[device.id.partition(":")[0]], progress)
        verdict.keep(found)
    return found
