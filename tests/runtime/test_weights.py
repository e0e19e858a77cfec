"""Binding: what is read, checked and packed, and what is refused."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from built_modules import built
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from native_regions import LEVELS, Block, run_steps

from smalti.codegen.cpu.lower import limits
from smalti.codegen.cpu.packing import lower_packing
from smalti.codegen.cpu.weights import WeightPanels
from smalti.codegen.levels import level
from smalti.errors import DeviceError, InputError, NumericsError
from smalti.graph import Graph
from smalti.graph.operation import DTYPES
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu.packing import BEHIND_BYTES
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.weights import checked

EXAMPLES = 40


def program() -> NativeProgram:
    g = Graph("bound")
    x = g.input("x", (3, 4))
    with g.scope("layer"):
        y = g.apply("mat_mul", x, g.parameter("weight", (6, 4)).transpose(1, 0))
    g.output("y", y + g.parameter("bias", (6,)))
    return NativeProgram(built(g, level(LEVELS[0]), limits(level(LEVELS[0])), "f32"), 2)


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"layer.weight": rng.standard_normal((6, 4), np.float32),
            "bias": rng.standard_normal(6, np.float32)}


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_every_parameter_is_read_once() -> None:
    found, values = Counter(), weights()

    def read(name: str) -> np.ndarray:
        found[name] += 1
        return values[name]

    bound = program()
    bound.bind(read)
    assert found == {"layer.weight": 1, "bias": 1}
    expected = X @ values["layer.weight"].T + values["bias"]
    np.testing.assert_allclose(bound.run({"x": X})["y"], expected, rtol=1e-5)


def test_other_number_types_and_orders_are_converted() -> None:
    values, bound = weights(), program()
    bound.bind(lambda name: np.asfortranarray(values[name].astype(np.float64)))
    expected = X @ values["layer.weight"].T + values["bias"]
    np.testing.assert_allclose(bound.run({"x": X})["y"], expected, rtol=1e-5)


@pytest.mark.parametrize("shape", [(4, 6), (24,), (6, 4, 1), ()])
def test_a_parameter_of_another_shape_is_named(shape: tuple[int, ...]) -> None:
    values = {**weights(), "layer.weight": np.zeros(shape, np.float32)}
    with pytest.raises(InputError, match=r"'layer.weight' has shape \[.*expects \[6, 4\]"):
        program().bind(values.__getitem__)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_parameter_that_is_not_finite_is_named_with_its_place(bad: float) -> None:
    values = weights()
    values["layer.weight"][5, 2] = bad
    values["layer.weight"][5, 3] = bad
    bound = program()
    with pytest.raises(NumericsError, match=r"'layer.weight' holds 2 values.*at \[5, 2\]"):
        bound.bind(values.__getitem__)
    with pytest.raises(InputError, match="no weights are bound"):
        bound.run({"x": X})
    bound.bind(weights().__getitem__)
    assert np.isfinite(bound.run({"x": X})["y"]).all()


def test_very_large_weights_are_no_error() -> None:
    large = np.full((2, 3), 3e38, np.float32)
    assert checked("large", large, (2, 3)) is not None
    assert checked("scalar", np.float32(2.0), ()).shape == ()


@pytest.mark.parametrize("kind", [complex, object, "S3", str, "datetime64[s]"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_what_is_no_number_is_refused_by_name(kind: object, dtype: str) -> None:
    with pytest.raises(InputError, match="weight 'w' is given as .*; real numbers are expected"):
        checked("w", np.zeros((2, 3), np.dtype(kind)), (2, 3), dtype)


def test_numbers_that_f32_cannot_hold_are_named_without_a_warning() -> None:
    with warnings.catch_warnings(), pytest.raises(NumericsError, match="'w' holds 6 values"):
        warnings.simplefilter("error")
        checked("w", np.full((2, 3), 1e300), (2, 3))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_are_copied_as_they_are_from_any_dtype_that_has_their_values(dtype: str) -> None:
    halves = np.random.default_rng(0).standard_normal((700, 900), np.float32).astype(DTYPES[dtype])
    for array in (halves, np.asfortranarray(halves), halves.astype(np.float32),
                  halves.astype(np.float64)):
        found = checked("w", array, (700, 900), dtype)
        assert found.dtype == DTYPES[dtype] and found.tobytes() == halves.tobytes()
    assert checked("empty", np.zeros((0, 3)), (0, 3), dtype).shape == (0, 3)


@pytest.mark.parametrize("dtype, value", [("f16", 1 + 2 ** -11), ("f16", 65520.0), ("f16", 1e-9),
                                          ("bf16", 1 + 2 ** -8), ("bf16", 1e-45)])
def test_what_halves_do_not_have_is_refused(dtype: str, value: float) -> None:
    weight = np.ones((3, 4), np.float32)
    weight[2, 1] = value
    with pytest.raises(InputError, match=f"'w' holds values that {dtype} does not have"):
        checked("w", weight, (3, 4), dtype)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("given", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_halves_that_are_not_finite_are_named(bad: float, given: str, dtype: str) -> None:
    weight = np.ones((600, 700), DTYPES[given])
    weight[599, 2] = bad
    with pytest.raises(NumericsError, match=r"'w' holds 1 values.*at \[599, 2\]"):
        checked("w", weight, (600, 700), dtype)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_largest_halves_are_finite(dtype: str) -> None:
    largest = ml_dtypes.finfo(DTYPES[dtype]).max
    weight = np.array([largest, -largest], DTYPES[dtype])
    assert checked("w", weight, (2,), dtype).tobytes() == weight.tobytes()


def test_a_system_without_threads_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    unbound = program()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(DeviceError, match="gives no 2 threads .can't start"):
        unbound.bind(weights().__getitem__)


def test_an_error_of_the_reader_reaches_the_caller() -> None:
    def read(name: str) -> np.ndarray:
        raise InputError(f"the file has no {name}")

    with pytest.raises(InputError, match="the file has no"):
        program().bind(read)


# ---------------------------------------------------------------------- sharing


def of_side(side: int, like: NativeProgram | None = None) -> NativeProgram:
    """A convolution and a product with a weight of 1 MB, for one size of picture."""
    g = Graph("sized")
    x = g.input("x", (1, 16, side, side))
    h = g.apply("conv", x, g.parameter("w", (16, 16, 3, 3)), pads=(1, 1, 1, 1))
    tokens = h.reshape(1, 16, side * side).transpose(0, 2, 1)
    y = g.apply("mat_mul", tokens, g.parameter("large", (16, 16384)))
    g.output("y", y + g.parameter("bias", (16384,)))
    return compile_graph(g, threads=1, like=like)


def sized_weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, np.float32) / 8
            for name, shape in (("w", (16, 16, 3, 3)), ("large", (16, 16384)), ("bias", (16384,)))}


def run_with(side: int, seed: int) -> np.ndarray:
    """What a program of its own computes."""
    alone = of_side(side)
    alone.bind(sized_weights(seed))
    return alone.run({"x": np.ones((1, 16, side, side), np.float32)})["y"]


def test_programs_of_two_shapes_share_what_they_pack_the_same_way() -> None:
    first, values = of_side(4), sized_weights(0)
    first.bind(values)
    second, read = of_side(6, first), Counter()

    def reading(name: str) -> np.ndarray:
        read[name] += 1
        return values[name]

    second.bind(reading, like=first)
    assert not read["large"]
    places = [{s.name: memory.ctypes.data for s, memory in zip(p.module.slots, p._weights)}
              for p in (first, second)]
    assert places[0]["large"] == places[1]["large"]
    for side, program in ((4, first), (6, second)):
        found = program.run({"x": np.ones((1, 16, side, side), np.float32)})["y"]
        np.testing.assert_array_equal(found, run_with(side, 0))


def test_weights_that_differ_are_read_and_all_others_shared() -> None:
    first, values = of_side(4), {**sized_weights(0), "bias": sized_weights(1)["bias"]}
    first.bind(sized_weights(0))
    second, read = of_side(6, first), Counter()

    def reading(name: str) -> np.ndarray:
        read[name] += 1
        return values[name]

    second.bind(reading, like=first, differing=["bias"])
    assert read["bias"] == 1 and not read["large"]
    alone = of_side(6)
    alone.bind(values)
    inputs = {"x": np.ones((1, 16, 6, 6), np.float32)}
    np.testing.assert_array_equal(second.run(inputs)["y"], alone.run(inputs)["y"])
    found = first.run({"x": np.ones((1, 16, 4, 4), np.float32)})["y"]
    np.testing.assert_array_equal(found, run_with(4, 0))


def test_other_weights_in_one_program_leave_those_of_the_other() -> None:
    first, second = of_side(4), of_side(6)
    first.bind(sized_weights(0))
    second.bind(sized_weights(0), like=first)
    inputs = {side: {"x": np.ones((1, 16, side, side), np.float32)} for side in (4, 6)}
    second.run(inputs[6])
    for seed, program in ((1, first), (2, second), (3, second), (4, first)):
        program.bind(sized_weights(seed))
        program.run(inputs[4 if program is first else 6])
    np.testing.assert_array_equal(first.run(inputs[4])["y"], run_with(4, 4))
    np.testing.assert_array_equal(second.run(inputs[6])["y"], run_with(6, 3))
    second.bind(sized_weights(4), like=first)
    first.release()
    np.testing.assert_array_equal(second.run(inputs[6])["y"], run_with(6, 4))


def test_nothing_is_shared_with_a_program_that_has_no_weights() -> None:
    first, second = of_side(4), of_side(6)
    second.bind(sized_weights(0), like=first)
    second.bind(sized_weights(1), like=second)
    found = second.run({"x": np.ones((1, 16, 6, 6), np.float32)})["y"]
    np.testing.assert_array_equal(found, run_with(6, 1))


def test_a_program_leaves_to_another_what_both_hold_and_gives_back_the_rest() -> None:
    first, second = of_side(4), of_side(6)
    first.bind(sized_weights(0))
    inputs = {side: {"x": np.ones((1, 16, side, side), np.float32)} for side in (4, 6)}
    first.run(inputs[4])
    ends = [weakref.ref(array) for array in (first._arena.base, first._weights[0].base)]
    places = {slot.name: memory.ctypes.data
              for slot, memory in zip(first.module.slots, first._weights, strict=True)}
    first.leave_to(second, differing=["bias"])
    assert not first.bound and first._arena is None and ends[0]() is None
    held = {slot.name for slot, memory in zip(first.module.slots, first._weights, strict=True)
            if memory.size}
    assert "large" in held and "bias" not in held
    with pytest.raises(InputError, match="no weights are bound"):
        first.run(inputs[4])
    read: list[str] = []
    values = {**sized_weights(0), "bias": sized_weights(1)["bias"]}
    second.bind(lambda name: read.append(name) or values[name], like=first, differing=["bias"])
    assert "large" not in read and "bias" in read
    assert second._weights[[slot.name for slot in second.module.slots].index("large")].ctypes.data \
        == places["large"]
    alone = of_side(6)
    alone.bind(values)
    np.testing.assert_array_equal(second.run(inputs[6])["y"], alone.run(inputs[6])["y"])
    first.bind(sized_weights(4))  # into memory of its own
    np.testing.assert_array_equal(first.run(inputs[4])["y"], run_with(4, 4))
    np.testing.assert_array_equal(second.run(inputs[6])["y"], alone.run(inputs[6])["y"])


def test_a_program_that_leaves_nothing_is_bound_in_memory_of_its_own() -> None:
    first, second = of_side(4), of_side(6)
    first.bind(sized_weights(0))
    first.leave_to(second, differing=list(second.module.parameters))
    assert not first.bound and first._weights is None
    first.bind(sized_weights(4))
    found = first.run({"x": np.ones((1, 16, 4, 4), np.float32)})["y"]
    np.testing.assert_array_equal(found, run_with(4, 4))


def test_a_program_that_is_not_bound_leaves_nothing() -> None:
    first, second = of_side(4), of_side(6)
    first.leave_to(second)
    second.bind(sized_weights(1), like=first)
    found = second.run({"x": np.ones((1, 16, 6, 6), np.float32)})["y"]
    np.testing.assert_array_equal(found, run_with(6, 1))


# ---------------------------------------------------------------------- some weights only


def packed_bytes(bound: NativeProgram) -> dict[tuple[str, int], bytes]:
    """What lies in each slot."""
    slots = zip(bound.module.slots, bound._weights, strict=True)
    return {(slot.name, number): bytes(memory[:slot.bytes])
            for number, (slot, memory) in enumerate(slots)}


def test_some_weights_are_bound_again_and_all_others_are_left() -> None:
    bound, values, read = of_side(6), sized_weights(0), Counter()
    bound.bind(values)
    before, places = packed_bytes(bound), [memory.ctypes.data for memory in bound._weights]
    bound.run({"x": np.ones((1, 16, 6, 6), np.float32)})

    def reading(name: str) -> np.ndarray:
        read[name] += 1
        return sized_weights(1)[name]

    bound.bind(reading, only=["w", "of another program"])
    assert read == {"w": 1}
    assert places == [memory.ctypes.data for memory in bound._weights]
    changed = {name for key, found in packed_bytes(bound).items() if found != before[key]
               for name in key[:1]}
    assert changed == {"w"}
    mixed = of_side(6)
    mixed.bind({**values, "w": sized_weights(1)["w"]})
    inputs = {"x": np.ones((1, 16, 6, 6), np.float32)}
    np.testing.assert_array_equal(bound.run(inputs)["y"], mixed.run(inputs)["y"])
    bound.bind({"w": values["w"]}, only={"w"})
    assert packed_bytes(bound) == before


def test_binding_some_leaves_the_program_that_shares_them_alone() -> None:
    first, second = of_side(4), of_side(6)
    first.bind(sized_weights(0))
    second.bind(sized_weights(0), like=first)
    second.bind(sized_weights(1), only=["large", "w"])
    found = [program.run({"x": np.ones((1, 16, side, side), np.float32)})["y"]
             for side, program in ((4, first), (6, second))]
    np.testing.assert_array_equal(found[0], run_with(4, 0))
    mixed = of_side(6)
    mixed.bind({**sized_weights(1), "bias": sized_weights(0)["bias"]})
    np.testing.assert_array_equal(
        found[1], mixed.run({"x": np.ones((1, 16, 6, 6), np.float32)})["y"])


def test_what_goes_wrong_leaves_no_half_bound_program() -> None:
    bound, values = of_side(6), sized_weights(0)
    with pytest.raises(InputError, match="no weights are bound"):
        bound.bind(values, only=["w"])
    bound.bind(values)
    with pytest.raises(NumericsError, match="'w' holds"):
        bound.bind({"w": np.full((16, 16, 3, 3), np.nan, np.float32)}, only=["w"])
    with pytest.raises(InputError, match="no weights are bound"):
        bound.run({"x": np.ones((1, 16, 6, 6), np.float32)})


# ---------------------------------------------------------------------- packing


def packed_by_numpy(weight: np.ndarray, p: WeightPanels) -> np.ndarray:
    """[panel][chunk][r][s][c][o], or [panel][point][c][o] with Winograd."""
    full = np.zeros((p.panels * p.width, p.chunks * p.chunk, p.rows, p.columns), np.float64)
    full[:p.out_channels, :p.channels] = weight
    if p.winograd:
        g = np.array(p.transform.weights)
        points = np.einsum("ir,ocrs,js->ocij", g, full, g)
        return points.reshape(p.panels, p.width, p.chunks * p.chunk, -1).transpose(0, 3, 2, 1)
    return full.reshape(p.panels, p.width, p.chunks, p.chunk, p.rows, p.columns).transpose(
        0, 2, 4, 5, 3, 1)


def packed_by_code(stored: np.ndarray, order: list[int], p: WeightPanels,
                   name: str, source: str) -> np.ndarray:
    """From an array of the dtype `source` whose axes are o, c, r and s in another order."""
    target, held = Block(p.bytes), Block(stored.nbytes + BEHIND_BYTES)
    held.bytes[:stored.nbytes] = stored.reshape(-1).view(np.uint8)
    strides = tuple(stored.strides[i] // stored.itemsize for i in np.argsort(order))
    step = lower_packing(p, strides, level(name), source)
    run_steps(name, (step,), [held.bytes, target.bytes])
    target.check("packing")
    return target.bytes


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bf16, ties to even, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@examples(2 * EXAMPLES)
@given(st.integers(1, 70), st.sampled_from([1, 2, 3, 7, 8, 16, 20]), st.integers(1, 3),
       st.sampled_from([1, 2, 4]), st.sampled_from([0, 2, 4]), st.permutations(range(4)),
       st.sampled_from(LEVELS), st.sampled_from(["f32", "f16", "bf16"]), st.booleans(),
       st.booleans())
def test_packing(out: int, channels: int, window: int, vectors: int, winograd: int,
                 order: list[int], name: str, source: str, pairs: bool, folded: bool) -> None:
    dtype = "f32" if winograd else "bf16" if pairs else source
    window = 3 if winograd else window
    step = 8 if dtype == "bf16" else 4
    chunk = 8 if channels % 8 == 0 else -(-channels // step) * step
    p = WeightPanels("weight", out, channels, window, window, vectors * level(name).lanes, chunk,
                     dtype, winograd, folded and winograd > 0)
    shape = (out, channels, window, window)
    stored = np.random.default_rng(out).standard_normal([shape[i] for i in order], np.float32)
    stored = stored.astype(DTYPES[source])
    weight = stored.transpose(np.argsort(order)).astype(np.float32)
    expected, found = packed_by_numpy(weight, p), packed_by_code(stored, order, p, name, source)
    if dtype == "bf16":
        halves = to_bf16(expected).reshape(*expected.shape[:4], chunk // 2, 2, p.width)
        np.testing.assert_array_equal(found.view(np.uint16),
                                      np.moveaxis(halves, 5, 6).reshape(-1))
        return
    np.testing.assert_allclose(found.view(DTYPES[dtype]), expected.reshape(-1), rtol=1e-5,
                               atol=1e-6)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_what_is_rounded_to_codes_is_finite(dtype: str) -> None:
    numbers = np.ones((300, 4, 8), np.float64).astype(
        np.float64 if dtype == "f64" else DTYPES[dtype])
    assert checked("w", numbers, numbers.shape, "q8").shape == (300, 9)
    numbers[250, 3, 1] = np.inf
    with pytest.raises(NumericsError, match=r"'w' holds 1 values .* \[250, 3, 1\]"):
        checked("w", numbers, numbers.shape, "q8")
