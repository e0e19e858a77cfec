"""bench/hybrid.py: the simulation of slow cores, on launches that are easily counted."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from smalti.errors import InputError

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "hybrid.py"


@pytest.fixture(scope="module")
def hybrid() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hybrid", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


def test_a_slow_core_costs_less_than_a_tile_of_it(hybrid: ModuleType) -> None:
    launches = [hybrid.SimulatedLaunch(36, 1e-3)] * 50
    ideal = 50 * 36e-3 / 6.25
    plain = hybrid.simulated(launches, [1.0] * 6 + [0.25], False)
    ours = hybrid.simulated(launches, [1.0] * 6 + [0.25], True)
    assert ours < 1.15 * ideal < 1.3 * ideal < plain  # it waits for a tile of 4 ms of 5.8 ms


def test_leaving_costs_nothing_where_cores_are_alike(hybrid: ModuleType) -> None:
    launches = [hybrid.SimulatedLaunch(count, 1e-3) for count in (1, 3, 8, 12, 100)] * 20
    plain, ours = (hybrid.simulated(launches, [1.0] * 8, leaving) for leaving in (False, True))
    assert ours == pytest.approx(plain, rel=0.005)


def test_cores_are_parsed_or_refused(hybrid: ModuleType) -> None:
    assert [str(hybrid.parsed(word)) for word in hybrid.CORES.split(",")][-1] == "16 fast cores"
    with pytest.raises(InputError, match="--cores has '8p'"):
        hybrid.parsed("8p")
