"""Block formats: layouts from ggml's sources, checked number by number, and against `gguf`."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.checkpoint.blocks import FORMATS, dequantise, held


def blocks(name: str, count: int) -> np.ndarray:
    """Random blocks with sensible scales."""
    random, format = np.random.default_rng(0), FORMATS[name]
    raw = random.integers(0, 256, (count, format.bytes), np.uint8)
    view = raw.reshape(-1).view(format.record)
    for field in {"d", "m"} & set(format.record.names):
        view[field] = random.standard_normal(count).astype(np.float16)
    if "e" in format.record.names:
        view["e"] = random.integers(100, 140, count)
    return raw


def test_q4_0_by_hand() -> None:
    raw = np.zeros(18, np.uint8)
    raw[:2] = np.float16([0.5]).view(np.uint8)
    raw[2:] = range(0x00, 0x100, 0x10)  # low four bits are numbers 0..15, high ones 16..31
    raw[3] |= 0x0F
    values = dequantise("Q4_0", raw)
    assert values[0] == -4 and values[1] == 3.5 and values[2] == -4
    np.testing.assert_array_equal(values[16:], np.arange(-8, 8) * 0.5)


def test_q4_k_by_hand() -> None:
    format = FORMATS["Q4_K"]
    block = np.zeros(1, format.record)
    block["d"], block["m"] = 0.25, 0.5
    # scale of part 5 is 0b10_0011, least 0b01_1100: 4 bits in byte 9, 2 above those of part 1
    block["s"][0, [1, 5, 9]] = 0b10_000000, 0b01_000000, 0b1100_0011
    block["q"] = 0x21
    values = dequantise("Q4_K", block.view(np.uint8)).reshape(8, 32)
    assert (values[5] == 0.25 * 0b100011 * 2 - 0.5 * 0b011100).all()
    assert (values[[0, 1, 2, 3, 4, 6, 7]] == 0).all()


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_are_decoded_one_by_one(name: str) -> None:
    raw = blocks(name, 20_000 if name == "Q8_0" else 30)
    each = [dequantise(name, block) for block in raw[-5:]]
    assert each[0].shape == (FORMATS[name].elements,)
    np.testing.assert_array_equal(dequantise(name, raw).reshape(len(raw), -1)[-5:], each)


@pytest.mark.parametrize("name", FORMATS)
def test_what_programs_hold_are_the_same_numbers(name: str) -> None:
    raw = blocks(name, 20_000 if name == "Q8_0" else 30)
    shape = (len(raw), FORMATS[name].elements)
    found = held(name, raw, shape)
    assert found.shape == shape and found.dtype == FORMATS[name].held
    np.testing.assert_array_equal(found.floats(), dequantise(name, raw).reshape(shape))


@pytest.mark.peers
@pytest.mark.parametrize("name", FORMATS)
def test_against_gguf(name: str) -> None:
    import gguf

    kind, raw = gguf.GGMLQuantizationType[name], blocks(name, 100)
    assert gguf.GGML_QUANT_SIZES[kind] == (FORMATS[name].elements, FORMATS[name].bytes)
    assert kind.value == FORMATS[name].id
    np.testing.assert_array_equal(dequantise(name, raw), gguf.dequantize(raw, kind).reshape(-1))
