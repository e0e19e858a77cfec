"""What the timing model expects of compiled programs, and how it knows their kernels again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from smalti import nn
from smalti.compiler.prediction import launches, predicted
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.machine import cpu
from smalti.machine.device import GUESSED, MEASURED
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu.model import calibration, calibration_path, modelled, modelled_code
from smalti.schedule.group import GroupMap


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))


def small() -> Graph:
    """Two convolutions with a normalisation between, and attention behind."""
    graph = Graph("small")
    x = graph.input("x", (1, 16, 8, 8))
    x = nn.conv2d(x, "first", 32, 3)
    x = nn.conv2d(nn.group_norm(x, "norm", 8, 1e-5), "second", 32, 3)
    tokens = x.reshape(1, 32, 64).transpose(0, 2, 1)
    graph.output("y", graph.apply("attention", tokens, tokens, tokens, num_heads=2))
    return graph


def test_kernels_of_an_image_are_known_again_from_their_texts() -> None:
    image = compile_graph(small(), threads=1).module
    found = launches(image)
    assert [image.regions[n].form for n in found] == [one.kernel.form for one in found.values()]
    assert {"contraction", "group_scale_shift", "attention"} <= {
        one.kernel.form for one in found.values()}
    for number, one in found.items():
        assert str(one.schedule) == image.regions[number].schedule
        outside = {b.name for b in one.kernel.buffers if b.role != "local"}
        assert outside <= set(one.places) <= outside | {cpu.WORKSPACE}


def test_kernels_of_a_gpu_are_refused() -> None:
    module = compile_graph(small(), threads=1).module
    module.regions[0] = replace(module.regions[0], schedule=str(GroupMap(64)))
    with pytest.raises(InputError, match="region 0 has the schedule GroupMap.*expected.* a CPU"):
        launches(module)


def test_what_one_kernel_writes_lies_where_the_next_reads() -> None:
    found = [one for one in launches(compile_graph(small(), threads=1).module).values()
             if one.kernel.form in ("contraction", "attention")]
    assert found[1].places["out"] == found[2].places["q"]


@pytest.mark.parametrize("target", ["avx2", None])
def test_every_kernel_of_a_run_has_an_expected_time(target: str | None) -> None:
    program = compile_graph(small(), threads=1, target=target)
    image = program.module
    expected = predicted(image, modelled(image.target), 1)
    assert set(expected) == {launch.region for launch in image.launches[image.changing:]}
    assert all(1e-8 < one.seconds < 1e-2 for one in expected.values())
    text = program.explain(all=True).splitlines()
    assert sum(line.startswith("expected of a run: ") for line in text) == 1
    assert sum(" expected, " in line for line in text) == len(expected)


def test_a_calibration_is_used_for_its_cpu_and_code_only() -> None:
    plain = modelled()
    assert calibration() is None and plain.origin["clock"] == GUESSED
    found = cpu.CpuCalibration(plain.name, 2, "6.1", modelled_code(), "2026-11-21", clock=3e9,
                               f32=2e11, bf16=0.0, l2=3e11, l3=1e11, memory=2e10, reach=1.5e10,
                               launch=1e-6, constants={"products": 1.5})
    path = calibration_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(found.text())
    here = modelled()
    assert here.clock == 3e9 and here.origin["clock"] == MEASURED
    assert cpu.constants_of(here)["products"] == 1.5
    assert cpu.constants_of(here)["reach"] == pytest.approx(0.75)
    path.write_text(found.text().replace(found.code, "another"))
    assert cpu.constants_of(modelled())["products"] == cpu.CONSTANTS["products"]
    path.write_text(found.text().replace(plain.name, "another CPU"))
    assert calibration() is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"device": 1}'])
def test_a_file_that_is_no_calibration_counts_as_none(text: str) -> None:
    path = calibration_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert calibration() is None
