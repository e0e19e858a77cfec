"""The driver of the CPU: what the rest of Smalti asks of this folder."""

from __future__ import annotations

from smalti.codegen.target import Target
from smalti.compiler.options import ROUNDED
from smalti.compiler.targets import TARGETS
from smalti.cores import described
from smalti.runtime.cpu.adapter import available_levels, best_level, cpu, limits_at
from smalti.runtime.cpu.check import executor
from smalti.runtime.cpu.compilation import compile_here, recipe_here
from smalti.runtime.cpu.model import calibration, modelled
from smalti.runtime.cpu.recipe import LEAST
from smalti.runtime.device import Device
from smalti.runtime.driver import Driver, Runnable


def rate(device: Device) -> float:
    """The multiplications and additions that products reach in a second."""
    return max(modelled().vector.values())


def wide_range(device: str, precision: str) -> str:
    """Every precision of a CPU has the range of f32; what is beside integers of 8 bits has it by
    itself."""
    if precision == ROUNDED:
        return TARGETS[best_level() or LEAST].beside_integers or "f32"
    return precision


def usual(device: str) -> Target | None:
    """The target of this CPU; None where the reference runs instead."""
    name = best_level()
    return None if name is None else TARGETS[name]


def runs(device: str) -> list[Runnable]:
    """The feature levels that this CPU has."""
    return [Runnable(TARGETS[name], limits_at(name, 1), executor(TARGETS[name]))
            for name in available_levels()]


def about(device: Device) -> tuple[tuple[str, str], ...]:
    """Lines for users: how fast the cores are, and whether what the timing model knows of this CPU
    was measured."""
    measured = calibration()
    return (("cores", described(device.speeds)), ("measured", measured.date if measured else
             "not calibrated: `smalti calibrate` measures what is guessed"),)


DRIVER = Driver(lambda: (cpu(),), rate, compile_here, ("auto", "f32", "bf16", ROUNDED),
                wide_range, runs, computes_in_main_memory=True, usual=usual, recipe=recipe_here,
                model=lambda device: modelled(), about=about)
