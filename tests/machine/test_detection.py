"""The record of a CPU from what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from smalti import machine
from smalti.machine.cpu import core_of
from smalti.machine.cpu.micro import step_clocks
from smalti.machine.detection import at_level
from smalti.machine.device import GUESSED, MEASURED


@dataclass(frozen=True)
class Said:
    """What a CPU says."""

    name: str
    features: tuple[str, ...] = ("avx2", "fma")
    memory_bytes: int = 16 << 30
    cores: int = 4
    l1_bytes: int = 48 << 10
    l2_bytes: int = 1 << 20
    l3_bytes: int = 32 << 20
    slow: int = 0

    @property
    def speeds(self) -> list[float]:
        """Of each core."""
        return [1.0] * (self.cores - self.slow) + [0.4] * self.slow


@pytest.mark.parametrize("name, id", [
    ("AMD Ryzen 9 9950X 16-Core Processor", "ryzen_9_9950x"),
    ("13th Gen Intel(R) Core(TM) i9-13900K", "core_i9_13900k"),
    ("12th Gen Intel(R) Core(TM) i5-12400 CPU @ 2.50GHz", "core_i5_12400"),
    ("AMD EPYC 9654 96-Core Processor", "epyc_9654"),
    ("Intel(R) Xeon(R) Platinum 8480+", "xeon_platinum_8480_plus"),
])
def test_names_find_their_line(name: str, id: str) -> None:
    found, line = machine.detect(Said(name)), machine.device(id)
    assert (found.id, found.name, found.kind) == ("cpu", name, "cpu")
    assert (found.clock, found.architecture) == (line.clock, line.architecture)
    assert found.watts == pytest.approx(line.watts * 4 / line.units)


def test_slow_cores_are_worth_a_part_of_a_fast_one() -> None:
    name = "12th Gen Intel(R) Core(TM) i7-12700K"
    alike, hybrid = (machine.detect(Said(name, cores=12, slow=slow)) for slow in (0, 4))
    assert hybrid.units == alike.units == 12
    assert hybrid.vector["f32"] == pytest.approx(0.8 * alike.vector["f32"])


def test_what_is_said_is_kept_and_the_rest_is_marked_as_a_guess() -> None:
    found = machine.detect(Said("AMD EPYC", ("avx2", "avx512f", "avx512_bf16"), cores=2))
    assert (found.units, found.wave, found.l1) == (2, 16, 48 << 10)
    assert [cache.bytes for cache in found.caches] == [2 << 20, 32 << 20]
    assert found.vector["bf16"] == 2 * found.vector["f32"]
    assert found.origin["units"] == found.origin["l2_bytes"] == MEASURED
    assert found.origin["clock"] == found.origin["bandwidth"] == GUESSED
    assert core_of(found).ports == pytest.approx(2)


def test_zen_4_takes_two_clocks_for_a_wide_vector() -> None:
    wide = machine.detect(Said("AMD Ryzen 7 7700X 8-Core Processor", ("avx2", "avx512f")))
    assert core_of(wide).ports == pytest.approx(1)
    assert core_of(at_level(wide, 8, False)).ports == pytest.approx(2)


def test_a_narrow_level_has_half_the_lanes_and_no_pairs() -> None:
    found = machine.detect(Said("AMD EPYC", ("avx2", "avx512f", "avx512_bf16")))
    narrow = at_level(found, 8, False)
    assert narrow.vector["f32"] == found.vector["f32"] / 2
    assert core_of(narrow).pairs == 0 and core_of(found).pairs == pytest.approx(2)
    assert at_level(found, 16, True).vector == {k: found.vector[k] for k in ("f32", "f16", "bf16")}


def test_cores_of_aarch64_are_found_by_their_name() -> None:
    small = machine.detect(Said("Cortex-A76 + Cortex-A55", ("asimd", "asimddp")))
    assert (small.wave, small.clock) == (4, 2.4e9)
    assert core_of(small).ports == pytest.approx(2) and core_of(small).by_lane
    large = at_level(machine.detect(Said("Neoverse V1", ("asimd", "bf16"))), 4, True)
    assert core_of(large).ports == pytest.approx(4)
    assert large.vector["bf16"] == 2 * large.vector["f32"]


def test_a_cpu_is_not_taken_for_the_gpu_of_its_name() -> None:
    found = machine.detect(Said("Apple M1", ("asimd",)))
    assert (found.kind, found.clock) == ("cpu", 3.204e9)
    assert core_of(found).ports == pytest.approx(4)


def test_products_by_lane_load_four_rows_at_a_time() -> None:
    neon = core_of(machine.detect(Said("Cortex-A76", ("asimd",))))
    assert step_clocks(neon, 8, 2) == 8  # 16 multiply-adds on two ports, 4 loads
    assert step_clocks(replace(neon, lanes=8), 8, 1) == 4.5  # 9 loads


def test_products_of_blocks_do_twice_those_of_pairs() -> None:
    found = core_of(machine.detect(Said("Neoverse V2", ("asimd", "bf16"))))
    assert step_clocks(found, 6, 4, "pairs") == pytest.approx(6)
    assert step_clocks(found, 6, 4, "blocks") == step_clocks(found, 5, 4, "blocks") == (
        pytest.approx((12 + 1.5) / 4))  # and half an instruction for each two rows


def test_a_cpu_that_is_called_as_its_cores_is_no_chip_of_the_library() -> None:
    found = machine.detect(Said("Cortex-A76 + Cortex-A55", ("asimd",)))
    alone = machine.detect(Said("Cortex-A76", ("asimd",)))
    assert alone.bandwidth == found.bandwidth and alone.memory == 16 << 30
    assert (alone.architecture, alone.units) == ("", 4)
