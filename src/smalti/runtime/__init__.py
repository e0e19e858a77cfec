"""Programs and what they run on: devices, memory, weights, files, caches; the only ctypes.

`cpu/`, `vulkan/` and `webgpu/` are the drivers, with the same names of files where these do the
same; `gpu/` is what the last two have in common. `drivers.py` loads each when it is asked for.
"""

from smalti.runtime.compilation import compile_graph
from smalti.runtime.device import Device
from smalti.runtime.devices import devices
from smalti.runtime.engine import load
from smalti.runtime.interface import Program

__all__ = ["Device", "Program", "compile_graph", "devices", "load"]
