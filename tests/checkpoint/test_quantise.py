"""Numbers as blocks: as ggml itself makes them, and as near as the formats allow."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from ggml_builds import built_ggml

from smalti.checkpoint.blocks import FORMATS, dequantise
from smalti.checkpoint.quantise import ENCODERS, quantise

ERRORS = {"Q8_0": 0.0055, "Q6_K": 0.018, "Q5_1": 0.039, "Q5_0": 0.044, "Q5_K": 0.037,
          "Q4_1": 0.080, "Q4_0": 0.088, "Q4_K": 0.073}
"""Relative error of normally distributed numbers, in the norm."""


def numbers() -> np.ndarray:
    """Normal numbers, then blocks of nothing, of one number, of one sign, and of an outlier."""
    random = np.random.default_rng(0)
    found = random.standard_normal((64, 256)).astype(np.float32) * np.float32(0.05)
    found[48:50] = 0
    found[50:52] = 3
    found[52:54] = np.abs(found[52:54])
    found[54:56] = -np.abs(found[54:56])
    found[56:58, 77] = 100
    return found


@pytest.mark.parametrize("name", ENCODERS)
def test_the_error_is_that_of_the_format(name: str) -> None:
    values = numbers()
    raw = quantise(name, values)
    assert raw.size == values.size // FORMATS[name].elements * FORMATS[name].bytes
    found = dequantise(name, raw).reshape(values.shape)
    error = np.linalg.norm(found[:48] - values[:48]) / np.linalg.norm(values[:48])
    assert 0.5 * ERRORS[name] < error < ERRORS[name]
    assert (found[48:50] == 0).all() and np.abs(found[50:52] - 3).max() < 2e-3
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", ENCODERS)
def test_blocks_are_made_one_by_one(name: str) -> None:
    values = np.random.default_rng(1).standard_normal((300, 256)).astype(np.float32)
    whole = quantise(name, values)
    assert bytes(quantise(name, values[-2:])) == bytes(whole[-len(whole) // 150:])


@pytest.mark.peers
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_against_gguf(name: str) -> None:
    import gguf

    values = numbers()
    expected = gguf.quantize(values, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(quantise(name, values), expected.reshape(-1))


PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <vector>
#include "ggml.h"
int main(int, char ** words) {
    ggml_type type = (ggml_type) atoi(words[1]);
    std::vector<float> values(atol(words[2]));
    std::vector<char> blocks(ggml_row_size(type, values.size()));
    FILE * in = fopen(words[3], "rb"), * out = fopen(words[4], "wb");
    if (fread(values.data(), 4, values.size(), in) != values.size()) return 1;
    ggml_quantize_chunk(type, values.data(), blocks.data(), 0, values.size() / 256, 256, nullptr);
    fwrite(blocks.data(), 1, blocks.size(), out);
    return fclose(out);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix, folder = built_ggml(), tmp_path_factory.mktemp("quantise")
    (folder / "main.cpp").write_text(PROGRAM)
    command = ["c++", "-O1", folder / "main.cpp", "-I", prefix / "include", "-o", folder / "main",
               prefix / "lib" / "libggml-base.a", "-lpthread", "-ldl", "-lm"]
    subprocess.run(command, check=True, timeout=300)
    return folder / "main"


@pytest.mark.peers
@pytest.mark.parametrize("name", ENCODERS)
def test_against_ggml(program: Path, tmp_path: Path, name: str) -> None:
    values = numbers()
    values.tofile(tmp_path / "in")
    subprocess.run([program, str(FORMATS[name].id), str(values.size), tmp_path / "in",
                    tmp_path / "out"], check=True, timeout=60)
    theirs = dequantise(name, np.fromfile(tmp_path / "out", np.uint8)).reshape(values.shape)
    ours = dequantise(name, quantise(name, values)).reshape(values.shape)
    errors = [np.square(found - values).sum(axis=1) for found in (ours, theirs)]
    assert (errors[0] <= errors[1] * 1.05 + 1e-12).all()
    assert errors[0].sum() <= errors[1].sum() * 1.001
