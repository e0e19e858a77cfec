"""Questions that a driver may not survive."""

from __future__ import annotations

import pytest

from smalti.errors import DeviceError
from smalti.runtime.gpu.child import asked


def test_an_answer_comes_back_whatever_the_driver_prints() -> None:
    assert asked("answering", "7", 60) == "[[16, 16, 16, 7]]"


@pytest.mark.parametrize("question, how, seconds", [
    ("crash", "ended with (signal|code)", 60), ("hang", "no answer within 1 s", 1),
    ("fail", "ended with code 1: the driver is broken", 60)])
def test_how_a_driver_fails_is_told(question: str, how: str, seconds: float) -> None:
    with pytest.raises(DeviceError, match=how):
        asked("answering", question, seconds)
