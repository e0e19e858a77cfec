"""Predicts how long operations and kernels take: a library of devices, a timing model, and its
calibration by measurements."""

from smalti.machine.calibration import calibrate
from smalti.machine.detection import detect
from smalti.machine.device import CacheLevel, DeviceModel
from smalti.machine.estimate import Estimate, estimate
from smalti.machine.library import device, devices, known_device

__all__ = ["CacheLevel", "DeviceModel", "Estimate", "calibrate", "detect", "device", "devices",
           "estimate", "known_device"]
