"""What happens when a GPU is used that nobody has checked.

A check begins beside the work, in a process of its own; what it finds holds from the next program
on. Until then, a few kernels of each program that is compiled are compared with the CPU's results,
so that not even the first picture is wrong.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

from smalti import settings
from smalti.compiler.module import Module
from smalti.errors import DeviceError, DeviceLostError, DeviceMemoryError
from smalti.kernel.form import Kernel, functions
from smalti.kernel.text import parse
from smalti.runtime.device import Device
from smalti.runtime.doctor import verdict
from smalti.runtime.doctor.attempts import Attempts
from smalti.runtime.doctor.beside import expectation_of_cpu
from smalti.runtime.doctor.examination import examined
from smalti.runtime.doctor.found import Finding
from smalti.runtime.doctor.kernels import case
from smalti.runtime.doctor.probe import DeviceProbe, Outcome
from smalti.runtime.doctor.supervision import HOME, supervised
from smalti.runtime.gpu.child import Talk, end_talks
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.removals import DEVICE, reduced

KERNELS_MAX = 6
"""Kernels of a program that are compared: the largest of each form that is not too large."""
FLOPS_MAX, BYTES_MAX = 2e9, 24 << 20
"""Of a kernel that is compared: the CPU takes some hundredths of a second."""
RESULTS_MIN = 32
"""Elements of a result that is compared, where it is of sums of both signs: a single one may be
next to 0, and far off by its own size."""
POSITIVE = {"abs", "exp", "sigmoid", "sqrt"}
FLOATS = ("f32", "f16", "bf16")
SMOOTH = {"abs", "add", "cos", "div", "erf", "exp", "gelu", "gelu_tanh", "max", "min", "mul", "neg",
          "quick_gelu", "reciprocal", "relu", "sigmoid", "silu", "sin", "sqrt", "sub", "tanh"}
"""Functions without steps."""
END_SECONDS = 5.0
"""How long a process that has done its work waits for a check to end."""

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_ending = threading.Event()
_running: dict[str, threading.Thread] = {}
_users: dict[str, WeakSet[Gpu]] = {}
_found: dict[str, tuple[Finding, ...]] = {}
_right: set[tuple[str, Kernel]] = set()


def unchecked(device: Device) -> bool:
    """Whether nobody knows if a GPU can be trusted, and that is asked: of drivers that compute on
    the CPU it is not."""
    return (settings.doctor() and device.kind != "cpu" and bool(device.identity)
            and verdict.kept(device.identity) is None)


def begin(gpu: Gpu) -> None:
    """Begin the check of a GPU that is opened, if it is unchecked; returns at once."""
    identity = gpu.device.identity
    if not unchecked(gpu.device):
        return
    with _lock:
        _users.setdefault(identity, WeakSet()).add(gpu)
        if identity not in _running:
            driver = type(gpu).__module__.rpartition(".")[0] + ".driver"  # of the same folder
            _running[identity] = threading.Thread(target=_check, args=(gpu.device, driver),
                                                  daemon=True)
            _running[identity].start()


def _check(device: Device, driver: str) -> None:
    """Check a device, keep the verdict, and let all that is compiled from then on go by it."""
    try:
        found = supervised(device, driver, start=_started)
    except DeviceError as error:  # no process can be started
        if _ending.is_set():
            return
        _log.warning("%s could not be checked: %s", device.name, error)
        return
    with _lock:
        found = verdict.with_findings(found, _found.get(device.identity, ()))
        users = list(_users.pop(device.identity, ()))
    verdict.keep(found)
    for removal in found.removals:
        _log.warning("%s: %s %s", device.name, removal.why, removal.instead)
    for gpu in users:
        gpu.outdated = bool(found.removals)


def _started(question: Mapping[str, Any]) -> Talk:
    """A process of a check. Raises DeviceError where this one is about to end."""
    if _ending.is_set():
        raise DeviceError("the process ends")
    return Talk(HOME, question)


@atexit.register
def _end() -> None:
    """Wait for checks that are nearly done, so that the next process has a verdict."""
    _ending.set()
    for thread in list(_running.values()):
        thread.join(END_SECONDS)
    end_talks()


def trusted(gpu: Gpu, module: Module) -> bool:
    """Whether kernels of a module compute on an unchecked GPU what they do on the CPU.

    Where they do not, the GPU is used without what is wrong from then on, so that the module has to
    be made anew. Raises DeviceError where nothing helps.
    """
    device = gpu.device
    if not unchecked(device):
        return True
    kernels = [each for each in chosen(module) if (device.identity, each) not in _right]
    probes = [probe(kernel, module.precision) for kernel in kernels]
    attempts = Attempts(lambda names: gpu)

    def attempt(probe: DeviceProbe, removed: tuple[str, ...]) -> Outcome:
        outcome = attempts(probe, removed)
        if outcome.fatal:
            raise DeviceLostError(f"{device.name}: {outcome.trouble} while a kernel was compared "
                                  f"with the CPU's; `smalti doctor` says more")
        return outcome

    try:
        findings = examined(probes, attempt)
    except DeviceMemoryError:
        return True  # there is no room for a comparison; the program itself may still fit
    if not findings:
        _right.update((device.identity, each) for each in kernels)
        return True
    _note(gpu, findings)
    return False


def _note(gpu: Gpu, findings: Sequence[Finding]) -> None:
    """Use a GPU without what was found wrong."""
    device = gpu.device
    with _lock:
        _found[device.identity] = (*_found.get(device.identity, ()), *findings)
    removals = [verdict.removal_by(name, each) for each in findings for name in each.removed]
    for removal in removals:
        if removal.what == DEVICE:
            raise DeviceError(f"{device.name} ({device.id}): {removal.why} {removal.instead}")
        _log.warning("%s: %s %s", device.name, removal.why, removal.instead)
    gpu.limits = reduced(gpu.limits, removals)


def chosen(module: Module) -> list[Kernel]:
    """A few kernels of a module, of several forms, the largest first that are not too large."""
    regions = sorted((each for each in module.regions if each.kernel >= 0
                      and each.flops <= FLOPS_MAX and each.bytes <= BYTES_MAX),
                     key=lambda each: -each.flops)
    by_form: dict[str, Kernel] = {}
    for region in regions:
        if region.form not in by_form and len(by_form) < KERNELS_MAX:
            kernel = parse(module.kernels[region.kernel])
            if comparable(kernel):
                by_form[region.form] = kernel
    return list(by_form.values())


def comparable(kernel: Kernel) -> bool:
    """Whether roundings of two devices make results that differ little: no steps, such as those of
    `floor`, no whole numbers, and no single sums that may be next to 0."""
    out = [buffer for buffer in kernel.buffers if buffer.role == "output"]
    used = [set(functions(stage.value)) for stage in kernel.stages]
    cancels = any(stage.reducer == "sum" and not names & POSITIVE
                  for stage, names in zip(kernel.stages, used))
    least = RESULTS_MIN if cancels else 1
    return all(names <= SMOOTH for names in used) and all(
        math.prod(each.shape) >= least and each.dtype in FLOATS for each in out)


def probe(kernel: Kernel, precision: str) -> DeviceProbe:
    """A kernel of a program, on operands of its own."""
    shape = "x".join(map(str, kernel.buffer(kernel.stages[-1].result).shape))
    return DeviceProbe(
        f"{kernel.form.replace('_', ' ')} of {shape}, {precision}",
        lambda target, limits: case([kernel], precision, target, limits,
                                    expectation=expectation_of_cpu))

