"""GPUs that are open: each once in a process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from smalti.runtime.gpu.interface import Gpu

_lock = threading.Lock()
_open: dict[str, Gpu] = {}


def kept_open(name: str, opened: Callable[[int], Gpu]) -> Gpu:
    """The GPU of this id, which `opened` opens by its number there; anew when it was lost."""
    with _lock:
        if name not in _open or _open[name].lost:
            _open[name] = opened(int(name.partition(":")[2]))
        return _open[name]


def wide_range(gpu: Gpu, precision: str) -> str:
    """The precision for what overflows in f16: bf16, or f32 where the device has none."""
    if precision in ("f32", "bf16"):
        return precision
    if precision == "auto" and not gpu.limits.storage16:
        return "f32"
    return "bf16" if "bf16" in gpu.target.precisions else "f32"
