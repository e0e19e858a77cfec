"""The process of a check begins here: `supervision.py` starts it by the name of this module."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from smalti.runtime.doctor.process import Say, check


def told(question: Mapping[str, Any], say: Say) -> None:
    """Check the device that is asked about, as the module `driver` opens it; `known` are outcomes
    of earlier attempts, of which the last was the end of a process like this one."""
    driver, device = import_module(question["driver"]), question["device"]
    check(lambda names: driver.bare(device, names), question["known"], say)
