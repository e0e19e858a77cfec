"""GPUs through the package `wgpu`: Metal, and whatever else has no Vulkan of its own."""

from smalti.runtime.webgpu.adapter import Adapter, adapters
from smalti.runtime.webgpu.gpu import WebGpu, device_of, open_device

__all__ = ["Adapter", "WebGpu", "adapters", "device_of", "open_device"]
