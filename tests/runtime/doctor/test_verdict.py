"""Verdicts, as words and as files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smalti.runtime.doctor import verdict
from smalti.runtime.doctor.found import Finding, GpuRates
from smalti.runtime.doctor.verdict import Verdict
from smalti.runtime.gpu import removals
from smalti.runtime.gpu.removals import above

RATES = GpuRates({"f32": 1e12}, 1e11, 5e-6, 2e-5, 1e10, 9e9)
FINDING = Finding("product, f16", "the result is off by 3e-01", ("matrices 16x16x16 f16 to f32",))


def made(**changes) -> Verdict:
    return replace(Verdict("A GPU", "a driver", "1234", verdict.emitters(), "2026-11-22", 70, 3.1,
                           (FINDING,), RATES, proven=("matrices",)), **changes)


def test_a_verdict_is_kept_for_a_device_a_driver_and_the_code():
    assert verdict.kept("1234") is None
    verdict.keep(made())
    assert verdict.kept("1234") == made()
    assert verdict.kept("1235") is None
    verdict.keep(made(code="of another version"))
    assert verdict.kept("1234") is None


def test_an_unfinished_verdict_is_not_kept():
    verdict.keep(made(identity="unfinished", unfinished="memory is full"))
    assert verdict.kept("unfinished") is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"device": 1}', '{"findings": [{"probe": 1}]}'])
def test_a_damaged_file_is_no_verdict(text):
    path = verdict.path_of("damaged")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert verdict.kept("damaged") is None


def test_a_file_with_a_removal_that_nothing_has_is_no_verdict():
    path = verdict.path_of("1234")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made().text().replace("matrices 16x16x16 f16 to f32", "everything"))
    assert verdict.kept("1234") is None


@pytest.mark.parametrize("name", [
    *removals.NAMES[:1], *removals.NAMES[2:], "matrices 8x8x8 f16 to f32",
    *(above(what, 256) for what in (removals.GROUPS, removals.SHARED, removals.BINDINGS,
                                    removals.GRIDS, removals.BUFFERS))])
def test_every_removal_says_what_fails_and_what_is_done_instead(name):
    (found,) = made(findings=(replace(FINDING, removed=(name,)),)).removals
    assert found.what == name and found.why.endswith("here (product, f16: the result is off by "
                                                     "3e-01).")
    assert found.instead[0].isupper() and found.instead.endswith(".")


def test_a_device_that_is_removed_is_not_usable():
    assert made().usable
    assert not made(findings=(replace(FINDING, removed=(removals.DEVICE,)),)).usable


@pytest.mark.parametrize("text, found", [
    (r"C:\x\ada\x.dll failed", "… failed"), ("/usr/x/a: no", "…: no"),
    ("1/2 of it", "1… of it"), ("no place", "no place")])
def test_paths_are_left_out(text, found):
    assert verdict.without_places(text) == found
