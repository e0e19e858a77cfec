"""Attention as machine code, against the interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from native_regions import LEVELS, PieceRunner, check_graph, relative_error, run_regions

from smalti.codegen.cpu.lower import limits, lower
from smalti.codegen.levels import level
from smalti.errors import IllegalSchedule
from smalti.fuse import partition
from smalti.graph import Graph, evaluate
from smalti.kernel.form import Kernel
from smalti.schedule import AttentionSchedule, Schedule, choose

EXAMPLES = 30


@dataclass(frozen=True)
class Case:
    """Attention of `queries` tokens to `keys` tokens."""

    queries: int
    keys: int
    heads: int
    depth: int
    width: int = 0  # channels a head of the values; 0: as many as `depth`
    batch: int = 1
    causal: int = 0
    scale: float | None = None
    mask: str = ""  # which of n, h, t and s it has
    group: int = 1  # heads of queries that share one of keys

    def graph(self) -> Graph:
        g = Graph("attention")
        q = g.input("q", (self.batch, self.queries, self.heads * self.depth))
        shared = self.heads // self.group
        k = g.input("k", (self.batch, self.keys, shared * self.depth))
        v = g.input("v", (self.batch, self.keys, shared * (self.width or self.depth)))
        extents = {"n": self.batch, "h": self.heads, "t": self.queries, "s": self.keys}
        shape = tuple(n if name in self.mask else 1 for name, n in extents.items())
        mask = [g.input("mask", shape)] if self.mask else []
        g.output("y", g.apply("attention", q, k, v, *mask, num_heads=self.heads,
                              is_causal=self.causal, scale=self.scale))
        return g


CASES = [
    Case(1, 1, 1, 1), Case(5, 3, 2, 7), Case(64, 64, 2, 40, batch=2), Case(33, 130, 1, 64),
    Case(77, 77, 3, 24, batch=2, causal=1), Case(20, 77, 2, 160), Case(31, 57, 4, 3, width=9),
    Case(9, 20, 2, 8, causal=1), Case(20, 9, 2, 8, causal=1), Case(70, 5, 1, 2, scale=3.0),
    Case(77, 77, 3, 24, batch=2, mask="ts"), Case(20, 57, 2, 8, batch=2, mask="ns"),
    Case(33, 130, 2, 7, batch=2, mask="nhts"), Case(9, 20, 3, 8, mask="hs", causal=1),
    Case(70, 40, 2, 5, mask="ht"), Case(1, 30, 2, 8, mask="ts"),
    Case(32, 56, 1, 16, width=1), Case(16, 112, 1, 5, scale=-0.5, causal=1),
    Case(77, 77, 4, 24, batch=2, causal=1, group=2), Case(20, 57, 6, 8, 3, group=6, mask="nh"),
]


@pytest.mark.sampled
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: Case, name: str, precision: str) -> None:
    runner = check_graph(case.graph(), name, precision)
    assert type(runner.schedules[-1]) is AttentionSchedule


@pytest.mark.parametrize("name", [name for name in LEVELS if level(name).pairs])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_of_pairs(case: Case, name: str) -> None:
    runner = check_graph(case.graph(), name, "bf16")
    assert runner.schedules[-1].dtype == "bf16"


@examples(EXAMPLES)
@given(st.builds(Case, queries=st.integers(1, 70), keys=st.integers(1, 130),
                 heads=st.integers(1, 3), depth=st.sampled_from([1, 3, 7, 8, 16, 20, 40]),
                 width=st.sampled_from([0, 1, 5, 17]), batch=st.integers(1, 2),
                 causal=st.integers(0, 1), mask=st.sampled_from(["", "s", "ts", "nhts", "nt"])),
       st.sampled_from(LEVELS),
       st.sampled_from(["f32", "bf16"]))
def test_random_attention(case: Case, name: str, precision: str) -> None:
    note(f"{name}\n{case.graph()}")
    check_graph(case.graph(), name, precision)


@examples(EXAMPLES)
@given(st.data(), st.sampled_from(LEVELS))
def test_any_legal_schedule_computes_the_same(data: st.DataObject, name: str) -> None:
    vectors = data.draw(st.integers(1, 3))
    rows = data.draw(st.integers(1, limits(level(name)).rows(vectors, 0)))
    schedule = AttentionSchedule(vectors, data.draw(st.integers(1, 80)), rows,
                                 data.draw(st.integers(1, 4)))
    runner = check_graph(Case(37, 61, 2, 12, width=7, causal=1).graph(), name,
                         pick=lambda *_: schedule)
    assert runner.schedules == [schedule]


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("growing", [False, True])
def test_the_reference_follows_a_top_that_grows(growing: bool, name: str) -> None:
    """Scores rise or fall by hundreds from block to block of keys."""
    graph = Case(9, 96, 1, 4).graph()
    rng = np.random.default_rng(1)
    inputs = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in graph.inputs.items()}
    steps = np.linspace(-300, 300, 96, dtype=np.float32)
    inputs["q"][0, :, 0] = 1
    inputs["k"][0, :, 0] = steps if growing else steps[::-1]
    runner = PieceRunner({}, name, pick=lambda *_: AttentionSchedule(1, 8, 4))
    found = run_regions(graph, inputs, runner)["y"]
    assert relative_error(found, evaluate(graph, inputs, {})["y"]) < 1e-4


@pytest.mark.sampled
@pytest.mark.parametrize("mask", ["", "ts"])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
def test_what_scratch_memory_held_changes_no_bit(name: str, precision: str, mask: str) -> None:
    """Lanes behind the last query find numbers that are small, large, or not numbers."""
    graph, rng = Case(20, 96, 2, 40, mask=mask).graph(), np.random.default_rng(1)
    inputs = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in graph.inputs.items()}

    factors = precision if level(name).pairs else "f32"

    def pick(kernel: Kernel, *rest) -> Schedule:
        return AttentionSchedule(2, 8, 4, 1, factors) if kernel.form == "attention" \
            else choose(kernel, *rest)

    found = [run_regions(graph, inputs, PieceRunner({}, name, precision, pick, left=left))["y"]
             for left in (0x00, 0x3E, 0x42, 0x46, 0x7F, 0xFF)]
    assert all(other.tobytes() == found[0].tobytes() for other in found)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("number", [-np.inf, -3.4e38, -1e4])
def test_rows_and_keys_that_are_masked_by_large_numbers(number: float, name: str,
                                                        precision: str) -> None:
    case = Case(21, 50, 2, 8, batch=2, mask="nts")
    graph, rng = case.graph(), np.random.default_rng(3)
    inputs = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in graph.inputs.items()}
    inputs["mask"] = np.where(rng.random(inputs["mask"].shape) < 0.5, number,
                              inputs["mask"]).astype(np.float32)
    inputs["mask"][0, 0, 3] = inputs["mask"][1, 0, :, :30] = number
    def pick(kernel: Kernel, *rest) -> Schedule:
        return AttentionSchedule(1, 8, 4) if kernel.form == "attention" else choose(kernel, *rest)

    runner = PieceRunner({}, name, pick=pick, precision=precision)
    found = run_regions(graph, inputs, runner)["y"]
    assert relative_error(found, evaluate(graph, inputs, {})["y"]) < 1e-2
    assert (abs(found[0, 3]) < 1e-6).all() == (number < -1e30)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
def test_operands_may_be_parts_of_one_value(name: str, precision: str) -> None:
    g = Graph("qkv")
    x = g.input("x", (2, 19, 3 * 24))
    q, k, v = (g.apply("slice", x, axis=2, start=24 * i, end=24 * i + 24) for i in range(3))
    g.output("y", g.apply("attention", q, k, v, num_heads=3) + 1.0)
    check_graph(g, name, precision)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", LEVELS)
def test_operands_may_be_turned(name: str, precision: str) -> None:
    g = Graph("turned")
    image, tokens = g.input("x", (2, 16, 3, 5)), g.input("t", (2, 16, 15))
    q = image.reshape(2, 16, 15).transpose(0, 2, 1)
    k = tokens.transpose(0, 2, 1)  # its channels do not lie side by side
    v = g.apply("expand", g.input("v", (1, 15, 16)), shape=(2, 15, 16))
    g.output("y", g.apply("attention", q, k, v, num_heads=2).transpose(0, 2, 1)
             .reshape(2, 16, 3, 5))
    check_graph(g, name, precision)


@pytest.mark.parametrize("name", LEVELS)
def test_large_scores_do_not_overflow(name: str) -> None:
    graph = Case(9, 70, 1, 8).graph()
    rng = np.random.default_rng(1)
    inputs = {n: 60 * rng.standard_normal(v.shape).astype(np.float32)
              for n, v in graph.inputs.items()}
    found = run_regions(graph, inputs, PieceRunner({}, name))["y"]
    assert np.isfinite(found).all()
    assert relative_error(found, evaluate(graph, inputs, {})["y"]) < 1e-4


@pytest.mark.parametrize("name", LEVELS)
def test_nan_reaches_the_queries_it_concerns_and_no_others(name: str) -> None:
    graph = Case(20, 70, 2, 8).graph()
    rng = np.random.default_rng(1)
    inputs = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in graph.inputs.items()}
    inputs["q"][0, 3, 2] = np.nan
    inputs["k"][0, 50, 9] = np.nan
    bad = np.isnan(run_regions(graph, inputs, PieceRunner({}, name))["y"][0])
    assert bad[:, 8:].all()  # every query of the second head sees the bad key
    assert bad[3, :8].all() and not np.delete(bad[:, :8], 3, 0).any()


def test_impossible_schedules_are_refused() -> None:
    kernel = partition(Case(9, 9, 1, 8).graph()).regions[0].kernel
    with pytest.raises(IllegalSchedule, match="accumulators need"):
        lower(kernel, AttentionSchedule(4, 9, 7), level(LEVELS[0]))
    with pytest.raises(IllegalSchedule, match="need a CPU that multiplies pairs"):
        lower(kernel, AttentionSchedule(1, 9, 4, dtype="bf16"), level(LEVELS[0]))
