"""Cores as Linux, macOS and Windows tell of them, here and on computers that are not here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smalti import cores as module
from smalti.cores import _linux, apple, of_cpu_sets, usable


def told(root: Path, **files: str) -> Path:
    """A folder with files of the system, by paths with two underscores for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def cores(root: Path, cpus: int) -> int:
    return len(_linux(root, frozenset(range(cpus))))


def test_two_threads_of_a_core_count_once(tmp_path: Path) -> None:
    topology = "sys__devices__system__cpu__cpu{}__topology__thread_siblings_list"
    told(tmp_path, **{topology.format(cpu): f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})
    assert cores(tmp_path, 8) == 4
    assert cores(tmp_path, 3) == 3  # the mask has one thread of each


def test_every_cpu_is_a_core_where_nothing_is_told(tmp_path: Path) -> None:
    assert cores(tmp_path, 6) == 6


@pytest.mark.parametrize("files, expected", [
    ({"proc__self__cgroup": "0::/box", "sys__fs__cgroup__box__cpu.max": "150000 100000"}, 2),
    ({"proc__self__cgroup": "0::/box", "sys__fs__cgroup__box__cpu.max": "max 100000"}, 8),
    ({"proc__self__cgroup": "0::/", "sys__fs__cgroup__cpu.max": "50000 100000"}, 1),
    ({"proc__self__cgroup": "4:memory:/m\n1:cpu,cpuacct:/box",
      "sys__fs__cgroup__cpu,cpuacct__box__cpu.cfs_quota_us": "300000",
      "sys__fs__cgroup__cpu,cpuacct__box__cpu.cfs_period_us": "100000"}, 3),
    ({"proc__self__cgroup": "1:cpu:/", "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "-1",
      "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000"}, 8),
    ({"proc__self__cgroup": "nonsense:"}, 8),
])
def test_a_control_group_limits_the_cores(tmp_path, files, expected) -> None:
    assert cores(told(tmp_path, **files), 8) == expected


def test_the_cores_of_this_computer() -> None:
    found = usable()
    assert 1 <= len(found) <= os.cpu_count() and found[0] == 1.0
    assert list(found) == sorted(found, reverse=True)


def test_intel_s_cores_for_efficiency_are_slow(tmp_path: Path) -> None:
    # a Core i5-1235U: two cores of two threads, eight small ones
    topology = "sys__devices__system__cpu__cpu{}__topology__thread_siblings_list"
    told(tmp_path, **{topology.format(cpu): f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
                      for cpu in range(4)},
         sys__devices__cpu_core__cpus="0-3", sys__devices__cpu_atom__cpus="4-11")
    assert _linux(tmp_path, frozenset(range(12))) == (1.0,) * 2 + (0.4,) * 8
    assert _linux(tmp_path, frozenset(range(4, 8))) == (1.0,) * 4  # nothing faster is there


def test_cores_of_arm_have_capacities(tmp_path: Path) -> None:
    # Rockchip's RK3588: four Cortex-A55, four Cortex-A76
    capacity = "sys__devices__system__cpu__cpu{}__cpu_capacity"
    told(tmp_path, **{capacity.format(cpu): "446" if cpu < 4 else "1024" for cpu in range(8)})
    assert _linux(tmp_path, frozenset(range(8))) == (1.0,) * 4 + (446 / 1024,) * 4


def test_a_share_of_time_is_of_the_fast_cores(tmp_path: Path) -> None:
    told(tmp_path, proc__self__cgroup="0::/", sys__fs__cgroup__cpu__max="",
         sys__devices__cpu_atom__cpus="0-5")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("300000 100000")
    assert _linux(tmp_path, frozenset(range(8))) == (1.0, 1.0, 0.4)


def test_levels_of_performance_of_a_mac() -> None:
    told = {"hw.nperflevels": 2, "hw.perflevel0.physicalcpu": 4, "hw.perflevel1.physicalcpu": 4,
            "hw.physicalcpu": 8}
    assert apple(lambda name: told.get(name, 0).to_bytes(4, "little")) == (1.0,) * 4 + (0.4,) * 4
    intel = {"hw.physicalcpu": 6, "hw.logicalcpu": 12}
    assert apple(lambda name: intel.get(name, 0).to_bytes(8, "little")) == (1.0,) * 6
    assert apple(lambda name: b"") == ()


def test_a_mac_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(module, "sysctl", lambda name: asked.append(name) or b"\2\0\0\0")
    monkeypatch.setattr("sys.platform", "darwin")
    module._apple.cache_clear()
    assert usable() == usable() == (1.0, 1.0, 0.4, 0.4)
    assert asked == ["hw.nperflevels", *(f"hw.perflevel{n}.physicalcpu" for n in range(2))]
    module._apple.cache_clear()


def cpu_set(logical: int, core: int, efficiency: int, group: int = 0) -> bytes:
    """A SYSTEM_CPU_SET_INFORMATION."""
    record = bytearray(32)
    record[0], record[12], record[14], record[15], record[18] = 32, group, logical, core, efficiency
    return bytes(record)


def test_cpu_sets_of_windows() -> None:
    # two cores of two threads, two small ones: the class of the fast ones is the greater number
    records = b"".join(cpu_set(cpu, cpu // 2 * 2 if cpu < 4 else cpu, int(cpu < 4))
                       for cpu in range(6))
    assert of_cpu_sets(records, 0b111111) == (1.0, 1.0, 0.4, 0.4)
    assert of_cpu_sets(records, 0b110011) == (1.0, 0.4, 0.4)  # as the affinity mask has it
    assert of_cpu_sets(records, 0b110000) == (1.0, 1.0)
    assert of_cpu_sets(records + cpu_set(0, 0, 1, group=1), 0b000011) == (1.0, 1.0)
    assert of_cpu_sets(b"", 1) == ()
