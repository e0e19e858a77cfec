"""The library of AArch64 cores."""

from __future__ import annotations

import pytest

from smalti.machine.cores import _cores, core_facts
from smalti.runtime.cpu.arm64 import PARTS


@pytest.mark.parametrize("name", ["Cortex-A55", "Cortex-A76", "Cortex-A78", "Cortex-X1",
                                  "Neoverse N1", "Neoverse N2", "Neoverse V1", "Neoverse V2",
                                  "Apple M1", "Apple M2", "Apple M3", "Apple M4"])
def test_cores_of_desktops_phones_and_servers_are_known(name: str) -> None:
    facts = core_facts(name)
    assert facts is not None and facts.source
    assert 1e9 < facts.clock < 5e9
    assert facts.multiply_adds in (1, 2, 4) and 4 <= facts.latency <= 10
    assert 32 << 10 <= facts.l1_bytes < facts.l2_bytes


def test_cores_are_called_as_their_numbers_are_read() -> None:
    apple = {name for name in _cores() if name.startswith("Apple")}  # whose names macOS tells
    assert set(_cores()) - apple <= set(PARTS.values())


def test_the_fastest_of_several_kinds_counts() -> None:
    assert core_facts("Cortex-A76 + Cortex-A55") == core_facts("Cortex-A76")
    assert core_facts("AMD EPYC") is None
