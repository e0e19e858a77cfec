"""Calibrations of many computers, measured over a cluster or read from files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cli.test_commands import refused, run
from clusters import FakeCluster

from smalti.benchmark import fleet
from smalti.benchmark.fleet import Calibrated, CalibrateWorker, measured, report
from smalti.errors import InputError
from smalti.machine.cpu import CpuCalibration
from smalti.runtime.cache import code_digest
from smalti.runtime.cpu.model import calibration_path, modelled_code

FOUND = CpuCalibration("a CPU", 2, "", "older", "2026-01-02", 4e9, 2e11, 0.0, 3e11, 2e11, 5e10,
                       4e10, 1e-6, error=(0.2, 0.1))


class Measures:
    """A computer that needs no time; `a CPU` on those with two cores, else another."""

    def __init__(self, code: str) -> None:
        assert code == code_digest()

    def measure(self, threads: int) -> CpuCalibration:
        if threads == 3:
            raise InputError("there is no code for this CPU")
        return replace(FOUND, cores=threads, device="a CPU" if threads == 2 else "another",
                       code=modelled_code(), error=(0.3, 0.1) if threads == 2 else (0.2, 0.05))


def test_all_nodes_are_measured_and_what_cannot_be_is_told() -> None:
    cluster, told = FakeCluster(), list[str]()
    for cores in (4, 2, 3):
        cluster.add(f"node {cores}", cores)
    found = measured(cluster, None, told.append, Measures)
    assert "node 3 is left out: there is no code for this CPU\n" in told
    assert all(worker.lost for worker in cluster.workers)
    lines = report(found).splitlines()
    assert [line.split("|")[1:5] for line in lines[2:4]] == [
        [" a CPU   ", " node 2   ", " 2     ", " 4.00 GHz "],
        [" another ", " node 4   ", " 4     ", " 4.00 GHz "]]
    assert "35.0 %     | 10.5 %" in lines[2] and "this code" in lines[2]
    assert lines[4] == ("2 computers with 2 kinds of CPU; expected times were off by 22.1 % to "
                        "35.0 % with the usual constants, and are by 5.1 % to 10.5 % with those "
                        "that were found")


def test_where_nothing_can_be_measured_is_one_message() -> None:
    cluster = FakeCluster()
    with pytest.raises(InputError, match="no node that gives out cores"):
        measured(cluster, None, print, Measures)
    cluster.add("one", 3)
    with pytest.raises(InputError, match="one is left out: there is no code"):
        measured(cluster, None, print, Measures)


def test_files_of_several_computers_are_compared(tmp_path: Path) -> None:
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        path.write_text(FOUND.text())
    told = run("calibrate", "--report", paths[0], "--report", paths[1])
    assert told.exit_code == 0 and "two.json" in told.stdout and "other code" in told.stdout
    assert "2 computers with 1 kinds of CPU; expected times were off by 22.1 % with" in told.stdout
    refused(run("calibrate", "--report", paths[0], "--threads", "1"), "--report measures nothing")
    refused(run("calibrate", "--report", tmp_path / "none"), "none cannot be read")
    paths[0].write_text("{}")
    refused(run("calibrate", "--report", paths[0]), "one.json: this is no calibration")
    refused(run("calibrate", "--ray", "nowhere"), "expected auto, or HOST:PORT")


def test_a_computer_keeps_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                           ) -> None:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / "new"))
    monkeypatch.setattr(fleet.calibration, "calibrated", lambda *rest: FOUND)
    assert CalibrateWorker(code_digest()).measure(1) == FOUND
    assert CpuCalibration.of(calibration_path().read_text()) == FOUND
    monkeypatch.setattr(fleet, "best_level", lambda: None)
    with pytest.raises(InputError, match="no code for this CPU"):
        CalibrateWorker(code_digest()).measure(1)
    assert report([Calibrated("here", FOUND)]).endswith("that were found")
