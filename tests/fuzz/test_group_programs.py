"""The first cases of the fuzzer of group programs; `group_programs.py` runs it for minutes."""

from __future__ import annotations

import pytest
from attention_kernels import attention
from fuzz.group_programs import DEVICES, check, explore

from smalti.errors import VerificationError
from smalti.schedule.choose_group import choose_group


def test_kernels_with_any_schedule_compute_what_they_mean() -> None:
    found = explore(0, 30)
    assert sum(count for (_, how), count in found.items() if how == "agreed") >= 12
    assert len({form for form, how in found if how == "agreed"}) >= 4


def test_a_barrier_that_is_missing_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, limits = attention(5, 9, 1, 8), DEVICES["least"]
    schedule = choose_group(kernel, limits)
    check(kernel, schedule, limits, 32)
    monkeypatch.setattr("smalti.codegen.gpu.builder.Builder.barrier", lambda self: None)
    with pytest.raises(VerificationError, match="race|never written"):
        check(kernel, schedule, limits, 32)


def test_a_wrong_result_would_be_noticed() -> None:
    kernel, limits = attention(5, 9, 1, 8), DEVICES["least"]
    schedule = choose_group(kernel, limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smalti.codegen.gpu.heads.LOG2_E", 1.44)
        with pytest.raises(AssertionError, match="out is off by"):
            check(kernel, schedule, limits, 32)
