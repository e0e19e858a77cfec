"""The interpreter: cut into kernels, a graph means what it meant before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from examples import examples
from graph_strategies import arrays_for, graphs
from hypothesis import given
from kernel_strategies import GRAPHS, inputs_for

from smalti.errors import InputError, VerificationError
from smalti.fuse import View, partition
from smalti.fuse.view import Storage
from smalti.graph import Graph, evaluate
from smalti.graph.operation import DTYPES
from smalti.kernel.form import Buffer, Call, Const, Kernel, Load, Stage, axis
from smalti.kernel.interpreter import run
from smalti.kernel.text import parse
from smalti.kernel.verifier import verify
from smalti.rewrite import rewrite

Arrays = dict[str, np.ndarray]


class Memory:
    """An array behind every storage; what nobody wrote is NaN."""

    def __init__(self, parameters: Arrays) -> None:
        self.parameters = parameters
        self.arrays: dict[Storage, np.ndarray] = {}

    def see(self, view: View) -> np.ndarray:
        """The elements of a view, in place."""
        storage = view.storage
        if storage not in self.arrays:
            given = {"constant": storage.data, "parameter": self.parameters.get(storage.name)}
            data = given.get(storage.kind)
            empty = np.full(storage.size, np.nan if storage.dtype == "f32" else -1,
                            DTYPES[storage.dtype])
            self.arrays[storage] = empty if data is None else data.reshape(-1).copy()
        flat = self.arrays[storage]
        return np.lib.stride_tricks.as_strided(
            flat[view.offset:], view.shape, [flat.itemsize * stride for stride in view.strides])


def evaluate_cut(graph: Graph, inputs: Arrays, parameters: Arrays) -> Arrays:
    """Outputs of a graph, computed kernel by kernel."""
    result, memory = partition(graph), Memory(parameters)
    for name, view in result.inputs.items():
        memory.see(view)[...] = inputs[name]
    for region in result.regions:
        verify(region.kernel, "partition")
        seen = {name: memory.see(view) for name, view in region.views.items()}
        for name, array in run(region.kernel, seen).items():
            seen[name][...] = array
    return {name: memory.see(view) for name, view in result.outputs.items()}


@pytest.mark.parametrize("build", GRAPHS)
def test_the_kernels_of_a_model_mean_what_its_graph_means(build: Callable[[], Graph]) -> None:
    graph = build()
    inputs, parameters = inputs_for(graph), arrays_for(graph)[1]
    expected, found = evaluate(graph, inputs, parameters), evaluate_cut(graph, inputs, parameters)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=2e-5, err_msg=name)


@examples(60)
@given(graphs())
def test_the_kernels_of_random_graphs_mean_the_same(graph: Graph) -> None:
    inputs, parameters = arrays_for(graph)
    expected = evaluate(graph, inputs, parameters)
    found = evaluate_cut(rewrite(graph), inputs, parameters)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5,
                                   err_msg=f"{name} of\n{graph}")


def interpreted(text: str, **arrays: np.ndarray) -> np.ndarray:
    return run(parse(text), arrays)["out"]


X = np.arange(12, dtype=np.float32).reshape(3, 4)
HEAD = "input x: f32[3, 4] strides [4, 1]"


def test_sum_and_max_over_several_axes() -> None:
    text = f"kernel map {{ {HEAD} output out: f32[] out[] = max over i < 3, j < 4 of x[i, j] }}"
    assert interpreted(text, x=X) == 11
    assert interpreted(text.replace("max over", "sum over"), x=X - 7) == -18


def test_a_guard_gives_zero_and_reads_nothing() -> None:
    text = (f"kernel map {{ {HEAD} output out: f32[5, 4] strides [4, 1] "
            f"out[i < 5, j < 4] = x[i - 1, j] + 1 where 0 <= i - 1 < 3 }}")
    assert interpreted(text, x=X).tolist() == [[0] * 4, *(X + 1).tolist(), [0] * 4]
    with pytest.raises(VerificationError, match="x .*is read from -1 to 2 by\nout"):
        interpreted(text.replace("i - 1 < 3", "i < 4"), x=X)


def test_a_divided_index_repeats_and_a_table_is_looked_up() -> None:
    text = (f"kernel map {{ {HEAD} input ids: i32[2] strides [1] "
            f"output out: f32[2, 8] strides [8, 1] out[i < 2, j < 8] = x[ids[i], j // 2] }}")
    text = text.replace("j // 2", "(j) // 2")
    ids = np.array([2, 0], np.int32)
    assert interpreted(text, x=X, ids=ids).tolist() == np.repeat(X[ids], 2, axis=1).tolist()
    with pytest.raises(VerificationError, match="from 0 to 3"):
        interpreted(text, x=X, ids=np.array([3, 0]))


def test_a_result_that_depends_on_fewer_axes_is_repeated() -> None:
    text = (f"kernel map {{ {HEAD} output out: f32[3, 4] strides [4, 1] local row: f32[3] "
            f"row[i < 3] = sum over j < 4 of 1 out[i < 3, j < 4] = row[i] * 2 }}")
    assert interpreted(text, x=X).tolist() == [[8] * 4] * 3


def test_wrong_arrays_are_named() -> None:
    kernel = parse(f"kernel map {{ {HEAD} output out: f32[] out[] = x[0, 0] }}")
    with pytest.raises(InputError, match="'x' of the kernel is missing"):
        run(kernel, {})
    with pytest.raises(InputError, match=r"'x' is \(4, 3\), expected \(3, 4\)"):
        run(kernel, {"x": X.T})


def test_what_is_stored_as_bf16_is_rounded_once() -> None:
    x, half = Buffer("x", "input", (4,), (1,)), Buffer("half", "output", (4,), (1,), "bf16")
    out = Buffer("out", "output", (4,), (1,))
    at = (axis("i"),)
    stages = (Stage("half", (("i", 4),), Call("mul", (Load("x", at), Const(1.0)))),
              Stage("out", (("i", 4),), Call("sub", (Load("half", at), Load("x", at)))))
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-9, np.nan], np.float32)
    found = run(Kernel("map", (x, half, out), stages), {"x": values})
    np.testing.assert_array_equal(found["half"], [1, 1 + 2**-6, -1, np.nan])
    np.testing.assert_array_equal(found["out"], [-2**-8, 2**-8, 2**-9, np.nan])
