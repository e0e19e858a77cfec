"""The device model of this CPU, and its last calibration."""

from __future__ import annotations

from pathlib import Path

from smalti import machine, settings
from smalti.codegen.levels import level
from smalti.errors import InputError
from smalti.machine.cpu import CpuCalibration
from smalti.machine.detection import at_level
from smalti.runtime.cache import code_digest
from smalti.runtime.cpu.adapter import cpu

CALIBRATION = "calibration.json"


def modelled(target: str | None = None, calibrated: bool = True) -> machine.DeviceModel:
    """The device model of this CPU, as code of the feature level `target` can use it.

    It is made from what the CPU says of itself and, if `calibrated`, from what `smalti calibrate`
    has measured.
    """
    found, measured = machine.detect(cpu()), calibration() if calibrated else None
    if measured is not None:
        found = measured.applied(found, modelled_code())
    if target is None:
        return found
    chosen = level(target)
    return at_level(found, chosen.lanes, chosen.pairs)


def calibration() -> CpuCalibration | None:
    """The last calibration of this CPU, or None."""
    try:
        found = CpuCalibration.of(calibration_path().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InputError):
        return None
    return found if found.device == cpu().name else None


def calibration_path() -> Path:
    """The file of the last calibration."""
    return settings.cache_folder() / CALIBRATION


def modelled_code() -> str:
    """The hash of the source code to which constants of the timing model were fitted."""
    return code_digest("kernel", "machine", "schedule", "codegen")
