"""Estimates: never faster than the device can be, more for more work, refused for nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti import machine
from smalti.errors import InputError

SIZES = st.integers(1, 20000)
NAMES = st.sampled_from([device.id for device in machine.devices()])


@given(NAMES, SIZES, SIZES, SIZES, st.sampled_from(["f32", "f16", "bf16"]))
def test_no_product_is_faster_than_the_roofline(name, m, n, k, dtype) -> None:
    device = machine.device(name)
    found = machine.estimate(device, "mat_mul", dtype, m=m, n=n, k=k)
    assert found.flops == 2 * m * n * k
    assert found.microseconds * 1e-6 >= found.flops / device.rate(dtype)
    assert found.bytes >= (4 if dtype == "f32" else 2) * (m * k + k * n + m * n)
    assert found.joules <= found.microseconds * 1e-6 * device.watts


@given(NAMES, SIZES, SIZES, SIZES)
def test_twice_the_work_does_not_take_less(name, m, n, k) -> None:
    device = machine.device(name)
    one, two = (machine.estimate(device, "mat_mul", "f16", m=m, n=n, k=k * times).microseconds
                for times in (1, 2))
    assert two >= 0.97 * one  # a longer k can be cut into rounder parts


def test_what_binds_is_told() -> None:
    device = machine.device("rtx_4090")
    large = machine.estimate(device, "mat_mul", "bf16", m=8192, n=8192, k=8192)
    thin = machine.estimate(device, "mat_mul", "bf16", m=1, n=16384, k=16384)
    small = machine.estimate(device, "add", "f32", rows=16, columns=16)
    wide = machine.estimate(device, "softmax", "f32", rows=65536, columns=8192)
    assert (large.binds, thin.binds, small.binds, wide.binds) == (
        "arithmetic", "memory", "launch", "memory")


def test_rows_in_a_cache_are_faster_than_in_memory() -> None:
    device = machine.device("rtx_4090")  # 72 MiB of cache
    held, spilled = (machine.estimate(device, "gelu", "f32", rows=rows, columns=1024)
                     for rows in (4096, 65536))
    assert held.binds == "cache" and spilled.binds == "memory"
    assert spilled.microseconds > 1.5 * 16 * held.microseconds


def test_attention_grows_with_the_square_of_its_length() -> None:
    device = machine.device("h100_sxm5_80_gb")
    one, two = (machine.estimate(device, "attention", "bf16", batch=2, sequence=length, heads=16,
                                 head_dim=64).microseconds for length in (8192, 16384))
    assert 3.5 < two / one < 4.5


def test_a_convolution_takes_the_fastest_legal_algorithm() -> None:
    device = machine.device("rtx_2080_ti")
    fields = {"x": (2, 320, 64, 64), "w": (320, 320, 3, 3), "pads": (1, 1, 1, 1)}
    times = {name: machine.estimate(device, "conv", algorithm=name, **fields).microseconds
             for name in ("implicit_gemm", "winograd", "winograd_nonfused")}
    best = machine.estimate(device, "conv", **fields)
    assert best.microseconds == min(times.values()) == times[best.algorithm]
    assert best.algorithm.startswith("winograd")
    strided = machine.estimate(device, "conv", strides=(2, 2), **fields)
    assert strided.algorithm == "implicit_gemm"
    assert strided.flops == best.flops / 4


@pytest.mark.parametrize("op, fields, message", [
    ("mat_mul", {"m": 4, "n": 4}, "missing: k"),
    ("mat_mul", {"m": 4, "n": 4, "k": 4, "rows": 3}, "unknown: rows"),
    ("mat_mul", {"m": 4, "n": 0, "k": 4}, "n is 0"),
    ("knit", {}, "operation 'knit'"),
    ("conv", {"x": (1, 3, 8, 8), "w": (4, 4, 3, 3)}, "group 1"),
    ("conv", {"x": (1, 3, 2, 2), "w": (4, 3, 3, 3)}, "does not fit"),
])
def test_nonsense_is_refused(op: str, fields: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        machine.estimate(machine.device("rtx_4060"), op, **fields)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InputError, match="the timing model knows f32, f16, bf16"):
        machine.estimate(machine.device("rtx_4060"), "add", "f5", rows=4, columns=4)
