"""GPUs that are open: each once in a process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from smalti.errors import DeviceError
from smalti.runtime.gpu.interface import Gpu

_lock = threading.Lock()
_open: dict[str, Gpu] = {}
_lost: set[str] = set()
"""Those that were lost, and are not open again."""


def kept_open(name: str, opened: Callable[[int], Gpu]) -> Gpu:
    """The GPU of this id, which `opened` opens by its number there; anew when it was lost, after
    all that was held of it is given back, or when a check has found something since."""
    with _lock:
        if name in _open and _open[name].lost:
            _lost.add(name)
            _open.pop(name).close()
        if name not in _open or _open[name].outdated:
            _open[name] = opened(int(name.partition(":")[2]))
            _lost.discard(name)
        return _open[name]


def gone(name: str, opened: Callable[[str], Gpu]) -> bool:
    """Whether a GPU was lost and does not come back, or a check has removed it; nothing is asked of
    one that works."""
    if name not in _lost and not (name in _open and (_open[name].lost or _open[name].outdated)):
        return False
    try:
        opened(name)
    except DeviceError:
        return True
    return False


def wide_range(gpu: Gpu, precision: str) -> str:
    """The precision for what overflows in f16: bf16, or f32 where the device has none."""
    if precision in ("f32", "bf16"):
        return precision
    if precision == "auto" and not gpu.limits.storage16:
        return "f32"
    return "bf16" if "bf16" in gpu.target.precisions else "f32"
