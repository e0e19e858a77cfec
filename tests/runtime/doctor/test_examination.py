"""From failing probes to what is removed: on devices whose faults are sets of names."""

from __future__ import annotations

import pytest

from smalti.runtime.doctor.examination import examined
from smalti.runtime.doctor.found import Finding
from smalti.runtime.doctor.probe import DeviceProbe, Outcome

SMALL, LARGE = "matrices 8x8x8 f16 to f32", "matrices 16x16x16 f16 to f32"
SUSPECTS = (LARGE, SMALL, "matrices", "subgroup sizes", "f16", "storage16")
PRODUCT, SUM = DeviceProbe("product", lambda *_: None), DeviceProbe("sum", lambda *_: None)


def attempts(broken: dict[str, set[str]], asked: list | None = None):
    """A device on which a probe fails as long as it has something that is broken for it. Of
    matrices the largest are used, and none without subgroups of known sizes or f16."""

    def attempt(probe: DeviceProbe, removed: tuple[str, ...]) -> Outcome:
        if asked is not None:
            asked.append((probe.name, removed))
        used = [name for name in SUSPECTS if name not in removed]
        matrices = [name for name in used if name.startswith("matrices ")]
        if {"matrices", "subgroup sizes", "f16"} & set(removed) or not matrices:
            used = [name for name in used if not name.startswith("matrices")]
        else:
            used = [name for name in used if name not in matrices[1:]]
        wrong = broken.get(probe.name, set())
        return Outcome("wrong" if wrong & {*used, "anything"} else "", tuple(used))

    return attempt


@pytest.mark.parametrize("broken, removed", [
    (set(), ()), ({LARGE}, (LARGE,)), ({LARGE, SMALL}, (LARGE, SMALL)), ({"f16"}, ("f16",)),
    ({"subgroup sizes"}, ("subgroup sizes",)), ({"f16", "storage16"}, ("f16", "storage16")),
    ({"anything"}, ("device",))])
def test_the_least_that_helps_is_removed(broken, removed):
    findings = examined([SUM, PRODUCT], attempts({"product": broken}))
    assert tuple(name for each in findings for name in each.removed) == removed
    assert [each.probe for each in findings] == ["product"] * bool(removed)


def test_all_probes_are_asked_again_after_a_removal():
    asked = []
    examined([SUM, PRODUCT], attempts({"product": {LARGE}}, asked))
    assert asked[-2:] == [("sum", (LARGE,)), ("product", (LARGE,))]


def test_several_faults_are_several_findings():
    findings = examined([SUM, PRODUCT], attempts({"product": {LARGE}, "sum": {"storage16"}}))
    assert [(each.probe, each.removed) for each in findings] == [
        ("sum", ("storage16",)), ("product", (LARGE,))]


def test_what_was_found_before_stays_removed():
    known = [Finding("product", "wrong", ("f16",))]
    assert examined([PRODUCT], attempts({"product": {"f16"}}), known) == tuple(known)
