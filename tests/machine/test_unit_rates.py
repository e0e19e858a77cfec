"""Rates of compute units: of every GPU of the library, and of those that it does not know."""

import pytest

from smalti import machine
from smalti.machine.unit_rates import rates_for, unit_rates
from smalti.schedule.unit import UnitRates

GPUS = [device for device in machine.devices() if device.kind == "gpu"]


def test_units_of_every_gpu_do_what_units_do() -> None:
    for device in GPUS:
        rates = unit_rates(device)
        assert 16 <= rates.factors <= 512, device.id
        assert rates.factors <= rates.matrix <= 1 << 14, device.id
        assert 0.3 <= rates.memory <= rates.shared and rates.cache > 0, device.id
        assert rates.registers >= 1 << 14 and rates.shared_bytes >= 16 << 10, device.id


@pytest.mark.parametrize("name,architecture,known", [
    ("AMD Radeon Graphics", "rdna3_big", "rx_7900_xtx"),
    ("AMD Radeon Graphics", "rdna4", "rx_9070_xt"),
    ("Graphics", "xe2_hpg", "arc_b580"), ("NVK AD999", "ada", "rtx_4090"),
])
def test_unknown_names_have_the_rates_of_their_architecture(name: str, architecture: str,
                                                            known: str) -> None:
    assert rates_for(name, architecture) == unit_rates(machine.device(known))


def test_a_known_name_has_its_own_rates_and_an_unknown_architecture_none() -> None:
    assert rates_for("rtx_4060", "ada") == unit_rates(machine.device("rtx_4060"))
    assert rates_for("Mali-G720", "") == UnitRates()
