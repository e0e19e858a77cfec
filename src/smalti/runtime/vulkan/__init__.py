"""GPUs through Vulkan, which drivers of NVIDIA, AMD, Intel and others bring along.

    structures → library → adapter      what there is: loader, drivers, devices and their limits
    logical → memory → transfers        a device that is open: queues, buffers, data in and out
    pipelines, hazards → recording      programs, and launches of them as commands
    gpu                                 all of it as a `Gpu`

The binding is our own, through ctypes: what computing needs of Vulkan is 60 functions and as many
structures, a table each. The binding on PyPI loses nested structures to the collector of garbage,
takes ten times as long for a call, and is one more thing to install; a compiled one would need a
build for each system.
"""

from smalti.runtime.vulkan.adapter import Adapter, adapters
from smalti.runtime.vulkan.gpu import VulkanGpu

__all__ = ["Adapter", "VulkanGpu", "adapters"]
