"""What the drivers of all architectures have in common."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from smalti.codegen.arm64 import driver as arm64
from smalti.codegen.cpu.assembler import Code
from smalti.codegen.x86 import driver as x86
from smalti.errors import DeviceError


@pytest.mark.parametrize("driver", [x86.driver, lambda system: arm64.driver(system, True)])
def test_a_system_without_a_driver_is_named(driver: Callable[[str], Code]) -> None:
    with pytest.raises(DeviceError, match="plan9.*linux, darwin, win32"):
        driver("plan9")
