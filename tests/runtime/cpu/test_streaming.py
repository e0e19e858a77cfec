"""Weights in less memory than they take: the same results, bounded memory, errors in time."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.errors import InputError, NumericsError
from smalti.graph import Graph
from smalti.runtime import compile_graph
from smalti.runtime.cpu.streaming import planned

LAYERS, WIDTH = 12, 320
RANDOM = np.random.default_rng(0)
WEIGHTS = {f"w{i}": (RANDOM.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
           for i in range(LAYERS)} | {
    f"b{i}": RANDOM.standard_normal(WIDTH).astype(np.float32) for i in range(LAYERS)}
WHOLE = 4 * LAYERS * WIDTH * WIDTH
INPUTS = {"x": RANDOM.standard_normal((7, WIDTH)).astype(np.float32),
          "c": RANDOM.standard_normal((3, WIDTH)).astype(np.float32)}


def layers(held: bool = False) -> Graph:
    """A stack of layers; the last reads the first weight again, and one `c`, which may be held."""
    g = Graph("layers")
    x, c = g.input("x", (7, WIDTH)), g.input("c", (3, WIDTH))
    w = [g.parameter(f"w{i}", (WIDTH, WIDTH)) for i in range(LAYERS)]
    b = [g.parameter(f"b{i}", (WIDTH,)) for i in range(LAYERS)]
    for i in range(LAYERS - 1):
        x = g.apply("relu", g.apply("mat_mul", x, w[i]) + b[i])
    keys = g.apply("mat_mul", c, w[LAYERS - 1]) + b[LAYERS - 1]
    x = g.apply("mat_mul", x, w[0]) + g.apply("reduce_sum", keys, axes=(0,), keepdims=True)
    g.output("y", x)
    return g


def program(bytes_max: int | None, read=WEIGHTS.__getitem__, **options):
    made = compile_graph(layers(), threads=1, **options)
    made.bind(read, bytes_max=bytes_max)
    return made


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return program(None).run(INPUTS)["y"]


@pytest.mark.parametrize("share", [0.99, 0.6, 0.4, 0.25])
@pytest.mark.parametrize("held", [(), ("c",)])
def test_results_are_the_same_bytes_in_any_memory(expected, share: float, held) -> None:
    made = program(int(share * WHOLE), held=held)
    for _ in range(3):
        np.testing.assert_array_equal(made.run(INPUTS)["y"], expected)


def test_no_plan_where_all_fits_and_few_slots_stay_where_little_does() -> None:
    image = program(None).module
    assert planned(image, 2 * WHOLE) is None
    plans = [planned(image, int(share * WHOLE)) for share in (0.8, 0.3)]
    assert len(plans[0].resident) > len(plans[1].resident)
    for plan, share in zip(plans, (0.8, 0.3), strict=True):
        resident = sum(image.slots[n].bytes for n in plan.resident)
        assert resident + 2 * plan.half_bytes <= share * WHOLE
        covered = [n for s in plan.segments for n in range(s.first, s.last)]
        assert covered == list(range(len(image.launches)))
        for segment in plan.segments:
            assert sum(image.slots[n].bytes for n in segment.slots) <= plan.half_bytes


def test_too_little_memory_says_how_much_is_needed() -> None:
    with pytest.raises(InputError, match=r"need at least 0\.\d\d GB at a time"):
        program(WHOLE // 20)


def test_weights_are_read_again_in_each_run_and_resident_ones_are_not() -> None:
    asked: list[str] = []

    def read(name: str) -> np.ndarray:
        asked.append(name)
        return WEIGHTS[name]

    made = program(int(0.5 * WHOLE), read)
    asked.clear()
    made.run(INPUTS)
    made.run(INPUTS)
    seen = {name: asked.count(name) for name in WEIGHTS}
    assert not any(seen[f"b{i}"] for i in range(LAYERS))
    coming = [name for name in seen if seen[name]]
    assert 3 < len(coming) < LAYERS and all(seen[name] >= 2 for name in coming)


def test_other_weights_are_taken_where_they_are(expected) -> None:
    changed = {name: WEIGHTS[name] * np.float32(0.5) for name in ("w3", "b3", "w9")}
    every = {**WEIGHTS, **changed}
    made = program(int(0.4 * WHOLE))
    made.run(INPUTS)
    made.bind(changed.__getitem__, only=changed)
    np.testing.assert_array_equal(made.run(INPUTS)["y"],
                                  program(None, every.__getitem__).run(INPUTS)["y"])
    made.bind(WEIGHTS.__getitem__, only=changed)
    np.testing.assert_array_equal(made.run(INPUTS)["y"], expected)
    made.bind(every.__getitem__)  # all of them fit now
    assert made.run(INPUTS)["y"].shape == expected.shape


def test_a_weight_that_cannot_be_read_stops_the_run_and_not_the_next(expected) -> None:
    broken: set[str] = set()

    def read(name: str) -> np.ndarray:
        if name in broken:
            return np.full_like(WEIGHTS[name], np.nan)
        return WEIGHTS[name]

    made = program(int(0.4 * WHOLE), read)
    made.run(INPUTS)
    broken.update(WEIGHTS)
    with pytest.raises(NumericsError, match="NaN or infinite"):
        for _ in range(2):
            made.run(INPUTS)
    broken.clear()
    np.testing.assert_array_equal(made.run(INPUTS)["y"], expected)


def test_release_gives_everything_back(expected) -> None:
    made = program(int(0.4 * WHOLE))
    made.run(INPUTS)
    made.release()
    with pytest.raises(InputError, match="no weights are bound"):
        made.run(INPUTS)
    made.bind(WEIGHTS.__getitem__, bytes_max=int(0.4 * WHOLE))
    np.testing.assert_array_equal(made.run(INPUTS)["y"], expected)


def test_times_and_the_place_of_a_nan_are_known() -> None:
    made = program(int(0.4 * WHOLE))
    made.run(INPUTS)
    assert made.kernel_seconds().sum() > 0 and "layers" in made.explain()
    wrong = {"x": INPUTS["x"], "c": np.full((3, WIDTH), 3e38, np.float32)}
    with pytest.raises(NumericsError, match="NaN or Inf appeared first in"):
        made.run_checked(wrong)
