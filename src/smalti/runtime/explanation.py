"""What `explain` prints of a compiled program: kernels, schedules, times, and why each cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smalti.machine.cpu import KernelEstimate
from smalti.machine.device import Device
from smalti.runtime import devices
from smalti.runtime.device_plan import DeviceLaunch, DevicePlan
from smalti.runtime.image import Image, PieceInfo
from smalti.runtime.outlook import Expected
from smalti.runtime.prediction import predicted


def explained(image: Image, device: Device, threads: int, seconds: Sequence[float] | None) -> str:
    """The program in one line, a line for each kernel or call of the host, and what is expected of
    a run; `seconds` are those of each in the last run, if there was one."""
    expected = predicted(image, device, threads)
    calls = sum(piece.form == "host" for piece in image.pieces)
    lines = [f"{image.name}: {len(image.pieces) - calls} kernels, "
             + f"{calls} operations on the host, " * bool(calls)
             + f"{len(image.functions)} functions, "
             f"{len(image.code) / 1e6:.2f} MB of code, level {image.level}, "
             f"precision {image.precision}, {threads} threads, arena "
             f"{image.arena_bytes / 1e6:.1f} MB, packed weights "
             f"{image.weights_bytes / 1e6:.1f} MB"]
    rarely = {launch.piece: f"  when {' or '.join(image.held)} changes"
              for launch in image.launches[:image.changing]}
    rarely |= {launch.piece: "  once, when weights are bound"
               for launch in image.launches[:image.steady]}
    for number, piece in enumerate(image.pieces):
        rate = _measured(piece, seconds[number]) if seconds is not None else ""
        lines.append(f"{number:5d} {rate}{_expected(expected.get(number)):40s}" + _piece(piece)
                     + rarely.get(number, ""))
    for name, size in sorted(image.filterings.items()):
        lines.append(f"numeric guard: {name or 'a constant weight'} is filtered by "
                     + (f"F({size})" if size else "nothing"))
    total = sum(found.seconds for found in expected.values())
    joules = sum(found.energy_joules for found in expected.values())
    lines.append(f"expected of a run: {1e3 * total:.3f} ms, {joules:.3g} J"
                 + (f"; measured: {1e3 * sum(seconds):.3f} ms" if seconds is not None else ""))
    return "\n".join(lines) + "\n"


def explained_on(plan: DevicePlan, device: devices.Device, expected: Mapping[int, Expected],
                 seconds: Sequence[float] | None) -> str:
    """The same of a program of a GPU: with the work-groups of each kernel, what is `expected` of it
    where the device is known, and `seconds` where it was profiled."""
    calls = sum(piece.form == "host" for piece in plan.pieces)
    lines = [f"{plan.name}: {len(plan.pieces) - calls} kernels, "
             + f"{calls} operations on the host, " * bool(calls)
             + f"{len(plan.programs)} programs for {device.name} ({device.id}), "
             f"precision {plan.precision}, arena {plan.arena_bytes / 1e6:.1f} MB, weights "
             f"{plan.weights_bytes / 1e6:.1f} MB"]
    rarely = {launch.piece: f"  when {' or '.join(plan.held)} changes"
              for launch in plan.launches[:plan.changing]}
    rarely |= {launch.piece: "  once, when weights are bound"
               for launch in plan.launches[:plan.steady]}
    groups: dict[int, list[str]] = {}
    for launch in plan.launches:
        if isinstance(launch, DeviceLaunch):
            program = plan.programs[launch.program]
            groups.setdefault(launch.piece, []).append(
                f"{' x '.join(map(str, program.groups))} groups of {program.size}")
    for number, piece in enumerate(plan.pieces):
        times = _measured(piece, seconds[number]) if seconds is not None else ""
        if expected:
            times += f"{_expected(expected.get(number)):40s}"
        lines.append(f"{number:5d} {times}{_piece(piece, groups.get(number))}"
                     + rarely.get(number, ""))
    if expected:
        lines.append(f"expected of a run, at the speed of the vendor's library: "
                     f"{1e3 * sum(found.seconds for found in expected.values()):.3f} ms"
                     + (f"; profiled: {1e3 * sum(seconds):.3f} ms" if seconds is not None else ""))
    return "\n".join(lines) + "\n"


def _measured(piece: PieceInfo, seconds: float) -> str:
    speed = piece.flops / max(seconds, 1e-9) / 1e9
    return f"{1e3 * seconds:9.3f} ms {speed:8.1f} GFLOP/s  "


def _expected(found: KernelEstimate | Expected | None) -> str:
    return f"{1e3 * found.seconds:9.3f} ms expected, {found.binds}" if found else ""


def _piece(piece: PieceInfo, groups: Sequence[str] | None = None) -> str:
    stored = ", ".join(dict.fromkeys(place.dtype for place in piece.results))
    return (f"{piece.form:18s} {piece.scope}  {piece.schedule}  "
            + f"{', '.join(groups or ())}  " * bool(groups) + f"stored: {stored}  "
            + "cut: " * (piece.form != "host") + piece.reason
            + (f"  in {piece.strips} strips, over its operand" if piece.strips > 1 else ""))
