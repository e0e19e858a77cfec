"""How far expected times of whole programs may be from what is measured."""

from __future__ import annotations

from smalti.machine.device import MEASURED, DeviceModel

CALIBRATED = 0.12
"""Of a CPU that was measured: the four programs of docs/machine.md, while nothing else ran."""
GUESSED_CPU = 0.4
"""Of a CPU whose clock and bandwidths are guesses: a guess itself, from how far calibration moves
those of CPUs that were measured."""
LIBRARY_GPU = 0.33
"""Of a GPU that nothing was measured on: the largest mean error of a kind of kernels on devices
that were left out when constants were fitted (docs/machine.md)."""


def uncertainty(device: DeviceModel) -> tuple[float, str]:
    """The share of an expected time that the measured one may differ by, and why it is this one.

    >>> from smalti import machine
    >>> uncertainty(machine.device("rtx_3060"))[0]
    0.33
    """
    if device.kind != "cpu":
        return LIBRARY_GPU, "as far as kernels are as fast as those of the vendor's library"
    if device.origin.get("clock") != MEASURED:
        return GUESSED_CPU, "this CPU was not measured"
    return CALIBRATED, "of a CPU that was measured, with nothing else running"
