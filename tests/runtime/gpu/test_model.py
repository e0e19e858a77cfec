"""A GPU as the timing model knows it, before and after it was checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smalti.runtime.device import Device
from smalti.runtime.doctor import verdict
from smalti.runtime.doctor.found import GpuRates
from smalti.runtime.doctor.verdict import Verdict
from smalti.runtime.gpu.model import rate, recorded

KNOWN = Device("vulkan:0", "NVIDIA GeForce RTX 4060", "discrete", 8 << 30, ("matrices",),
               identity="of this test")
UNKNOWN = replace(KNOWN, name="A new GPU", cores=20)
RATES = GpuRates({"f32": 2e12, "f16": 9e12}, 1.7e11, 7e-6, 3e-5, 1e10, 9e9)


@pytest.fixture
def measured() -> None:
    """The device was checked, and its rates are kept."""
    verdict.keep(Verdict("a GPU", "a driver", KNOWN.identity, verdict.emitters(), "2026-11-22", 70,
                         3.0, rates=RATES))


def test_without_a_check_the_library_speaks() -> None:
    before = replace(KNOWN, identity="never checked")
    assert recorded(before).launch < 7e-6 and rate(before) > 10e12
    assert recorded(replace(UNKNOWN, identity="never checked")) is None


def test_after_a_check_launches_and_the_way_from_the_host_are_measured(measured: None) -> None:
    assert (recorded(KNOWN).launch, recorded(KNOWN).link) == (7e-6, 9e9)
    assert recorded(KNOWN).vector == recorded(replace(KNOWN, identity="")).vector


def test_after_a_check_a_device_is_known_that_the_library_does_not_know(measured: None) -> None:
    assert recorded(UNKNOWN).matrix == {"f16": 18e12} and recorded(UNKNOWN).units == 20


def test_devices_are_compared_by_what_was_measured(measured: None) -> None:
    assert rate(KNOWN) == rate(UNKNOWN) == 18e12
    assert rate(replace(UNKNOWN, kind="cpu")) == 0
