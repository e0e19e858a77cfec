"""Ratios, bounds and tables from given times; tiny models in turns with every installed peer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_suite import TINY_CASES

from smalti.benchmark import comparison, engines
from smalti.benchmark.comparison import (
    Agreement,
    Duel,
    Measured,
    Plan,
    details,
    installed,
    measure,
)
from smalti.benchmark.engines import PEERS
from smalti.errors import InputError
from smalti.runtime.device import Device

FINE = Agreement(1e-6, None)
CASE = replace(TINY_CASES["clip_l"], bounds={"f32": 0.9})


def duel(peer: str, ours: list[float], theirs: list[float]) -> Duel:
    return Duel(peer, ours, theirs, FINE, "")


def test_the_ratio_is_against_the_fastest_peer_in_its_own_turns() -> None:
    found = Measured(CASE, "f32", [], FINE, [
        duel("torch", [1.0, 1.0, 9.0], [4.0, 5.0, 4.5]),
        duel("openvino", [1.5, 1.6, 1.7], [2.0, 1.0, 8.0])])
    assert found.best.peer == "openvino" and found.best.ratio == 0.8
    row = found.row()
    assert row.ok and row.measured.startswith("0.80x") and "OpenVINO 2.00 s" in row.measured
    assert row.asked.startswith("<= 0.90x")


def test_the_exported_file_is_no_peer_but_has_a_bound() -> None:
    found = Measured(CASE, "f32", [], FINE, [
        duel("torch", [1.0], [2.0]), duel("smalti_onnx", [1.0], [1.04])])
    assert found.best.peer == "torch" and found.row().ok
    assert "from ONNX 1.04x" in found.row().measured
    slow = replace(found, duels=[found.duels[0], duel("smalti_onnx", [1.0], [1.06])])
    assert slow.row().ok is False


@pytest.mark.parametrize("change", [
    {"duels": [duel("torch", [1.0], [1.0])]}, {"agreement": Agreement(2e-4, None)},
    {"precision": "bf16", "agreement": Agreement(1e-3, 39.9)}])
def test_a_bound_that_is_missed_is_said(change: dict) -> None:
    found = Measured(CASE, "f32", [], FINE, [duel("torch", [1.0], [2.0])])
    assert found.row().ok
    assert replace(found, **change).row().ok is False


def test_alone_nothing_is_claimed() -> None:
    row = Measured(CASE, "f32", [2e-3, 1e-3, 3e-3], None).row()
    assert row.ok is None and row.measured == "ours 2.00 ms"


def test_the_table_has_a_column_for_each_peer() -> None:
    both = [Measured(CASE, "f32", [], FINE, [duel("torch", [1.0], [2.0])]),
            Measured(CASE, "bf16", [], FINE, [duel("openvino", [1.0], [3.0])])]
    heading, _, first, second = details(both).splitlines()
    assert [cell.strip() for cell in heading.split("|")[3:6]] == ["Smalti", "PyTorch", "OpenVINO"]
    assert "2.00 s" in first and "3.00 s" in second


def test_a_peer_that_is_not_installed_is_left_out_and_named(monkeypatch) -> None:
    lacking = replace(engines.ENGINES["openvino"], modules=("no_such_module",))
    monkeypatch.setitem(engines.ENGINES, "openvino", lacking)
    said: list[str] = []
    assert "openvino" not in installed(("openvino",), said.append)
    assert len(said) == 1 and "OpenVINO" in said[0] and "no_such_module" in said[0]
    with pytest.raises(InputError, match="'tensorrt'; known: smalti_onnx, torch"):
        installed(("tensorrt",), said.append)


def test_peers_of_a_gpu_run_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    gpu = Device("vulkan:0", "Somebody's GPU", "discrete", 8 << 30, ())
    monkeypatch.setattr(comparison, "described", lambda name: gpu)
    monkeypatch.setattr(comparison, "absence", lambda name: f"its device is not {name}")
    monkeypatch.setattr(engines.Engine, "missing", lambda self: [])
    assert installed(["torch", "smalti_onnx", "openvino"], said.append, "vulkan:0") \
        == ("smalti_onnx",)
    assert said == ["PyTorch is left out: its device is not Somebody's GPU",
                    "OpenVINO is left out: it is measured on the CPU only"]
    monkeypatch.setattr(comparison, "absence", lambda name: "")
    assert installed(["torch"], said.append, "vulkan:0") == ("torch",)


def test_no_time_is_asked_of_a_gpu() -> None:
    found = Measured(CASE, "f32", [1.0], FINE, device="vulkan:0")
    assert found.row().ok and found.row().asked == "L2 <= 0.0001"
    assert replace(found, precision="f16", agreement=Agreement(2e-2, None)).row().ok is False


def test_engines_that_are_held_to_a_level_have_a_bound_of_their_own(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.Engine, "missing", lambda self: [])
    said: list[str] = []
    assert installed(PEERS, said.append, target="avx2") == ("torch", "openvino")
    assert said == ["ONNX Runtime is left out: it cannot be held to avx2"]
    case = replace(CASE, bounds={"f32": 0.9, "f32, avx2": 0.4})
    found = Measured(case, "f32", [], FINE, [duel("torch", [1.0], [2.0])], target="avx2")
    assert found.row().ok is False and replace(found, target=None).row().ok
    assert found.row().what.endswith(", f32, avx2") and "| f32, avx2 " in details([found])


@pytest.mark.peers
def test_every_peer_agrees_in_turns(tmp_path: Path) -> None:
    said: list[str] = []
    plan = Plan(PEERS, 1, 1, tmp_path, said.append, tries_max=0)
    found = measure(TINY_CASES["decode"], "f32", plan)
    assert [duel.peer for duel in found.duels] == list(PEERS)
    assert all(duel.agreement.error <= 1e-4 for duel in found.duels)
    assert found.agreement.error <= 1e-4 and found.ours > 0
    assert found.agreement.psnr > 60
