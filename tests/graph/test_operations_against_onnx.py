"""Operations of the wide rest of ONNX against the reference that ONNX itself has.

Each case is run with numpy here, and as a model of one node there.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx.reference.ops.op_cast import cast_to
from onnx_operations import CASES, IMAGE, REFUSED, X345, Case, graph_of, layer, numbers, rows

from smalti.errors import InputError
from smalti.graph import OPERATIONS, Graph, evaluate, parse, verify
from smalti.graph.operation import DTYPES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meaning(case: Case) -> None:
    g, inputs = graph_of(case)
    verify(g)
    assert str(parse(str(g))) == str(g)
    found = evaluate(g, inputs, {})["y"]
    assert found.shape == g.outputs["y"].shape
    found = found if case.picked is None else found[case.picked]
    expected = case.expected()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


# ---------------------------------------------------------------- without an equal there


def test_resample_is_a_matrix_along_an_axis() -> None:
    places, weights = rows(4, 6, 3), numbers(6, 3)
    matrix = np.zeros((6, 4), np.float32)
    np.add.at(matrix, (np.arange(6)[:, None], places), weights)
    g = Graph()
    g.output("y", g.apply("resample", g.input("x", X345.shape), g.constant(places),
                          g.constant(weights), axis=1))
    np.testing.assert_allclose(evaluate(g, {"x": X345}, {})["y"], matrix @ X345, rtol=1e-5,
                               atol=1e-5)


@pytest.mark.parametrize("align", [0, 1])
def test_cubic_samples_see_the_border_go_on(align: int) -> None:
    """As PyTorch and ONNX Runtime have it; ONNX's reference moves the place of a sample, too."""
    x, around = numbers(1, 2, 5, 6), 4
    pixels = np.array([[-2.3, 7.2], [0.4, -0.7], [4.9, 5.6], [2.5, 2.25]])  # rows, columns
    extents = np.array(x.shape[2:])

    def sampled(image: np.ndarray, at: np.ndarray, extents: np.ndarray, padding: str) -> np.ndarray:
        grid = 2 * at / (extents - 1) - 1 if align else (2 * at + 1) / extents - 1
        return OPERATIONS["grid_sample"].meaning(
            image, grid[None, None, :, ::-1].astype(np.float32), mode="cubic",
            padding_mode=padding, align_corners=align)

    whole = np.pad(x, ((0, 0), (0, 0), (around, around), (around, around)), "edge")
    np.testing.assert_allclose(
        sampled(x, pixels, extents, "border"),
        sampled(whole, pixels + around, extents + 2 * around, "zeros"), rtol=1e-4, atol=1e-5)


def test_regions_are_scaled_in_their_own_precision() -> None:
    """5 * 0.8 is 4 in f32, so that half of it has two samples; in f64 it would have three."""
    x, scale = numbers(1, 1, 6, 6), float(np.float32(0.8))
    regions = np.array([[0, 0, 5, 5]], np.float32)
    fields = {"output_height": 2, "output_width": 2, "mode": "avg", "half_pixel": 0}
    found, expected = (OPERATIONS["roi_align"].meaning(
        x, regions, np.array([0]), spatial_scale=scale, sampling_ratio=samples, **fields)
        for samples in (0, 2))
    np.testing.assert_array_equal(found, expected)


def test_max_roi_pool_takes_corners_with_it() -> None:
    x = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)
    regions = np.array([[0, 0, 0, 3, 3], [0, 2, 4, 2, 4], [0, 20, 20, 30, 30]], np.float32)
    found = OPERATIONS["max_roi_pool"].meaning(x, regions, output_height=2, output_width=2,
                                               spatial_scale=1.0)
    assert found[:, 0].tolist() == [[[9, 11], [25, 27]], [[34, 34], [34, 34]], [[0, 0], [0, 0]]]


def test_places_of_maxima_count_through_the_whole_input() -> None:
    x = numbers(2, 3, 5, 6)
    window = {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 1),
              "dilations": (1, 2), "ceil_mode": 1}
    best = OPERATIONS["max_pool"].meaning(x, **window)
    places = OPERATIONS["max_pool_indices"].meaning(x, **window, storage_order=0)
    np.testing.assert_array_equal(x.reshape(-1)[places], best)
    turned = OPERATIONS["max_pool_indices"].meaning(x, **window, storage_order=1)
    np.testing.assert_array_equal(x.swapaxes(2, 3).reshape(-1)[turned], best)


@pytest.mark.parametrize("to", ["f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts_to_eight_bits_saturate_when_asked(to: str, saturate: int) -> None:
    x = np.array([0, 0.3, -1.5, 448, 449, 6e4, -7e4, 1e38, np.inf, np.nan], np.float32)
    x = np.abs(x) if to == "f8e8m0" else x
    found = OPERATIONS["cast"].meaning(x, to, saturate=saturate, round_mode="nearest")
    element = getattr(TensorProto, to.replace("f8", "FLOAT8").upper())
    expected = cast_to(x, element, bool(saturate), "nearest")
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


@pytest.mark.sampled
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("to", DTYPES)
def test_every_dtype_can_be_cast_to_every_other(source: str, to: str) -> None:
    x = np.array([1, 0, 1]) if "f8e8m0" not in (source, to) else np.array([1, 1])
    found = OPERATIONS["cast"].meaning(x.astype(np.float32).astype(DTYPES[source]), to,
                                       saturate=1, round_mode="up")
    assert found.dtype == DTYPES[to]
    assert found.astype(np.float32).tolist() == x.tolist()


@pytest.mark.parametrize(("x", "to", "expected"), [
    (np.array([1.0, -2.0], np.float32), "u32", [0x3F800000, 0xC0000000]),
    (np.array([255, 1], np.uint8), "i8", [-1, 1]), (np.array([True, False]), "u8", [1, 0]),
])
def test_bit_cast_keeps_the_bits(x, to, expected) -> None:
    g = Graph()
    assert g.apply("bit_cast", g.constant(x), to=to).dtype == to
    assert OPERATIONS["bit_cast"].meaning(x, to).tolist() == expected


def recurrent(case: Case, arrays: tuple[np.ndarray, ...], **changes: Any) -> np.ndarray:
    operation = OPERATIONS[case.operation]
    return operation.meaning(*arrays, **operation.complete({**case.attributes, **changes}))


LAYERS = {"rnn": layer("rnn", 1, "bidirectional", ("tanh",)),
          "gru": layer("gru", 3, "bidirectional", ("sigmoid", "tanh")),
          "lstm": layer("lstm", 4, "bidirectional", ("sigmoid", "tanh", "tanh"))}


@pytest.mark.parametrize("name", LAYERS)
def test_the_second_direction_runs_from_the_end(name: str) -> None:
    """Both directions equal a forward and a reverse layer; reverse is forward of reversed steps."""
    case = LAYERS[name]
    x, w, r, b, _, *rest = case.arrays
    lengths = np.array([4, 2], np.int32)
    both = recurrent(case, (x, w, r, b, lengths, *rest))
    half = {key: case.attributes[key][:len(case.attributes[key]) // 2]
            for key in ("activations", "alphas", "betas")}
    for d, direction in enumerate(("forward", "reverse")):
        part = [a[d:d + 1] for a in (w, r, b)]
        single = recurrent(case, (x, *part, lengths, *(a[d:d + 1] for a in rest)),
                           direction=direction, **half)
        np.testing.assert_array_equal(both.take([d], -3), single)
        if direction == "reverse":
            turned = x.copy()
            turned[:4, 0], turned[:2, 1] = x[3::-1, 0], x[1::-1, 1]
            forward = recurrent(case, (turned, *part, lengths, *(a[d:d + 1] for a in rest)),
                                direction="forward", **half)
            time = forward.ndim - 4
            np.testing.assert_array_equal(np.flip(forward, time).take(0, -2), single.take(0, -2))
            assert not np.any(single.take([2, 3], time).take(1, -2))


def test_lengths_cut_a_sequence_and_leave_zeros() -> None:
    case = layer("gru", 3, "forward", ("sigmoid", "tanh"))
    x, w, r, b, _, h = case.arrays
    short = recurrent(case, (x, w, r, b, np.array([2, 3]), h))
    full = recurrent(case, (x, w, r, b, np.array([4, 4]), h))
    np.testing.assert_array_equal(short[:2, :, 0], full[:2, :, 0])
    np.testing.assert_array_equal(short[:3, :, 1], full[:3, :, 1])
    assert not short[2:, :, 0].any() and not short[3:, :, 1].any()
    with pytest.raises(InputError, match="lengths 2 to 5 of 4 steps"):
        recurrent(case, (x, w, r, b, np.array([2, 5]), h))


def test_clip_bounds_what_activations_see() -> None:
    case = layer("rnn", 1, "forward", ("affine",))
    found = recurrent(case, case.arrays, clip=0.25, alphas=(2.0,), betas=(1.0,))
    assert found.min() == 0.5 and found.max() == 1.5


@pytest.mark.parametrize(("operation", "arrays", "attributes", "words"), [
    ("gather_elements", (X345, np.full((3, 4, 5), 4)), {"axis": 1}, "indices 4 to 4 are asked"),
    ("scatter_nd", (X345, np.array([[-4]]), numbers(1, 4, 5)), {}, "indices -4 to -4 are asked"),
    ("gather_nd", (X345, np.array([[0, 4]])), {}, "indices 4 to 4 are asked of 4"),
    ("reverse_sequence", (X345, np.array([4, 0, 0, 0])), {}, "lengths up to 4 of sequences of 3"),
    ("roi_align", (IMAGE, np.array([[0, 0, 1e9, 1]], np.float32), np.array([0])), {},
     "more samples than memory"),
])
def test_values_that_do_not_fit_are_refused(operation, arrays, attributes, words) -> None:
    g = Graph()
    values = [g.constant(a) for a in arrays]
    g.output("y", g.apply(operation, *values, **attributes))
    with pytest.raises(InputError, match=re.escape(words)):
        evaluate(g, {}, {})


@pytest.mark.parametrize(("operation", "shapes", "attributes", "words"), REFUSED, ids=str)
def test_what_does_not_fit_is_refused(operation, shapes, attributes, words) -> None:
    g = Graph()
    values = []
    for number, shape in enumerate(shapes):
        dtype, extents = (shape[0], shape[1:]) if isinstance(shape[0], str) else ("f32", shape)
        values.append(g.input(f"x{number}", extents, dtype))
    with pytest.raises(InputError) as caught:
        g.apply(operation, *values, **attributes)
    assert words in str(caught.value)
    assert not g.nodes
