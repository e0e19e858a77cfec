"""Modules: to bytes and back, and bytes that are no module."""

from __future__ import annotations

import numpy as np
import pytest
from built_modules import built

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.compiler.encode import HEADER, MAGIC, from_bytes, to_bytes
from smalti.compiler.module import Module, Place, array_at
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.runtime.cpu.program import NativeProgram


@pytest.fixture(scope="module")
def module() -> Module:
    g = Graph("kept")
    x, i = g.input("x", (2, 8, 4, 4)), g.input("i", (2,), "i32")
    with g.scope("block"):
        h = g.apply("conv", x, g.parameter("w", (8, 8, 3, 3)), pads=(1, 1, 1, 1))
        h = g.apply("group_normalization", h, g.parameter("s", (8,)), g.parameter("b", (8,)),
                    num_groups=2)
    t = g.apply("gather", g.parameter("table", (5, 8)), i).reshape(2, 8, 1, 1)
    g.output("y", h + t * g.constant(np.arange(4, dtype=np.float32)))
    return built(g, level("avx2"), limits(level("avx2")), "f32")


def test_bytes_give_the_same_module(module: Module) -> None:
    data = to_bytes(module)
    again = from_bytes(data)
    assert again == module
    assert to_bytes(again) == data
    assert again.constants == np.arange(4, dtype=np.float32).tobytes()
    assert again.rows == {"i": 5}


def test_a_module_from_bytes_runs(module: Module) -> None:
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((2, 8, 4, 4), np.float32), "i": np.array([1, 4], np.int32)}
    outputs = []
    for each in (module, from_bytes(to_bytes(module))):
        program = NativeProgram(each, 1)
        program.bind(lambda name: np.random.default_rng(len(name)).standard_normal(
            module.parameters[name]).astype(np.float32))
        outputs.append(program.run(inputs)["y"])
    assert np.isfinite(outputs[0]).all() and outputs[0].std() > 0.1
    np.testing.assert_array_equal(*outputs)


def test_bytes_that_are_cut_off_anywhere_are_refused(module: Module) -> None:
    data = to_bytes(module)
    _, _, text, code, _ = HEADER.unpack_from(data)
    ends = [HEADER.size, HEADER.size + text, HEADER.size + text + code, len(data)]
    places = {*range(HEADER.size + 2), *range(0, len(data), 997)}
    places |= {end + by for end in ends for by in (-1, 0, 1)}
    for length in sorted(places - {len(data)}):
        with pytest.raises(InputError, match="compile it again"):
            from_bytes(data[:length] if length < len(data) else data + b"\0")


def test_any_damaged_byte_is_noticed(module: Module) -> None:
    data = bytearray(to_bytes(module))
    for place in [*range(HEADER.size), *range(HEADER.size, len(data), 211), len(data) - 1]:
        data[place] ^= 0x10
        with pytest.raises(InputError, match="compile it again"):
            from_bytes(bytes(data))
        data[place] ^= 0x10
    assert from_bytes(bytes(data)) == module


@pytest.mark.parametrize("data", [b"", b"\0" * 500, MAGIC, MAGIC + b"\xff" * 200,
                                  b"PK\3\4" + b"\0" * 100])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="compile it again"):
        from_bytes(data)


@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_array_at_is_a_window_on_the_memory(dtype: str) -> None:
    memory = np.zeros(100, np.uint8)
    window = array_at(memory, Place(8, (2, 3), (4, 8), dtype))
    window[...] = np.arange(6).reshape(2, 3)
    assert memory[8:32].view(window.dtype).tolist() == [0, 3, 1, 4, 2, 5]
    assert not memory[32:].any()


def test_what_a_region_overwrites() -> None:
    # both convolutions take two steps, which are given the same buffers: their input's transform
    # for all threads, then products; the second one adds to the first's result where that lies
    g = Graph("steps")
    x = g.input("x", (1, 32, 12, 12))
    sums = [g.apply("conv", x, g.parameter(name, (32, 32, 3, 3)), pads=(1, 1, 1, 1))
            for name in "wv"]
    g.output("y", sums[0] + sums[1])
    module = built(g, level("avx2"), limits(level("avx2"), 2), "f32")
    spans = [module.span(region) for region in range(2)]
    assert [last - first for first, last in spans] == [2, 2]
    assert [module.overwrites(*span, place) for span, info in zip(spans, module.regions)
            for place in info.results] == [False, True]
