"""`smalti doctor`: what a user reads."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from smalti.cli import doctor as module
from smalti.cli.main import root
from smalti.runtime.device import Device
from smalti.runtime.doctor import verdict
from smalti.runtime.doctor.found import Finding, GpuRates
from smalti.runtime.doctor.verdict import Verdict
from smalti.runtime.gpu.removals import Removal

GPU = Device("vulkan:0", "A GPU", "discrete", 8 << 30, ("f16",), driver="driver 1, /usr/a/b.so",
             identity="0123456789abcdef 1", matrices=("16x16x16 f16 to f32",))
RATES = GpuRates({"f32": 9.8e12, "f16": 31e12}, 2.7e11, 5e-6, 2e-5, 1.2e10, 9e9)
WRONG = (Finding("product, depth 256, f16", "the result is off by 3.1e-01, where 2e-03 is usual",
                 ("matrices 16x16x16 f16 to f32",)),)
SOUND = Verdict(GPU.name, "driver 1", GPU.identity, "c0de" * 16, "2026-11-22", 78, 3.4, rates=RATES)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """The output of `smalti doctor` for a GPU with a verdict."""

    def run(found: Verdict, *options: str, device: Device = GPU) -> str:
        monkeypatch.setattr("smalti.runtime.doctor.checking.checkable", lambda id: [device])
        monkeypatch.setattr("smalti.runtime.doctor.checking.checked",
                            lambda device, again, progress: found)
        result = CliRunner().invoke(root, ["doctor", *options])
        assert result.exit_code == 0, result.output
        assert all(len(line) <= module.WIDTH or line.startswith(("|", "*"))
                   for line in result.output.splitlines())
        return result.output

    return run


def test_a_device_that_is_right_is_said_to_be(run):
    text = run(SOUND)
    assert text.startswith("vulkan:0  A GPU  (driver 1")
    assert "78 things were tried in 3.4 s, on 2026-11-22. All of them work." in text
    assert re.search(r"products, f16 +31 TFLOP/s\n", text)
    assert re.search(r"reads and writes memory +270.0 GB/s\n", text)


def test_what_is_wrong_is_said_with_what_is_done_instead(run):
    text = " ".join(run(replace(SOUND, findings=WRONG)).split())
    assert ("* The matrix unit for 16x16x16 f16 to f32 cannot be relied on here (product, depth "
            "256, f16: the result is off by 3.1e-01, where 2e-03 is usual). Products are computed "
            "with other instructions of the device.") in text
    assert "`smalti doctor --report` prints this for an issue." in text


def test_an_unfinished_check_says_that_nothing_was_decided(run):
    text = " ".join(run(replace(SOUND, unfinished="memory is full")).split())
    assert "could not be finished: memory is full. Nothing was decided" in text


def test_what_is_known_of_the_driver_is_said_unless_it_was_proven(run):
    removal = Removal("matrices", "Some are wrong.", "None are used.", "llama.cpp #1")
    known = replace(GPU, removals=(removal,))
    assert "Known of this driver: Some are wrong." in run(SOUND, device=known)
    assert "Known" not in run(replace(SOUND, proven=("matrices",)), device=known)


def test_a_report_is_for_an_issue_and_names_no_files(run):
    text = run(replace(SOUND, findings=WRONG), "--report")
    assert "| driver | driver 1, … |" in text and "b.so" not in text
    assert GPU.identity not in text and verdict.path_of(GPU.identity).stem[:12] in text
    assert ("* **product, depth 256, f16**: the result is off by 3.1e-01, where 2e-03 is usual; "
            "removed: matrices 16x16x16 f16 to f32") in text
    assert "every probe is right" in run(SOUND, "--report")


def test_the_cpu_is_refused_with_what_checks_it():
    result = CliRunner().invoke(root, ["doctor", "--device", "cpu"])
    assert result.exit_code == 2 and "smalti devices --check cpu" in result.output


def test_drivers_that_compute_on_the_cpu_are_checked_where_they_are_named(monkeypatch):
    monkeypatch.setattr("smalti.runtime.doctor.checking.devices",
                        lambda: [replace(GPU, kind="cpu")])
    result = CliRunner().invoke(root, ["doctor"])
    assert result.exit_code == 0 and result.output.startswith("There is no GPU here")
