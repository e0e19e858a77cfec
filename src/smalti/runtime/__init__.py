"""Programs and what they run on: memory plan, threads, devices, caches; the only ctypes."""

from smalti.runtime.compilation import compile_graph
from smalti.runtime.devices import Device, devices
from smalti.runtime.engine import load
from smalti.runtime.interface import Program

__all__ = ["Device", "Program", "compile_graph", "devices", "load"]
