"""GPUs through Vulkan, which drivers of NVIDIA, AMD, Intel and others bring along.

    structures → library → instance     the loader, and the connection to its drivers
    told → adapter → matrices           what there is: devices, their limits and matrix units
    logical → memory → transfers        a device that is open: queues, buffers, data in and out
    pipelines, hazards → commands       programs, and launches of them, cut by their time
    recording                           what is submitted, again and again
    gpu                                 all of it as a `Gpu`

docs/vulkan.md tells in which order things happen, docs/decisions.md why the binding is our own.
"""

from smalti.runtime.vulkan.adapter import VulkanAdapter, adapters
from smalti.runtime.vulkan.gpu import VulkanGpu, device_of

__all__ = ["VulkanAdapter", "VulkanGpu", "adapters", "device_of"]
