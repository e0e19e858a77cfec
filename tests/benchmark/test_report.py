"""What is written of results: complete, plain data, and drawn in the same order."""

from __future__ import annotations

import json
from dataclasses import replace

from tiny_suite import TINY_CASES

from smalti.benchmark.chart import Words
from smalti.benchmark.comparison import Agreement, Duel, Measured
from smalti.benchmark.report import document, drawing

CASE = replace(TINY_CASES["decode"], bounds={"bf16": 0.5})
RESULTS = [
    Measured(CASE, "bf16", [], Agreement(1e-3, 45.0), [
        Duel("torch", [1.0, 2.0, 3.0], [8.0, 9.0, 7.0], Agreement(2e-3, 44.0), "autocast")]),
    Measured(CASE, "f32", [0.5], None)]


def test_the_document_holds_every_time_and_goes_through_json() -> None:
    found = json.loads(json.dumps(document(RESULTS, threads=2, rounds=3)))
    first, second = found["results"]
    assert first["model"] == "decode" and first["bound"] == 0.5 and first["ratio"] == 0.25
    assert first["duels"][0]["their_seconds"] == [8.0, 9.0, 7.0]
    assert first["agreement"] == {"error": 1e-3, "psnr": 45.0} and first["row"]["ok"] is True
    assert second["alone_seconds"] == [0.5] and second["best_peer"] is None
    assert found["threads"] == 2 and found["machine"]["cpu"]
    assert found["versions"]["numpy"].count(".") >= 2


def test_the_chart_names_machine_and_precision() -> None:
    texts = [shape.text for shape in drawing(RESULTS, 2).shapes if isinstance(shape, Words)]
    assert "2 threads" in texts[1]
    assert "decode, bf16" in texts and "decode" in texts
    assert "2.00 s" in texts and "8.00 s" in texts
