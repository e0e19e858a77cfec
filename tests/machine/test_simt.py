"""Products under schedules: the rules of the model, each where it is the only one that differs."""

from __future__ import annotations

import numpy as np

from smalti import machine
from smalti.machine.simt import Schedules, seconds, wavefronts

DEVICE = machine.device("rtx_2080_ti")


def times(size: int = 4096, **fields: list[int]) -> np.ndarray:
    usual = {"tile_m": 128, "tile_n": 128, "threads_m": 16, "threads_n": 8, "vector_m": 4,
             "vector_n": 4, "staged_a": 1, "staged_b": 1}
    count = max(map(len, fields.values()))
    given = {name: np.array(fields.get(name, [value] * count), float)
             for name, value in usual.items()}
    return seconds(DEVICE, Schedules(**given), size, size, size)


def test_nothing_is_faster_than_the_units() -> None:
    assert times(tile_m=[128]) > 2 * 4096**3 / DEVICE.rate("f32")


def test_larger_tiles_load_less_until_registers_run_out() -> None:
    small, usual, huge = times(tile_m=[16, 64, 256], tile_n=[16, 64, 256])
    assert small > 2 * usual and huge > 2 * usual


def test_wide_loads_are_fewer() -> None:
    one, four = times(vector_m=[1, 4], vector_n=[1, 4])
    assert one > 1.1 * four


def test_a_group_that_does_not_fit_takes_forever() -> None:
    assert np.isinf(times(threads_m=[64], threads_n=[32]))  # 2048 threads of 1024
    assert np.isinf(times(tile_m=[1024], threads_m=[64]))  # 144 KiB of 64


def test_banks_of_shared_memory() -> None:
    assert [wavefronts(32, stride, 1) for stride in (1, 2, 3, 4, 32)] == [1, 2, 1, 4, 32]
    assert wavefronts(16, 8, 4) == 4  # two halves, in each of which two lanes meet in a bank
