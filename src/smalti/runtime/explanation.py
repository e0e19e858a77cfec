"""What `explain` prints of a compiled program: kernels, schedules, times, and why each cut."""

from __future__ import annotations

from collections.abc import Sequence

from smalti.machine.device import Device
from smalti.runtime.image import Image, PieceInfo
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
        rate = ""
        if seconds is not None:
            speed = piece.flops / max(seconds[number], 1e-9) / 1e9
            rate = f"{1e3 * seconds[number]:9.3f} ms {speed:8.1f} GFLOP/s  "
        found = expected.get(number)
        model = f"{1e3 * found.seconds:9.3f} ms expected, {found.binds}" if found else ""
        lines.append(f"{number:5d} {rate}{model:40s}" + _piece(piece) + rarely.get(number, ""))
    for name, size in sorted(image.filterings.items()):
        lines.append(f"numeric guard: {name or 'a constant weight'} is filtered by "
                     + (f"F({size})" if size else "nothing"))
    total = sum(found.seconds for found in expected.values())
    joules = sum(found.energy_joules for found in expected.values())
    lines.append(f"expected of a run: {1e3 * total:.3f} ms, {joules:.3g} J"
                 + (f"; measured: {1e3 * sum(seconds):.3f} ms" if seconds is not None else ""))
    return "\n".join(lines) + "\n"


def _piece(piece: PieceInfo) -> str:
    stored = ", ".join(dict.fromkeys(place.dtype for place in piece.results))
    return (f"{piece.form:18s} {piece.scope}  {piece.schedule}  stored: {stored}  "
            + "cut: " * (piece.form != "host") + piece.reason
            + (f"  in {piece.strips} strips, over its operand" if piece.strips > 1 else ""))
