"""The library of devices: complete, plausible, and found by any spelling of a name."""

from __future__ import annotations

import pytest

from smalti import machine
from smalti.errors import InputError
from smalti.machine.cores import core_facts
from smalti.machine.device import GUESSED, MEASURED, SPECIFIED


def test_every_vendor_and_kind_is_there() -> None:
    devices = machine.devices()
    assert len(devices) == len({device.id for device in devices}) >= 150
    for vendor in ("nvidia", "amd", "intel", "apple"):
        assert sum(device.vendor == vendor for device in devices) >= 8, vendor
    assert sum(device.kind == "cpu" for device in devices) >= 10
    assert sum(device.integrated for device in devices) >= 15


@pytest.mark.parametrize("device", machine.devices(), ids=lambda device: device.id)
def test_figures_are_plausible(device: machine.DeviceModel) -> None:
    assert device.units >= 1 and 5e8 < device.clock < 7e9
    lanes = device.rate("f32") / device.clock / device.units / 2
    assert (4 if device.wave == 4 else 8) <= lanes <= 260, "multiply-adds of a unit in a clock"
    assert device.rate("f16") >= device.rate("f32")
    assert 1e10 < device.bandwidth < 1e13
    assert 1e-7 < device.launch < 1e-4
    for near, far in zip(device.caches, device.caches[1:], strict=False):
        assert near.bandwidth >= far.bandwidth
    for cache in device.caches:
        assert cache.bytes > 1e5 and cache.bandwidth > 0.5 * device.bandwidth
    assert set(device.origin.values()) <= {MEASURED, SPECIFIED, GUESSED}
    assert device.origin["units"] == SPECIFIED


@pytest.mark.parametrize("name, id", [
    ("rtx_4060", "rtx_4060"), ("NVIDIA GeForce RTX 4060", "rtx_4060"),
    ("NVIDIA A100-SXM4-80GB", "a100_sxm4_80_gb"), ("a100_sxm4_80gb", "a100_sxm4_80_gb"),
    ("AMD Radeon RX 7900 XTX", "rx_7900_xtx"), ("Apple M1", "m1"),
    ("NVIDIA GeForce RTX 4060 Laptop GPU", "rtx_4060_mobile"), ("Apple M2 Pro", "m2_pro_19c"),
    ("NVIDIA A100 80GB PCIe", "a100_pcie_80_gb"), ("NVIDIA H100 80GB HBM3", "h100_sxm5_80_gb"),
    ("NVIDIA H200", "h200_sxm_141_gb"), ("NVIDIA GH200 480GB", "gh200"),
    ("Intel Arc A770 Graphics", "arc_a770"), ("h100_sxm5_80gb", "h100_sxm5_80_gb"),
])
def test_names_of_drivers_and_people_are_found(name: str, id: str) -> None:
    assert machine.device(name).id == id


@pytest.mark.parametrize("name, id, cores", [
    ("raspberry_pi_5", "raspberry_pi_5", 4), ("BCM2711", "raspberry_pi_4", 4),
    ("m2_cpu", "m2_cpu", 4), ("AWS Graviton3", "graviton_3", 64),
    ("cortex_a76", "cortex_a76", 4), ("Cortex-A76", "cortex_a76", 4),
    ("Neoverse V2", "neoverse_v2", 4)])
def test_cpus_of_aarch64_are_found_by_their_chip_or_core(name: str, id: str, cores: int) -> None:
    found = machine.device(name)
    assert (found.id, found.units, found.kind, found.wave) == (id, cores, "cpu", 4)
    assert machine.cpu.core_of(found).by_lane


def test_of_a_core_alone_all_else_is_a_guess() -> None:
    facts, found = core_facts("Cortex-A76"), machine.device("cortex_a76")
    assert (found.clock, found.l1) == (facts.clock, facts.l1_bytes)
    assert set(found.origin.values()) == {GUESSED}
    assert found not in machine.devices()


def test_an_unknown_name_lists_near_ones() -> None:
    with pytest.raises(KeyError, match="cortex_a76, "):
        machine.device("cortex_a79")
    with pytest.raises(KeyError, match="rtx_4060_ti"):
        machine.device("rtx_4060_to")
    with pytest.raises(InputError, match="^no device 'abacus'"):
        machine.device("abacus")


def test_a_measured_figure_is_marked() -> None:
    a100 = machine.device("a100_sxm4_80_gb")
    assert a100.origin["l2_bandwidth"] == MEASURED and a100.caches[0].bandwidth == 5.4e12
    assert machine.device("rtx_4060").origin["l2_bandwidth"] == GUESSED
