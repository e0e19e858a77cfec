"""Schedules that were measured to be better than the first choice, as the compiler asks."""

from __future__ import annotations

from smalti import settings
from smalti.compiler.select import Knowledge
from smalti.runtime import cache
from smalti.runtime.cpu.adapter import available_levels, cpu
from smalti.runtime.cpu.model import modelled
from smalti.runtime.device import Device
from smalti.tune.objective import Objective
from smalti.tune.store import NAME, MeasurementScope, ScheduleStore

GENERATORS = ("kernel", "schedule", "codegen")
"""Folders of the code that a measurement depends on."""


def store() -> ScheduleStore:
    """What was measured by this user."""
    return ScheduleStore(settings.cache_folder() / NAME)


def scope(target: str, threads: int, precision: str,
          objective: str = "latency") -> MeasurementScope:
    """Where measurements of programs for a feature level hold, on this CPU."""
    device = cpu()
    caches = " ".join(f"{size >> 10}K" for size in (device.l1_bytes, device.l2_bytes,
                                                     device.l3_bytes))
    return MeasurementScope(f"{device.name}, {caches}", target, threads, precision,
                            cache.code_digest(*GENERATORS), objective=objective)


def scope_of_gpu(device: Device, target: str, precision: str) -> MeasurementScope:
    """Where measurements of programs for a target hold, on a GPU with its driver."""
    return MeasurementScope(device.name, target, 1, precision, cache.code_digest(*GENERATORS),
                            device.driver)


def knowledge_of_gpu(device: Device, target: str, precision: str) -> Knowledge:
    """What the store knows of schedules on a GPU."""
    found = store().best(scope_of_gpu(device, target, precision))
    return Knowledge({kernel: measured.schedule for kernel, measured in found.items()})


def knowledge(target: str, threads: int, precision: str, objective: str = "latency") -> Knowledge:
    """What the store and the timing model know; nothing for a feature level that this CPU does not
    have."""
    if target not in available_levels():
        return Knowledge()
    found = store().best(scope(target, threads, precision, objective))
    return Knowledge({kernel: measured.schedule for kernel, measured in found.items()},
                     Objective.on(modelled(target), threads, objective),
                     Objective.on(modelled(target, calibrated=False), threads, objective))
