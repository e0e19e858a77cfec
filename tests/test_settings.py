"""The environment: what is taken, and what is refused with the name of the variable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import smalti
from smalti import settings
from smalti.errors import InputError


@pytest.mark.parametrize(("text", "expected"), [("1", 1), ("007", 7), ("256", 256)])
def test_threads(monkeypatch: pytest.MonkeyPatch, text: str, expected: int) -> None:
    monkeypatch.setenv("SMALTI_THREADS", text)
    assert settings.threads() == expected


@pytest.mark.parametrize("text", ["0", "257", "-1", "1.5", "two", "²", "9" * 5000])
def test_threads_that_are_no_number_from_1_to_256(
        monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SMALTI_THREADS", text)
    with pytest.raises(InputError, match="SMALTI_THREADS"):
        settings.threads()


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("SMALTI_THREADS", "SMALTI_DEVICE", "SMALTI_TARGET", "SMALTI_CACHE", "SMALTI_SHOW",
             "SMALTI_DOCTOR")

    def read() -> list[object]:
        return [settings.threads(), settings.device(), settings.target(), settings.cache_folder(),
                settings.show("graph"), settings.doctor()]

    for name in names:
        monkeypatch.delenv(name, raising=False)
    unset = read()
    for name in names:
        monkeypatch.setenv(name, "")
    assert read() == unset


@pytest.mark.parametrize(("text", "expected"), [("on", True), ("off", False)])
def test_gpus_are_checked_unless_that_is_switched_off(
        monkeypatch: pytest.MonkeyPatch, text: str, expected: bool) -> None:
    monkeypatch.setenv("SMALTI_DOCTOR", text)
    assert settings.doctor() is expected


def test_anything_else_than_on_and_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_DOCTOR", "0")
    with pytest.raises(InputError, match="SMALTI_DOCTOR is '0'; expected on or off"):
        settings.doctor()


@pytest.mark.parametrize("count", [0, -1, 257, 1.5, "2"])
def test_a_graph_is_compiled_for_threads_that_there_can_be(count: object) -> None:
    graph = smalti.Graph("twice")
    x = graph.input("x", (2, 3))
    graph.output("y", x + x)
    with pytest.raises(InputError, match="from 1 to 256"):
        smalti.compile(graph, threads=count)


def told(root: Path, **files: str) -> Path:
    """A folder with files of the system, by paths with two underscores for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def cores(monkeypatch: pytest.MonkeyPatch, root: Path, cpus: int) -> int:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)), raising=False)
    return settings.usable_cores(root)


def test_two_threads_of_a_core_count_once(monkeypatch, tmp_path) -> None:
    topology = "sys__devices__system__cpu__cpu{}__topology__thread_siblings_list"
    told(tmp_path, **{topology.format(cpu): f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)})
    assert cores(monkeypatch, tmp_path, 8) == 4
    assert cores(monkeypatch, tmp_path, 3) == 3  # the mask has one thread of each


def test_every_cpu_is_a_core_where_nothing_is_told(monkeypatch, tmp_path) -> None:
    assert cores(monkeypatch, tmp_path, 6) == 6


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
def test_a_control_group_limits_the_cores(monkeypatch, tmp_path, files, expected) -> None:
    assert cores(monkeypatch, told(tmp_path, **files), 8) == expected
