"""The verdict on a device: kept, or made now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smalti.errors import InputError
from smalti.runtime.device import Device
from smalti.runtime.doctor import checking, verdict
from smalti.runtime.doctor.verdict import Verdict

GPU = Device("vulkan:0", "A GPU", "discrete", 8 << 30, (), identity="of a check")
FOUND = Verdict("A GPU", "a driver", "of a check", "", "2026-11-22", 70, 3.0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path) -> list[str]:
    """The modules of the drivers that were asked to open a device."""
    found = []

    def supervised(device: Device, driver: str, progress) -> Verdict:
        found.append(driver)
        return replace(FOUND, code=verdict.emitters(), probes=len(found))

    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    monkeypatch.setattr(checking, "supervised", supervised)
    return found


def test_a_device_is_checked_once(asked: list[str]) -> None:
    assert checking.checked(GPU).probes == checking.checked(GPU).probes == 1
    assert asked == ["smalti.runtime.vulkan.driver"]


def test_a_device_is_checked_again_where_that_is_asked(asked: list[str]) -> None:
    assert [checking.checked(GPU, again=True).probes for _ in range(2)] == [1, 2]
    assert checking.checked(GPU).probes == 2


def test_a_check_without_an_end_is_made_again(
        asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "supervised", lambda *_: replace(FOUND, unfinished="full"))
    assert checking.checked(GPU).unfinished and verdict.kept(GPU.identity) is None


def test_gpus_are_what_is_checked() -> None:
    with pytest.raises(InputError, match="cpu is no GPU"):
        checking.checkable("cpu")
    with pytest.raises(InputError, match="'vulkan:99'"):
        checking.checkable("vulkan:99")
    assert all(device.kind != "cpu" for device in checking.checkable())
