"""GPUs as they were measured."""

from __future__ import annotations

import pytest

from smalti import machine
from smalti.machine.device import GUESSED, MEASURED, SPECIFIED
from smalti.machine.measured import MeasuredGpu

FOUND = MeasuredGpu({"f32": 8e12, "f16": 21e12, "bf16": 8e12}, 3.4e11, 6e-6, 1.1e10)


def test_a_device_of_the_library_keeps_its_peaks() -> None:
    known = machine.device("rtx_4060")
    found = FOUND.applied(known)
    assert (found.launch, found.link) == (6e-6, 1.1e10)
    assert (found.vector, found.matrix, found.bandwidth) == (
        known.vector, known.matrix, known.bandwidth)
    assert found.origin["launch"] == MEASURED and found.origin["bandwidth"] == SPECIFIED


def test_a_device_that_nobody_knows_is_as_it_was_measured() -> None:
    found = FOUND.model("A new GPU", 32, 8e9, False)
    assert found.matrix == {"f16": 42e12}  # bf16 is no faster than f32: no unit makes it
    assert found.rate("f32") == 16e12 and found.rate("bf16") == 16e12
    assert found.origin["bandwidth"] == MEASURED and found.origin["clock"] == GUESSED


@pytest.mark.parametrize("fields", [
    dict(op="mat_mul", m=2048, n=2048, k=2048), dict(op="softmax", rows=4096, columns=4096),
    dict(op="attention", batch=1, sequence=1024, heads=8, head_dim=64),
    dict(op="conv", x=(1, 320, 64, 64), w=(320, 320, 3, 3), pads=(1, 1, 1, 1))])
def test_the_model_speaks_for_such_a_device(fields) -> None:
    slow = MeasuredGpu({"f32": 1e12, "f16": 1e12}, 5e10, 2e-5, 5e9).model("Slow", 8, 2e9, True)
    fast = FOUND.model("Fast", 32, 8e9, False)
    times = [machine.estimate(device, dtype="f16", **fields).microseconds
             for device in (slow, fast)]
    assert 2 < times[0] / times[1] < 100
