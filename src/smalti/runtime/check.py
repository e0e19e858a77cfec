"""Public checks: every form of kernel on a target or a device, against the numpy interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import numpy as np

from smalti.codegen.target import LoweredKernel
from smalti.compiler.check import Arrays, CheckReport, checked
from smalti.compiler.targets import target
from smalti.errors import InputError
from smalti.kernel.form import Kernel
from smalti.runtime.choice import chosen, described
from smalti.runtime.devices import found
from smalti.runtime.drivers import HOMES, driver_of

__all__ = ["CheckReport", "check_device", "check_target"]


def check_target(name: str) -> CheckReport:
    """Run every form of kernel of a target, in each precision that it has.

    Targets of GPUs run in numpy, which finds races and accesses out of bounds; their code is made,
    but needs `check_device` to be run. A feature level of CPUs runs on this one. Raises InputError
    for an unknown target, and for a feature level that this CPU does not have.
    """
    wanted = target(name)
    if wanted.interpret is not None:
        def execute(low: LoweredKernel, kernel: Kernel,
                    memory: Arrays) -> Mapping[str, np.ndarray]:
            wanted.encode(low.steps, wanted.usual)
            return wanted.interpret(low, kernel, memory)

        return checked(f"{name}, in numpy", wanted, wanted.usual, execute)
    for device in chain.from_iterable(map(found, HOMES)):
        for each in driver_of(device.id).runs(device.id):
            if each.target is wanted:
                return checked(f"{name} on {device.name}", wanted, each.limits, each.execute)
    raise InputError(f"no device that is here runs {name}; it needs {', '.join(wanted.needs)}")


def check_device(id: str) -> list[CheckReport]:
    """Run every form of kernel on a device, for each target that it has.

    `id` is one of `smalti.devices()`, or "auto". Raises InputError for one that is not here,
    DeviceError where its driver refuses.
    """
    device = described(chosen(id))
    return [checked(f"{each.target.name} on {device.name} ({device.id})", each.target, each.limits,
                    each.execute) for each in driver_of(device.id).runs(device.id)]
