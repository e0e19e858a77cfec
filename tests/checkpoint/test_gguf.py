"""What is written as GGUF reads back."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np
import pytest
from gguf_reader import read_gguf
from hypothesis import given
from hypothesis import strategies as st

from smalti.checkpoint.gguf import NUMPY_TYPES, GgufTensor, write_gguf
from smalti.errors import InputError


def written(entries: dict, tensors: list[GgufTensor]) -> bytes:
    stream = io.BytesIO()
    write_gguf(stream, entries, tensors)
    return stream.getvalue()


def tensor(name: str, array: np.ndarray, dtype: str = "f32") -> GgufTensor:
    return GgufTensor(name, array.shape, dtype, lambda: array)


def test_entries_read_back() -> None:
    entries = {"general.name": "größe", "n": 2**32 - 1, "names": ["a", "", "b\n"], "none": []}
    assert read_gguf(written(entries, []))[0] == entries


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_every_dtype_reads_back(dtype: str) -> None:
    array = np.arange(-3, 3).reshape(2, 3)
    _, found = read_gguf(written({}, [tensor("x", array, dtype)]))
    kind = ml_dtypes.bfloat16 if dtype == "bf16" else np.dtype(NUMPY_TYPES[dtype])
    assert found["x"].dtype == kind and (found["x"].astype(float) == array).all()


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(st.lists(shapes, max_size=4))
def test_tensors_read_back(given_shapes: list[tuple[int, ...]]) -> None:
    arrays = {f"t{i}": np.random.default_rng(i).standard_normal(shape, np.float32)
              for i, shape in enumerate(given_shapes)}
    data = written({"a": 1}, [tensor(name, array) for name, array in arrays.items()])
    _, found = read_gguf(data)
    assert len(data) % 32 == 0
    for name, array in arrays.items():
        assert (found[name] == array.reshape(found[name].shape)).all()
        assert found[name].shape == (array.shape or (1,))


def test_arrays_in_any_order_are_written_row_after_row() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    _, found = read_gguf(written({}, [tensor("x", array)]))
    assert found["x"].tolist() == array.tolist()


def test_one_tensor_at_a_time_is_read() -> None:
    stream = io.BytesIO()
    reached = []

    def read(number: int) -> np.ndarray:
        reached.append(stream.tell())
        return np.full(64, number, np.float32)

    write_gguf(stream, {}, [GgufTensor(f"t{i}", (64,), "f32", lambda i=i: read(i))
                            for i in range(3)])
    assert np.diff(reached).tolist() == [256, 256]


@pytest.mark.parametrize(("tensors", "said"), [
    ([tensor("", np.zeros(1))], "is named ''"),
    ([tensor("é" * 32, np.zeros(1))], "1 to 63 bytes"),
    ([tensor("x", np.zeros(1)), tensor("x", np.zeros(1))], "each for one tensor"),
    ([tensor("x", np.zeros((1,) * 5))], "at most 4 dimensions"),
    ([tensor("x", np.zeros(1), "q4_0")], "q4_0"),
    ([GgufTensor("x", (2, 3), "f32", lambda: np.zeros((3, 2)))], "(2, 3) was announced"),
])
def test_what_gguf_cannot_hold_is_refused(tensors: list[GgufTensor], said: str) -> None:
    with pytest.raises(InputError) as caught:
        written({}, tensors)
    assert said in str(caught.value)
