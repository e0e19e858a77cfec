"""The CPU as it describes itself, compared with what the operating system says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from smalti.codegen.levels import LEVELS
from smalti.errors import DeviceError, InputError
from smalti.runtime.cpu import adapter, arm64, x86
from smalti.runtime.cpu.adapter import available_levels, best_level, cpu
from smalti.runtime.cpu.architecture import architecture
from smalti.runtime.device import Device
from smalti.runtime.devices import absences, devices
from smalti.runtime.vulkan import driver as vulkan
from smalti.runtime.webgpu import driver as webgpu

CPUINFO = Path("/proc/cpuinfo")


@pytest.fixture
def fresh() -> Iterator[None]:
    """The CPU is asked again, before and after."""
    cpu.cache_clear()
    yield
    cpu.cache_clear()


def test_the_cpu_is_the_first_device() -> None:
    device = devices()[0]
    assert (device.id, device.kind) == ("cpu", "cpu")
    assert device.name and device.cores >= 1
    assert device.memory_bytes > 1 << 28


def test_gpus_come_after_the_cpu_or_it_is_said_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = devices()[1:]
    assert [device.id for device in listed] == [
        f"{target}:{number}" for target in ("vulkan", "wgpu")
        for number in range(sum(device.id.startswith(target) for device in listed))]
    assert all(device.name and device.driver and device.memory_bytes for device in listed)

    def refuse() -> None:
        raise DeviceError("no driver is here")

    monkeypatch.setattr("smalti.runtime.vulkan.driver.adapters", refuse)
    monkeypatch.setattr("smalti.runtime.webgpu.driver.adapters", refuse)
    vulkan.found.cache_clear()
    webgpu.found.cache_clear()
    assert devices() == [cpu()]
    assert absences() == ["vulkan: no driver is here", "wgpu: no driver is here"]
    vulkan.found.cache_clear()
    webgpu.found.cache_clear()


def test_features_are_those_that_the_system_lists() -> None:
    if not CPUINFO.exists() or architecture() != "x86":
        return
    flags = next(line for line in CPUINFO.read_text().splitlines() if line.startswith("flags"))
    expected = {name for name in x86.FEATURES if name in flags.split(":")[1].split()}
    assert set(cpu().features) == expected


def test_caches_are_plausible() -> None:
    device = cpu()
    assert 8 << 10 <= device.l1_bytes <= 1 << 20
    assert device.l1_bytes <= device.l2_bytes <= 1 << 28
    system = adapter._caches_of_system()
    if system and device.features:
        assert {1: device.l1_bytes, 2: device.l2_bytes}.items() <= system.items()


def test_a_level_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMALTI_TARGET", raising=False)
    assert best_level() == (available_levels()[-1] if available_levels() else None)
    for name in available_levels():
        monkeypatch.setenv("SMALTI_TARGET", name)
        assert best_level() == name
    monkeypatch.setenv("SMALTI_TARGET", "avx3")
    with pytest.raises(InputError, match="avx3.*avx2"):
        best_level()


def test_a_level_that_the_cpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Device("cpu", "Small CPU", "cpu", 1 << 30, ("avx2", "fma", "f16c"))
    monkeypatch.setattr(adapter, "cpu", lambda: small)
    monkeypatch.setenv("SMALTI_TARGET", "avx512")
    with pytest.raises(InputError, match="Small CPU lacks avx512bw.*available: avx2"):
        best_level()
    monkeypatch.delenv("SMALTI_TARGET")
    assert best_level() == "avx2"


def test_a_cpu_of_another_kind_has_no_level(monkeypatch: pytest.MonkeyPatch,
                                            fresh: None) -> None:
    monkeypatch.delenv("SMALTI_TARGET", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert best_level() is None
    assert cpu().features == () and cpu().l1_bytes > 0


def test_levels_need_only_features_that_are_looked_for() -> None:
    looked_for = {*x86.FEATURES, *(name for bits in arm64.CAPABILITIES.values() for name in bits)}
    assert all(entry.needs <= looked_for for entry in LEVELS.values())
