"""Weights of 4 bits: what bitsandbytes wrote, read number by number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from smalti.checkpoint.container import open_tensors
from smalti.errors import CheckpointError
from smalti.runtime.tensor_file import MappedTensors, Tensors

NF4 = np.float32([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0])
STATE = "a.weight.quant_state.bitsandbytes__nf4"
RANDOM = np.random.default_rng(0)


def state(**changes: object) -> np.ndarray:
    stated = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [5, 35]}
    return np.frombuffer(json.dumps({**stated, **changes}).encode(), np.uint8)


def table(nested: bool) -> dict[str, np.ndarray]:
    """175 numbers in three blocks."""
    found = {"a.weight": RANDOM.integers(0, 256, (88, 1), np.uint8), "a.weight.quant_map": NF4,
             "a.weight.absmax": np.float32([1, 2, 3]), "a.bias": NF4, STATE: state()}
    if nested:
        found |= {"a.weight.absmax": np.uint8([0, 7, 255]),
                  "a.weight.nested_quant_map": np.linspace(-1, 1, 256, dtype=np.float32),
                  "a.weight.nested_absmax": np.float32([0.5, 4]),
                  STATE: state(nested_blocksize=2, nested_offset=0.25)}
    return found


def opened(folder: Path, tensors: dict[str, np.ndarray]) -> Tensors:
    save_file(tensors, folder / "x.safetensors")
    return open_tensors(folder / "x.safetensors")


def test_what_bitsandbytes_wrote(tmp_path: Path) -> None:
    """quantize_4bit of bitsandbytes 0.50 for (-3.3, -2.3, ..., 3.7), and what it makes of that."""
    file = opened(tmp_path, {
        "a.weight": np.frombuffer(bytes.fromhex("01369cef"), np.uint8).reshape(-1, 1),
        "a.weight.quant_map": NF4, "a.weight.absmax": np.float32([3.7]), STATE: state(shape=[8])})
    np.testing.assert_allclose(file.read("a.weight"), [
        -3.7, -2.5759134, -1.4611948, -0.3368851, 0.5954418, 1.6306264, 2.6749403, 3.7], rtol=1e-6)


@pytest.mark.parametrize("nested", [False, True])
def test_each_number(tmp_path: Path, nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = table(nested)
    file = opened(tmp_path, tensors)
    assert set(file) == {"a.weight", "a.bias"} and file.shape("a.weight") == (5, 35)
    assert file.dtype("a.weight") == "NF4"
    scales = tensors["a.weight.absmax"]
    if nested:
        scales = [tensors["a.weight.nested_quant_map"][place]
                  * tensors["a.weight.nested_absmax"][number // 2] + 0.25
                  for number, place in enumerate(scales)]
    expected = []
    for number in range(175):
        byte = int(tensors["a.weight"][number // 2, 0])
        expected.append(NF4[byte & 15 if number % 2 else byte >> 4] * scales[number // 64])
    np.testing.assert_allclose(file.read("a.weight").reshape(-1), expected, rtol=1e-6)
    np.testing.assert_array_equal(file.read("a.bias"), NF4)
    file.drop("a.weight")
    assert bytes(file.raw("a.weight")) == tensors["a.weight"].tobytes()
    asked: list[str] = []
    monkeypatch.setattr(MappedTensors, "ahead", lambda _, names: asked.extend(names))
    file.ahead(["a.weight"])
    assert {*asked} == {*tensors} - {"a.bias"}  # with its scales


@pytest.mark.parametrize(("changes", "said"), [
    ({STATE: state(shape=[5, 36])}, "expected 90 of U8"), ({STATE: state(shape=None)}, "no shape"),
    ({STATE: state(shape=[-1])}, "no shape"), ({STATE: state(blocksize=0)}, "sizes of blocks"),
    ({STATE: state(blocksize="64")}, "sizes of blocks"),
    ({STATE: state(nested_blocksize=256)}, "absmax"),
    ({STATE: state(nested_offset=10**400)}, "sizes of blocks"),
    ({STATE: np.zeros(3, np.uint8)}, "no JSON"), ({STATE: NF4}, "no short JSON"),
    ({"a.weight.quant_map": NF4[:15]}, "expected 16 of floats"),
    ({"a.weight.absmax": None}, "is missing"), ({"a.weight": None}, "is missing")])
def test_damage_is_named(tmp_path: Path, changes: dict, said: str) -> None:
    tensors = {**table(False), **changes}
    with pytest.raises(CheckpointError, match=said):
        opened(tmp_path, {name: value for name, value in tensors.items() if value is not None})
