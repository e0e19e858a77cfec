"""Units of architectures, beside the library of devices."""

from __future__ import annotations

import pytest

from smalti.errors import UnknownDeviceError
from smalti.machine import devices
from smalti.schedule.compute_units import LIKE, UNITS, compute_unit

DESCRIBED = [device for device in devices() if device.architecture in (*UNITS, *LIKE)]


def test_names_are_those_of_the_library() -> None:
    known = {device.architecture for device in devices()}
    assert {*UNITS, *LIKE} <= known and set(LIKE.values()) <= set(UNITS)
    assert all(unit.source and unit.architecture == name for name, unit in UNITS.items())


@pytest.mark.parametrize("device", DESCRIBED, ids=lambda device: device.id)
def test_units_have_what_the_library_says(device: object) -> None:
    unit = compute_unit(device.architecture)
    if device.vendor != "intel":  # the library counts lanes of its cores otherwise
        assert unit.file_bytes * unit.sharers == device.registers
        assert unit.shared_bytes == device.shared


def test_unknown_architectures_are_named() -> None:
    with pytest.raises(UnknownDeviceError, match="gcn1"):
        compute_unit("gcn1")
