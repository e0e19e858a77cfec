"""Rates and kernels of this CPU, measured in a moment; what they are is up to the machine."""

from __future__ import annotations

import pytest

from smalti.benchmark import calibration
from smalti.codegen.levels import level
from smalti.machine.cpu import CpuCalibration
from smalti.runtime.cpu import probes
from smalti.runtime.cpu.adapter import best_level

TARGET = best_level() or ""
LEVEL = level(TARGET) if TARGET else None


def test_rates_are_those_of_a_computer() -> None:
    clock = probes.clock(LEVEL)
    assert 1e8 < clock < 8e9
    assert 0.1 < probes.flops(LEVEL, False, 1) / (clock * LEVEL.lanes * 2) < 20
    near, far = (probes.bandwidth(LEVEL, size, 1) for size in (16 << 10, 64 << 20))
    assert 1e9 < far < 1.5 * near < 2e12
    assert probes.latency(LEVEL, 16 << 10) < 1e-7
    assert 0 <= probes.barrier(LEVEL, 1) < 1e-3


@pytest.mark.sweep
def test_a_calibration_reads_back_and_knows_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: calibration.KERNELS[name] for name in ("product 1 x 1280 x 1000",
                                                        "attention 77, 12 x 64",
                                                        "conv 1x1, 960 of 7")}
    monkeypatch.setattr(calibration, "KERNELS", few)
    monkeypatch.setattr(calibration, "MEMORY_BYTES_MIN", 1 << 20)
    said: list[str] = []
    found = calibration.calibrated(TARGET, 1, said.append)
    assert CpuCalibration.of(found.text()) == found
    assert found.memory <= found.l3 <= found.l2 and found.cores == 1
    assert found.error[1] <= found.error[0]
    assert any("attention" in line for line in said)
