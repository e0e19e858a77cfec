"""The process of a check begins here: `supervision.py` starts it by the name of this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smalti.runtime.doctor.process import Say, check
from smalti.runtime.drivers import driver_of


def told(question: Mapping[str, Any], say: Say) -> None:
    """Check the device that is asked about; `known` are outcomes of earlier attempts, of which the
    last was the end of a process like this one."""
    device = question["device"]
    bare = driver_of(device).bare
    assert bare is not None, device
    check(lambda names: bare(device, names), question["known"], say)
