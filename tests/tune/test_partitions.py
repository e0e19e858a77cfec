"""What is stored and what is computed again, by the timing model: the same numbers either way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from interpreted_gpu import InterpretedGpu
from native_regions import LEVELS

from smalti import machine
from smalti.fuse import partition
from smalti.graph import Graph, evaluate
from smalti.runtime import compile_graph
from smalti.runtime.gpu.compilation import compile_for
from smalti.schedule.schedule import Limits
from smalti.tune import partitions
from smalti.tune.objective import OBJECTIVES, Objective
from smalti.tune.partitions import decided

CPU = Limits(16, 32, 48 << 10, 1 << 20, 1)
AIM = Objective.on(machine.device("ryzen_9_9950x"), 1, "latency")


def costly(readers: int = 4, rows: int = 96) -> Graph:
    """Products that all read what takes many exponentials to compute."""
    g = Graph("costly")
    x = g.input("x", (rows, 32))
    for _ in range(4):
        x = g.apply("gelu", g.apply("erf", x))
    for number in range(readers):
        g.output(f"y{number}", g.apply("mat_mul", x, g.parameter(f"w{number}", (32, 16))))
    return g


def many(readers: int) -> Graph:
    """Sums over what is soon computed again, which the rules store for so many readers."""
    g = Graph("many")
    x = g.input("x", (2048, 64)) + g.parameter("b", (64,))
    for number in range(readers):
        g.output(f"y{number}", g.apply("reduce_sum", x, axes=[number % 2]))
    return g


def kernels(g: Graph, aim: Objective = AIM) -> tuple[list[str], list[str]]:
    """The forms of the kernels of a partition by rules, and of that by the model."""
    found = decided(lambda otherwise: partition(g, otherwise=otherwise),
                    partitions.Costs(aim, CPU, "f32").of)
    return [p.kernel.form for p in partition(g).regions], [p.kernel.form for p in found.regions]


def test_what_is_dear_is_stored_and_the_reason_has_numbers() -> None:
    rules, model = kernels(costly())
    assert rules == ["contraction"] * 4 and model == ["map", *rules]
    graph = costly()
    found = decided(lambda otherwise: partition(graph, otherwise=otherwise),
                    partitions.Costs(AIM, CPU, "f32").of)
    assert all("times as much the rules' way" in region.reason for region in found.regions)


def test_what_is_cheap_is_computed_again() -> None:
    assert kernels(many(5)) == (["map"] + ["reduction"] * 5, ["reduction"] * 5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_one_reader_computes_it_itself(name: str) -> None:
    aim = Objective.on(machine.device("ryzen_9_9950x"), 1, name)
    assert kernels(costly(1), aim) == (["contraction"], ["contraction"])


def test_nothing_is_decided_otherwise_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    for share, stored in ((0.95, False), (0.5, True)):
        graph, usual = costly(), []
        monkeypatch.setattr(partitions.Costs, "of", lambda _, kernel, s=share, usual=usual: (
            0.0 if kernel.form == "map" else s if kernel in usual else 1.0))
        usual[:] = [p.kernel for p in partition(graph, otherwise=partition(graph).open).regions]
        assert (kernels(graph)[1][0] == "map") == stored


def test_gpus_decide_by_what_their_limits_say() -> None:
    for graph, forms in ((costly(1), ["contraction"]), (many(5), ["reduction"] * 2)):
        regions = compile_for(InterpretedGpu(), graph).module.regions
        assert [region.form for region in regions] == forms
    dear = compile_for(InterpretedGpu(), costly(rows=1 << 16)).module.regions
    assert [region.form for region in dear] == ["map"] + ["contraction"] * 4
    assert all("times as much the rules' way" in region.reason for region in dear)


@pytest.mark.parametrize("graph", [costly(), many(5)], ids=["dear", "cheap"])
def test_either_way_gives_the_same_numbers_on_a_gpu(graph: Graph, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    inputs = {"x": random.standard_normal(graph.inputs["x"].shape, np.float32)}
    weights = {name: random.standard_normal(value.shape, np.float32)
               for name, value in graph.parameters.items()}
    expected = evaluate(graph, inputs, weights)
    for number, decide in enumerate((lambda make, cost: make(()), decided)):
        monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / str(number)))
        monkeypatch.setattr("smalti.compiler.passes.decided", decide)
        program = compile_for(InterpretedGpu(), graph, precision="f32")
        program.bind(weights)
        for name, array in program.run(inputs).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("graph", [costly(), costly(1), many(5)],
                         ids=["dear", "alone", "cheap"])
def test_either_way_gives_the_same_numbers(graph: Graph, level: str, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    inputs = {"x": random.standard_normal(graph.inputs["x"].shape, np.float32)}
    weights = {name: random.standard_normal(value.shape, np.float32)
               for name, value in graph.parameters.items()}
    found = []
    for number, decide in enumerate((lambda make, cost: make(()), decided,
                                     lambda make, cost: make(make(()).open))):
        monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / str(number)))
        monkeypatch.setattr("smalti.compiler.passes.decided", decide)
        program = compile_graph(graph, threads=2, target=level)
        program.bind(weights)
        found.append(program.run(inputs))
    expected = evaluate(graph, inputs, weights)
    for name, array in expected.items():
        assert all(each[name].tobytes() == found[0][name].tobytes() for each in found)
        np.testing.assert_allclose(found[0][name], array, rtol=1e-3, atol=1e-3)
