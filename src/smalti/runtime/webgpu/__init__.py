"""GPUs through the package `wgpu`: Metal, and whatever else has no Vulkan of its own."""

from smalti.runtime.webgpu.adapter import WebAdapter, adapters
from smalti.runtime.webgpu.gpu import WebGpu, device_of, open_device

__all__ = ["WebAdapter", "WebGpu", "adapters", "device_of", "open_device"]
