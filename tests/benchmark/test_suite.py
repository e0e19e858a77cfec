"""The suite: its cases are whole, and tiny ones compute what PyTorch computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_suite import TINY_CASES

from smalti.benchmark.agreement import relative_error
from smalti.benchmark.engines import HELD_BY
from smalti.benchmark.suite import CASES, chosen
from smalti.errors import InputError
from smalti.graph import evaluate


@pytest.mark.parametrize("name", CASES)
def test_inputs_fit_the_graph(name: str) -> None:
    graph, inputs = CASES[name].graph(), CASES[name].inputs()
    assert {n: (a.shape, str(a.dtype)) for n, a in inputs.items()} \
        == {n: (v.shape, {"f32": "float32", "i32": "int32"}[v.dtype])
            for n, v in graph.inputs.items()}


def test_bounds_are_of_known_precisions() -> None:
    known = {"f32", "bf16", *(f"f32, {level}" for level in HELD_BY)}
    assert all(set(case.bounds) <= known for case in CASES.values())
    assert CASES["decode"].bounds == {"f32": 0.55, "bf16": 0.75, "f32, avx2": 0.45}


def test_titles_can_be_written_in_any_font() -> None:
    assert all(case.title.isascii() for case in CASES.values())


def test_names_choose_in_their_order() -> None:
    assert [case.name for case in chosen(["unet", "clip_l"])] == ["unet", "clip_l"]
    with pytest.raises(InputError, match="'unit'; known: .*unet"):
        chosen(["unet", "unit"])


def test_seeded_weights_do_not_depend_on_the_order_of_reading() -> None:
    case = TINY_CASES["unet"]
    names = list(case.graph().parameters)
    first, second = case.read(), case.read()
    forward = {name: first(name) for name in names}
    backward = {name: second(name) for name in reversed(names)}
    assert all(np.array_equal(forward[name], backward[name]) for name in names)
    assert not np.array_equal(forward[names[0]].ravel()[:8], forward[names[2]].ravel()[:8])


def test_the_digest_changes_with_shapes() -> None:
    case = TINY_CASES["decode"]
    assert case.digest() == case.digest()
    assert replace(case, graph=TINY_CASES["encode"].graph).digest() != case.digest()


@pytest.mark.peers
@pytest.mark.parametrize("name", TINY_CASES)
def test_the_peer_computes_the_same(name: str) -> None:
    import torch

    case = TINY_CASES[name]
    graph, inputs, read = case.graph(), case.inputs(), case.read()
    found = evaluate(graph, inputs, {name: read(name) for name in graph.parameters})
    with torch.inference_mode():
        expected = case.module()(*map(torch.tensor, inputs.values()))
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(found) == len(expected)
    for ours, theirs in zip(found.values(), expected, strict=True):
        assert relative_error(ours, theirs.numpy()) <= 1e-5
        assert theirs.std() > 0.05, "a constant would prove nothing"
